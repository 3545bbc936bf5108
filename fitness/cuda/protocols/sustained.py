"""`sustained`: back to back for 250 ms, the sides taking turns, 2 s each: for work that heat and power limit.

Slots rotate as in `rotation`, so inputs are cold. A side that makes the chip lower its clock pays for it here, in its
own stretch: no quad is void. Power comes from the device's energy counter, between two of its updates after the first
50 ms, so that neither the stretch before nor the host's part is in it; energy a call is power times time.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Mapping, Sequence

from evo.fitness.cuda.adopt import AdoptedCall
from evo.fitness.cuda.clockwork import Clockwork
from evo.fitness.cuda.driver import Timer
from evo.fitness.cuda.launch import DeviceCall
from evo.fitness.cuda.protocols.brackets import Brackets, rough_us
from evo.fitness.cuda.protocols.graphs import Graph
from evo.target import Rejected

STRETCH_US = 250e3
_SETTLED_S = 0.05  # the counter's own delay, and the chip's
_MOST_ROUNDS = 900  # graph launches, below what a stream's queue holds


class Sustained:
    protocol = "sustained"

    def __init__(self, clockwork: Clockwork, calls: Sequence[DeviceCall], estimate_us: float) -> None:
        self._clockwork = clockwork
        self._stream = clockwork.stream
        self._calls = tuple(calls)
        self._timer = Timer(self._stream, 2)
        self._graph: Graph | None = None
        self._powers: list[float] = []
        self._times: list[float] = []
        brackets = Brackets(clockwork, estimate_us)
        try:
            rough = max(1.0, rough_us(clockwork, brackets, calls))
            repeats = max(1, -(-int(STRETCH_US / rough) // (len(calls) * _MOST_ROUNDS)))
            self._graph = self._capture(repeats)
            self._a_round = len(calls) * repeats
            self._rounds = max(2, round(STRETCH_US / (rough * self._a_round)))
            self._limit_s = self._stream.limit_s + 1e-5 * rough * self._rounds * self._a_round
        except BaseException:
            self.close()
            raise
        finally:
            brackets.close()

    @property
    def method(self) -> str:
        """ "graph", or "stream" for a baseline that cannot be captured."""
        return "graph" if self._graph else "stream"

    @property
    def readings(self) -> Mapping[str, float]:
        """power_w, and energy_uj a call: medians over the stretches; none where the device does not tell."""
        if not self._powers:
            return {}
        power = statistics.median(self._powers)
        return {"power_w": power, "energy_uj": power * statistics.median(self._times)}

    def sample(self) -> float:
        """The mean over one stretch, microseconds a call."""
        spoiled = secrets.randbelow(self._rounds)
        start_s = time.perf_counter()
        self._timer.mark(0)
        for number in range(self._rounds):
            if number == spoiled:
                self._clockwork.spoil(self._calls[secrets.randbelow(len(self._calls))])
            self._round()
        self._timer.mark(1)
        power = self._power(start_s)
        self._stream.wait(self._limit_s)
        elapsed = self._timer.between(0, 1) / (self._rounds * self._a_round)
        self._times.append(elapsed)
        if power:
            self._powers.append(power)
        return elapsed

    def close(self) -> None:
        graph, self._graph = self._graph, None
        if self._stream.usable():
            if graph:
                graph.close()
            self._timer.close()

    def _capture(self, repeats: int) -> Graph | None:
        try:
            return Graph(self._stream, self._calls * repeats)
        except Rejected as error:
            if error.fatal or not any(isinstance(each, AdoptedCall) for each in self._calls):
                raise
            return None

    def _round(self) -> None:
        if self._graph:
            self._graph.launch()
            return
        for _ in range(self._a_round // len(self._calls)):
            for each in self._calls:
                each.enqueue()

    def _power(self, start_s: float) -> float:
        """Watts while the queue is busy, from the first to the last update of the energy counter; 0 where unknown."""
        end_s = start_s + 0.9 * STRETCH_US * 1e-6
        updates: list[tuple[float, float]] = []  # seconds, mJ
        while (now := time.perf_counter()) < end_s:
            energy = self._clockwork.energy_mj()
            if not energy:
                return 0.0
            time.sleep(0.002)
            if now > start_s + _SETTLED_S and (not updates or energy != updates[-1][1]):
                updates.append((now, energy))
        moved = updates[1:]  # the first reading may lie anywhere between two updates
        if len(moved) < 2:
            return 0.0
        return 1e-3 * (moved[-1][1] - moved[0][1]) / (moved[-1][0] - moved[0][0])

"""`flashkda`: as FlashKDA's benchmark does it (`benchmarks/bench_fwd.py`), for comparison with numbers taken that way.

30 calls of warm-up, then 200 back to back on the same inputs, no flush, events round every call, and their mean. Inputs
that fit the L2 are hot, every call inherits its predecessor's dirty lines, and a bracket's own cost is inside. Calls
beyond 1 ms are fewer, for 250 ms in all. The output is spoiled once a batch, at a secret place, outside the brackets.

A library that takes the host longer than its kernels take the device would be timed at the host's pace: its calls are
queued behind a gate, as many at a time as the gate waits for. Between such groups the chip rests, which favours it.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Mapping, Sequence

from evo.fitness.cuda.clockwork import GATE_US, Clockwork
from evo.fitness.cuda.launch import DeviceCall
from evo.fitness.cuda.protocols.brackets import AT_ONCE, Brackets, rough_us

WARMUP, ITERATIONS = 30, 200
_MOST_US = 250e3


class FlashKdaBench:
    protocol = "flashkda"
    method = "events"

    def __init__(self, clockwork: Clockwork, calls: Sequence[DeviceCall], estimate_us: float) -> None:
        self._clockwork = clockwork
        self._calls = tuple(calls)
        self._brackets = Brackets(clockwork, estimate_us)
        try:
            rough = max(1.0, rough_us(clockwork, self._brackets, calls))
            host = self._host_us()
        except BaseException:
            self.close()
            raise
        share = min(1.0, _MOST_US / (rough * (WARMUP + ITERATIONS)))
        self._warmup, self._count = max(2, int(WARMUP * share)), max(10, int(ITERATIONS * share))
        self._held = host > rough
        self._at_once = max(1, min(AT_ONCE, int(0.5 * GATE_US / host))) if self._held else AT_ONCE

    @property
    def readings(self) -> Mapping[str, float]:
        return {}

    def sample(self) -> float:
        """The mean over the calls of every slot, microseconds."""
        return statistics.fmean(self._batch(each) for each in self._calls)

    def close(self) -> None:
        self._brackets.close()

    def _batch(self, each: DeviceCall) -> float:
        for _ in range(self._warmup):
            each.enqueue()
        times: list[float] = []
        spoiled = secrets.randbelow(self._count)
        for first in range(0, self._count, self._at_once):
            if self._held:
                self._clockwork.hold()
            for number in range(first, min(first + self._at_once, self._count)):
                if number == spoiled:
                    self._clockwork.spoil(each)
                self._brackets.call(each)
            if self._held:
                self._clockwork.release()
            times += self._brackets.times()
        return statistics.fmean(times)

    def _host_us(self) -> float:
        """What a call takes the host, while nothing waits for the device."""
        seen = []
        for _ in range(5):
            began = time.perf_counter()
            self._calls[0].enqueue()
            seen.append(1e6 * (time.perf_counter() - began))
            self._clockwork.stream.wait()
        return statistics.median(seen)

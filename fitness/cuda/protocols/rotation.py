"""`rotation`, the default: steady state, every call on another slot, so that inputs are cold and each call inherits its
predecessor's dirty cache lines, as in a pipeline. For ranking kernels that stream through memory.

Under 30 us a call, and up to 500 us, calls are captured into graphs of two lengths and the time is the slope between
them, which cancels what a graph's launch costs (a bracket of two events adds 3 to 8 us). Longer calls stand alone
between events. What must be queued is queued before it starts, behind a trusted gate and an untimed lead-in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evo.fitness.cuda.adopt import AdoptedCall
from evo.fitness.cuda.clockwork import Clockwork
from evo.fitness.cuda.driver import Timer
from evo.fitness.cuda.launch import DeviceCall
from evo.fitness.cuda.protocols.graphs import Graph
from evo.records import Status
from evo.target import Rejected

Method = Literal["graph", "events", "stream"]

_STARTS = 8  # slots that a sample may start at; each needs its own graphs
_ATTEMPTS = 3  # at a sample that the host queues in time
_SLOWER = 4.0  # a call so much slower than its estimate is timed as what it is


@dataclass(frozen=True, slots=True)
class Lengths:
    """Calls in the long and in the short sequence; `short` is 0 where calls stand alone between events."""

    long: int
    short: int


def lengths_for(microseconds: float) -> Lengths:
    if microseconds < 30:
        return Lengths(64, 16)
    if microseconds <= 500:
        return Lengths(12, 4)
    return Lengths(1, 0)


def calls_of(lengths: Lengths) -> int:
    """Calls that one sample makes through graphs; each wants an output of its own, or it could find its work done."""
    return lengths.long + 2 * lengths.short


class Rotation:
    """Times calls over the same work, one a slot. Every sample runs every slot's call at least once."""

    protocol = "rotation"

    def __init__(self, clockwork: Clockwork, calls: Sequence[DeviceCall], estimate_us: float) -> None:
        self._clockwork = clockwork
        self._stream = clockwork.stream
        self._calls = tuple(calls)
        self._timer = Timer(self._stream, 3)
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._stride = -(-len(calls) // _STARTS)
        self._start = 0
        try:
            measured = self._bracket()
            self._lengths = lengths_for(max(estimate_us, measured / _SLOWER))
            launches = calls_of(self._lengths) + len(calls)
            self._limit_s = self._stream.limit_s + 4e-6 * measured * launches
            self._method = self._choose()
        except BaseException:
            self.close()
            raise

    @property
    def method(self) -> Method:
        """How: "graph" (slope between two graphs), "events" (long calls, one by one between events) or "stream" (a
        baseline that cannot be captured: calls in a row between events, host time included)."""
        return self._method

    @property
    def readings(self) -> Mapping[str, float]:
        return {}

    def sample(self) -> float:
        """Microseconds a call. Raises `Rejected`: a fault of the calls, or UNSTABLE_TIMING when the slope is not
        positive."""
        return self._slope() if self._method == "graph" else self._row()

    def close(self) -> None:
        graphs, self._graphs = self._graphs, {}
        if self._stream.usable():
            for graph in graphs.values():
                graph.close()
            self._timer.close()

    def _disturb(self) -> None:
        """Queued at the head of every bracket, so that a slope cancels it; nothing here."""

    def _bracket(self) -> float:
        """A rough time of one call between two events, after a lead-in."""
        self._clockwork.hold()
        self._call(0).enqueue()
        self._timer.mark(0)
        self._call(1).enqueue()
        self._timer.mark(1)
        self._clockwork.release()
        self._stream.wait()
        return self._timer.between(0, 1)

    def _choose(self) -> Method:
        if self._lengths.short == 0:
            return "events"
        if not any(isinstance(each, AdoptedCall) for each in self._calls):
            return "graph"
        try:
            self._graph(0, self._lengths.short)
        except Rejected as error:
            if error.fatal:
                raise
            return "stream"
        return "graph"

    def _slope(self) -> float:
        """A sample that was all queued before it started; one that waited for the host says nothing."""
        elapsed = next((each for each in (self._once() for _ in range(_ATTEMPTS)) if each is not None), None)
        if elapsed is None:
            raise Rejected(Status.UNSTABLE_TIMING, f"the host was {_ATTEMPTS} times too slow to queue a sample")
        if elapsed <= 0:
            long, short = self._lengths.long, self._lengths.short
            raise Rejected(
                Status.UNSTABLE_TIMING, f"{long} calls took no longer than {short}; is something else using the device?"
            )
        return elapsed

    def _once(self) -> float | None:
        """Microseconds a call; None when the host had not queued all of them before they started."""
        long, short = self._lengths.long, self._lengths.short
        start = self._start
        lead, first, second = (
            self._graph(start, short), self._graph(start + short, long), self._graph(start + short + long, short),
        )  # fmt: skip
        total = 2 * short + long
        for slot in range(total, len(self._calls)):  # more slots than the graphs reach
            self._call(start + slot).enqueue()
        self._clockwork.hold()
        lead.launch()
        self._timer.mark(0)
        self._disturb()
        first.launch()
        self._timer.mark(1)
        self._disturb()
        second.launch()
        self._timer.mark(2)
        in_time = self._clockwork.release()
        self._stream.wait(self._limit_s)
        self._advance(total)
        return (self._timer.between(0, 1) - self._timer.between(1, 2)) / (long - short) if in_time else None

    def _row(self) -> float:
        """A lead-in, then calls in a row between two events."""
        count = max(self._lengths.long, len(self._calls) - 1)
        self._call(self._start).enqueue()
        self._disturb()
        self._timer.mark(0)
        for step in range(count):
            self._call(self._start + 1 + step).enqueue()
        self._timer.mark(1)
        self._stream.wait(self._limit_s)
        self._advance(count)  # to the last slot used: only the untimed lead-in may find its inputs in the cache
        return self._timer.between(0, 1) / count

    def _call(self, slot: int) -> DeviceCall:
        return self._calls[slot % len(self._calls)]

    def _advance(self, calls: int) -> None:
        """The next sample starts where this one ended, or at the next slot after it that has graphs: the slots just
        used are the ones still in the cache."""
        end = (self._start + calls) % len(self._calls)
        start = -(-end // self._stride) * self._stride
        self._start = start if start < len(self._calls) else 0

    def _graph(self, start: int, length: int) -> Graph:
        start %= len(self._calls)
        if (start, length) not in self._graphs:
            calls = [self._call(start + step) for step in range(length)]
            self._graphs[start, length] = Graph(self._stream, calls)
        return self._graphs[start, length]

"""Calls one at a time, each between two events: what an event bracket's protocols share."""

from __future__ import annotations

from collections.abc import Sequence

from evo.fitness.cuda.clockwork import Clockwork
from evo.fitness.cuda.driver import Timer
from evo.fitness.cuda.launch import DeviceCall

AT_ONCE = 64  # calls queued before they are waited for


class Brackets:
    """Queues bracketed calls; `times` waits for them. At most `AT_ONCE` at a time."""

    def __init__(self, clockwork: Clockwork, estimate_us: float) -> None:
        self._stream = clockwork.stream
        self._timer = Timer(self._stream, 2 * AT_ONCE)
        self._queued = 0
        self._limit_s = self._stream.limit_s + 1e-5 * estimate_us * AT_ONCE

    def call(self, each: DeviceCall) -> None:
        """One call between two events."""
        self._timer.mark(2 * self._queued)
        each.enqueue()
        self._timer.mark(2 * self._queued + 1)
        self._queued += 1

    def times(self) -> list[float]:
        """Microseconds of every queued call, in order."""
        self._stream.wait(self._limit_s)
        queued, self._queued = self._queued, 0
        return [self._timer.between(2 * i, 2 * i + 1) for i in range(queued)]

    def close(self) -> None:
        if self._stream.usable():
            self._timer.close()


def rough_us(clockwork: Clockwork, brackets: Brackets, calls: Sequence[DeviceCall]) -> float:
    """A rough time of one call, the second of two; every call is run, so that its code is loaded."""
    for first in range(0, len(calls), AT_ONCE):
        for each in calls[first : first + AT_ONCE]:
            brackets.call(each)
        brackets.times()
    clockwork.hold()
    brackets.call(calls[0])
    brackets.call(calls[-1])
    clockwork.release()
    return brackets.times()[-1]

"""`isolated-cold`: one call alone on a clean, cold cache. For the latency of a call that comes out of the blue.

Before every timed call, in this order: an untimed call on the spare (last) slot, so that its code is warm; lines marked
as persisting made ordinary; a flush that *reads* three times the L2, so that nothing is dirty (a flush that writes
leaves tens of megabytes to be written back under the timed call: 12 % at 34 us on an H200). Then events round the call.

The bracket of an empty kernel (`bracket_us`, about 2.8 us on an H200) is recorded and not subtracted: short calls show
all of it, long ones hide it, so a subtraction would make some of them faster than they are.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from evo.fitness.cuda import clockwork as parts
from evo.fitness.cuda.clockwork import Clockwork
from evo.fitness.cuda.launch import DeviceCall, LaunchCall
from evo.fitness.cuda.protocols.brackets import Brackets, rough_us

CALLS = 8  # timed ones in a sample, at least where there are so many slots
_EMPTY = 5


class IsolatedCold:
    """Every call but the last is timed once a sample, each with an output of its own; the last is the spare."""

    protocol = "isolated-cold"
    method = "events"

    def __init__(self, clockwork: Clockwork, calls: Sequence[DeviceCall], estimate_us: float) -> None:
        self._clockwork = clockwork
        self._timed, self._spare = tuple(calls[:-1] or calls), calls[-1]
        self._brackets = Brackets(clockwork, estimate_us)
        try:
            rough_us(clockwork, self._brackets, calls)
            empty = LaunchCall([clockwork.empty])
            self._bracket_us = statistics.median(self._isolated(empty, empty) for _ in range(_EMPTY))
        except BaseException:
            self.close()
            raise

    @property
    def readings(self) -> Mapping[str, float]:
        return {"bracket_us": self._bracket_us}

    def sample(self) -> float:
        """The median of the calls, microseconds."""
        return statistics.median(self._isolated(each, self._spare) for each in self._timed)

    def close(self) -> None:
        self._brackets.close()

    def _isolated(self, each: DeviceCall, spare: DeviceCall) -> float:
        spare.enqueue()
        if parts.RESET_PERSISTING:
            self._clockwork.forget_persisting()
        self._clockwork.read_flush()
        self._clockwork.hold()  # so that a library's host time is not in the bracket
        self._brackets.call(each)
        self._clockwork.release()
        return self._brackets.times()[0]

"""The CPU target's clock protocol: warm blocks of calls, taken again when the scheduler interfered."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

from evo.records import Status
from evo.target import Rejected

LEAST_US = 200.0
_CALIBRATED_US = 1.2 * LEAST_US
LONG_US = 5000.0  # a block so long averages over what disturbs it
BLOCKS = 5  # a sample's; one that a neighbour disturbed does not count
_TRIES = 5
_MOST_CALLS = 1 << 22  # an empty call takes tens of nanoseconds
_CLEAN = 0.001  # share of a block that its threads may have waited for a core


class WarmStopwatch:
    """Blocks of calls back to back, caches as the last call left them, at least 200 us a block.

    `block(first, count)` makes `count` calls from number `first` of `slots`, going round. It says how many ns that took
    and for how many of them a thread that takes part was ready but had no core. A block with such a wait measures other
    processes: it is taken again, and after five of them the shortest counts. A candidate cannot bring this about, as it
    makes no system calls.
    """

    protocol = "warm"
    method = "block"
    readings: Mapping[str, float] = {}

    def __init__(self, block: Callable[[int, int], tuple[int, int]], slots: int, estimate_us: float) -> None:
        self._block, self._slots, self._next = block, slots, 0
        for slot in range(slots):  # every page touched once by who will use it
            block(slot, 1)
        self._count = max(slots, math.ceil(LEAST_US / max(estimate_us, 0.05)))  # every slot's output is checked
        while (took_us := min(self._take() for _ in range(3))) < _CALIBRATED_US:
            self._count = math.ceil(self._count * min(8.0, 1.25 * _CALIBRATED_US / max(took_us, 1.0)))
            if self._count > _MOST_CALLS:
                raise Rejected(
                    Status.IMPLAUSIBLE, f"{self._count:,} calls in less than {_CALIBRATED_US:g} us: none can be so fast"
                )

    def sample(self) -> float:
        """The median of a few blocks, after an untimed one: what ran before has left the caches cold."""
        first = self._take()
        blocks = BLOCKS if first < LONG_US else 1
        return statistics.median(self._take() for _ in range(blocks)) / self._count

    def close(self) -> None:
        """Nothing is held."""

    def _take(self) -> float:
        shortest_ns = 0
        for _ in range(_TRIES):
            took_ns, waited_ns = self._block(self._next, self._count)
            shortest_ns = min(shortest_ns or took_ns, took_ns)
            if waited_ns <= _CLEAN * took_ns:
                shortest_ns = took_ns
                break
        self._next = (self._next + self._count) % self._slots
        return shortest_ns / 1000

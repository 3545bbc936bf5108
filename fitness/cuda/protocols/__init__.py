"""The CUDA clock's protocols, by name; the first is the default."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evo.fitness.cuda.clockwork import Clockwork
from evo.fitness.cuda.launch import DeviceCall
from evo.fitness.cuda.protocols.flashkda import FlashKdaBench
from evo.fitness.cuda.protocols.isolated import CALLS, IsolatedCold
from evo.fitness.cuda.protocols.rotation import Rotation, calls_of, lengths_for
from evo.fitness.cuda.protocols.sustained import Sustained
from evo.fitness.cuda.protocols.triton import TritonBench
from evo.fitness.cuda.protocols.warm import Warm
from evo.target import Stopwatch

STOPWATCHES: dict[str, Callable[[Clockwork, Sequence[DeviceCall], float], Stopwatch]] = {
    watch.protocol: watch for watch in (Rotation, IsolatedCold, Warm, Sustained, TritonBench, FlashKdaBench)
}


def lanes_for(protocol: str, estimate_us: float) -> int:
    """Calls of a sample that want an output of their own; 0 where they repeat on the slots that there are."""
    if protocol in (Rotation.protocol, Sustained.protocol):
        return calls_of(lengths_for(estimate_us))
    return CALLS + 1 if protocol == IsolatedCold.protocol else 0


__all__ = ["STOPWATCHES", "lanes_for"]

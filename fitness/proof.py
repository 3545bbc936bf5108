"""Is the device as good as new? Proved with evo's own kernels and answers known beforehand, before a process uses it.

Every worker process begins with it: the one before may have died of a candidate that crashed it, hung or ate it up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from evo.fitness.compare import deviation
from evo.operator import Fill
from evo.records import Status
from evo.target import BufferSpec, Machine, Rejected

ELEMENTS = 1 << 20  # 4 MiB a buffer
FREE_SHARE = 0.9  # of the memory that was free before anything ran
FREE_WAIT_S = 5.0  # a dead process gives its memory back after a while


@runtime_checkable
class Memory(Protocol):
    """A machine that can tell how much of its memory is free."""

    def free_bytes(self) -> int: ...


def prove(machine: Machine, free_bytes: int = 0, sleep: Callable[[float], None] = time.sleep) -> int:
    """Free device memory in bytes (0: this machine cannot tell). `free_bytes`: how much there was at the first proof.

    Raises a fatal `Rejected(EVALUATOR_ERROR)` when the device gives a wrong answer, fails, or has lost its memory.
    """
    try:
        free = _memory(machine, free_bytes, sleep)
        _answers(machine)
    except Rejected as error:
        if error.status is Status.EVALUATOR_ERROR and error.fatal:
            raise
        raise _failed(f"{error.status}: {error.message}") from error
    return free


def _memory(machine: Machine, expected: int, sleep: Callable[[float], None]) -> int:
    if not isinstance(machine, Memory):
        return 0
    until, free = time.monotonic() + FREE_WAIT_S, machine.free_bytes()
    while free < FREE_SHARE * expected and time.monotonic() < until:
        sleep(0.2)
        free = machine.free_bytes()
    if free < FREE_SHARE * expected:
        raise _failed(f"{free / 2**30:.1f} GiB of its memory are free, {expected / 2**30:.1f} GiB were when it began")
    return free


def _answers(machine: Machine) -> None:
    """Copies, fills, digests, guard bands and comparisons, each held against what NumPy says."""
    spec = BufferSpec("proof", "fp32", (1024, ELEMENTS // 1024), "output")
    first, second = machine.allocate([spec, spec])
    truth = np.random.default_rng(20).standard_normal(spec.shape, dtype=np.float32)
    other = truth.copy()
    other[-1, -1] += 1.0
    machine.guard([first, second], 3)
    machine.fill(first, truth, 0)
    machine.fill(second, other, 0)
    _expect("a copy comes back changed", np.array_equal(machine.read(first), truth))
    _expect("one element makes no difference to a digest", machine.digest(first, 5) != machine.digest(second, 5))
    found, known = machine.compare(second, first), deviation(other, truth.astype(np.float64))
    _expect("a comparison finds another element", found.index == known.index == truth.size - 1)
    _expect("a comparison finds another error", abs(found.rms - known.rms) <= 1e-3 * known.rms)
    machine.fill(second, truth, 0)
    _expect("equal contents have unequal digests", machine.digest(first, 5) == machine.digest(second, 5))
    _expect("equal contents are found to differ", machine.compare(first, second).rms == 0.0)
    machine.fill(first, Fill("constant", a=0.75), 1)
    _expect("a fill writes something else", bool(np.all(machine.read(first) == np.float32(0.75))))
    machine.zero(second)
    _expect("zeroed memory is not zero", machine.is_zero(second) and not machine.is_zero(first))
    _expect("guard bands change by themselves", machine.breach([first, second], 3) == "")


def _expect(fault: str, holds: bool) -> None:
    if not holds:
        raise _failed(fault)


def _failed(why: str) -> Rejected:
    return Rejected(Status.EVALUATOR_ERROR, f"the device failed its proof: {why}", fatal=True)

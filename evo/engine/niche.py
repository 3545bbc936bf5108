"""The niche of a candidate by its behaviour: how it loads, how it synchronises, what it needs of the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evo.operator import Operator
from evo.records import Build, Candidate, Kernel

LOADS = (("tma", ("UTMALDG", "UBLKCP")), ("async", ("LDGSTS",)), ("direct", ("LDG",)))  # the first that is there
SYNCHRONISATIONS = (("cluster", ("UCGABAR",)), ("block", ("BAR",)), ("warp", ("SHFL", "REDUX")))
REGISTERS = (32, 64, 128, 255)
SHARED_KIB = (0, 48, 100, 228)


def niche(operator: Operator, candidate: Candidate, builds: Sequence[Build]) -> str:
    """What the operator declares; else species, load path, synchronisation and resource class."""
    kernels = [kernel for build in builds for kernel in build.kernels]
    declared = operator.niche(candidate.species, candidate.values, kernels)
    if declared:
        return declared
    opcodes = [opcode for kernel in kernels for opcode in kernel.opcodes]
    load = _first(LOADS, opcodes) or str(candidate.values.get("LOAD", ""))
    return " ".join(filter(None, (candidate.species, load, _first(SYNCHRONISATIONS, opcodes), _resources(kernels))))


def _first(classes: Iterable[tuple[str, tuple[str, ...]]], opcodes: Sequence[str]) -> str:
    return next((name for name, starts in classes if any(opcode.startswith(starts) for opcode in opcodes)), "")


def _resources(kernels: Sequence[Kernel]) -> str:
    registers = max((kernel.registers for kernel in kernels), default=0)
    if not registers:
        return ""
    shared = max(kernel.shared_bytes for kernel in kernels)
    spills = "+spills" if any(kernel.spill_bytes for kernel in kernels) else ""
    most = next((limit for limit in REGISTERS if registers <= limit), REGISTERS[-1])
    kib = next((limit for limit in SHARED_KIB if shared <= limit << 10), SHARED_KIB[-1])
    return f"r{most}{spills} s{kib}"

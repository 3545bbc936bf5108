"""Is a launch plan possible with this machine code on this device? Answered without a device."""

from __future__ import annotations

from math import prod

from evo.dtypes import SCALARS
from evo.plan import Argument, Launch, LaunchPlan
from evo.records import Build, DeviceFacts, Diagnosis, Kernel, Stage, Status

POINTER, MAP = 8, 128  # bytes of a pointer and of a CUtensorMap
MAX_CLUSTER = 16
MAX_LOCAL = 512 << 10  # bytes of local memory that a thread can have, compute capability 5.0 to 12.x (CUDA guide)
UNKNOWN_STACK = 0xFFFF_FFFF  # what the assembler says of recursion


def inspect(build: Build, plan: LaunchPlan, facts: DeviceFacts) -> tuple[Status, Diagnosis | None]:
    """The first launch that cannot work, or ok."""
    kernels = {kernel.name: kernel for kernel in build.kernels}
    for number, launch in enumerate(plan.launches, 1):
        where = f"launch {number} ({launch.kernel})"
        kernel = kernels.get(launch.kernel)
        if kernel is None:
            names = ", ".join(sorted(kernels)) or "none"
            return _refuse(Status.INVALID_GENOME, f"{where}: the code has no kernel of that name; it has: {names}")
        for status, problem in (_arguments(launch, kernel, facts), _resources(launch, kernel, facts)):
            if problem:
                return _refuse(status, f"{where}: {problem}")
    return Status.OK, None


def _refuse(status: Status, message: str) -> tuple[Status, Diagnosis]:
    return status, Diagnosis(Stage.INSPECT, message)


def _size(argument: Argument) -> int:
    if argument.kind == "scalar":
        return SCALARS[argument.width]
    return MAP if argument.kind == "map" else POINTER


def _arguments(launch: Launch, kernel: Kernel, facts: DeviceFacts) -> tuple[Status, str]:
    sizes = tuple(_size(argument) for argument in launch.args)
    if facts.target == "cpu":
        return Status.OK, ""  # an object file does not hold signatures
    if len(sizes) != len(kernel.parameters):
        return Status.INVALID_GENOME, f"{len(sizes)} arguments given, the kernel takes {len(kernel.parameters)}"
    for place, (given, wanted) in enumerate(zip(sizes, kernel.parameters, strict=True)):
        if given != wanted:
            name = launch.args[place].name
            return Status.INVALID_GENOME, f"argument {place + 1} ({name}) has {given} bytes, the kernel takes {wanted}"
    return Status.OK, ""


def _resources(launch: Launch, kernel: Kernel, facts: DeviceFacts) -> tuple[Status, str]:
    if facts.target == "cpu":
        return Status.OK, ""
    shared = launch.shared + kernel.shared_bytes
    if shared > facts.smem_block:
        return Status.RESOURCE_LIMIT, f"{shared} bytes of shared memory, a block of {facts.name} has {facts.smem_block}"
    threads = prod(launch.block)
    if kernel.max_threads and threads > kernel.max_threads:
        return Status.RESOURCE_LIMIT, f"{threads} threads a block, the kernel is bounded to {kernel.max_threads}"
    if kernel.registers * threads > 65536:
        return Status.RESOURCE_LIMIT, f"{kernel.registers} registers x {threads} threads exceed 65536 registers an SM"
    if MAX_LOCAL < kernel.stack_bytes < UNKNOWN_STACK:
        return Status.RESOURCE_LIMIT, f"{kernel.stack_bytes} bytes of local memory a thread; {MAX_LOCAL} is the most"
    if prod(launch.cluster) > MAX_CLUSTER:
        return Status.RESOURCE_LIMIT, f"a cluster of {prod(launch.cluster)} blocks, at most {MAX_CLUSTER} are possible"
    return Status.OK, ""

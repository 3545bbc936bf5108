"""Loading machine code and verifying a launch plan against it before anything runs."""

from __future__ import annotations

import math
from typing import Any

from cuda.bindings import driver

from evo.dtypes import SCALARS
from evo.fitness.cuda.driver import SUCCESS, Stream, call, failure
from evo.fitness.cuda.launch import configuration
from evo.fitness.cuda.tensormap import DESCRIPTOR_BYTES
from evo.plan import Argument, Launch, LaunchPlan
from evo.records import Build, DeviceFacts, Status
from evo.target import Rejected

_GRID = (2**31 - 1, 65535, 65535)
_BLOCK = (1024, 1024, 64)
_PORTABLE_CLUSTER, _LARGEST_CLUSTER = 8, 16

_Attribute = driver.CUfunction_attribute


class Module:
    """Machine code on the device. Raises `Rejected(LAUNCH_ERROR)` when the driver refuses it."""

    def __init__(self, code: bytes) -> None:
        self._code = code  # the driver reads the image through this object
        self._handle = call(driver.cuModuleLoadData, code)

    def function(self, name: str) -> Any | None:
        """The kernel's handle, loaded; None where the module has no such kernel."""
        result, function = driver.cuModuleGetFunction(self._handle, name.encode())
        if result == driver.CUresult.CUDA_ERROR_NOT_FOUND:
            return None
        if result != SUCCESS:
            raise failure(result, f"looking up {name}")
        call(driver.cuFuncLoad, function)  # lazy loading would otherwise fall into the first launch or a capture
        return function

    def close(self) -> None:
        call(driver.cuModuleUnload, self._handle)


class CudaProgram:
    """A module and its plan; `functions` by kernel name."""

    def __init__(self, module: Module, plan: LaunchPlan, functions: dict[str, Any], stream: Stream) -> None:
        self._module = module
        self._stream = stream
        self._plan = plan
        self.functions = functions

    @property
    def plan(self) -> LaunchPlan:
        return self._plan

    def close(self) -> None:
        if self._stream.usable():
            self._module.close()


def load(build: Build, code: bytes, plan: LaunchPlan, facts: DeviceFacts, stream: Stream) -> CudaProgram:
    """The program, ready to bind. Raises `Rejected` (INVALID_GENOME, RESOURCE_LIMIT, LAUNCH_ERROR)."""
    module = Module(code)
    try:
        functions: dict[str, Any] = {}
        for launch in plan.launches:
            if launch.kernel not in functions:
                functions[launch.kernel] = _find(module, launch.kernel, build)
        for launch in plan.launches:
            _verify_arguments(launch, parameter_sizes(functions[launch.kernel]))
            _verify_geometry(launch)
        for launch in plan.launches:
            _raise_limits(launch, functions[launch.kernel], plan, facts)
        for launch in plan.launches:
            _verify_residency(launch, functions[launch.kernel], facts, stream)
    except BaseException:
        module.close()
        raise
    return CudaProgram(module, plan, functions, stream)


def parameter_sizes(function: Any) -> tuple[int, ...]:
    """Bytes of each parameter, as the machine code declares them."""
    sizes: list[int] = []
    while True:
        result, *layout = driver.cuFuncGetParamInfo(function, len(sizes))
        if result == driver.CUresult.CUDA_ERROR_INVALID_VALUE:  # how the driver says that there is no such parameter
            return tuple(sizes)
        if result != SUCCESS:
            raise failure(result, "cuFuncGetParamInfo")
        sizes.append(int(layout[1]))


def _find(module: Module, name: str, build: Build) -> Any:
    function = module.function(name)
    if function is None:
        known = ", ".join(kernel.name for kernel in build.kernels) or "none"
        raise Rejected(Status.INVALID_GENOME, f"the machine code has no kernel {name!r}", detail=f"it has: {known}")
    return function


def _size_of(argument: Argument) -> int:
    if argument.kind == "scalar":
        return SCALARS[argument.width]
    return DESCRIPTOR_BYTES if argument.kind == "map" else 8


def _verify_arguments(launch: Launch, sizes: tuple[int, ...]) -> None:
    given = tuple(_size_of(argument) for argument in launch.args)
    if len(given) != len(sizes):
        raise Rejected(
            Status.INVALID_GENOME,
            f"{launch.kernel} takes {len(sizes)} arguments, the launch plan passes {len(given)}",
            detail=f"sizes in bytes: {sizes} against {given}",
        )
    for index, (argument, ours, theirs) in enumerate(zip(launch.args, given, sizes, strict=True)):
        if ours != theirs:
            raise Rejected(
                Status.INVALID_GENOME,
                f"argument {index} ({argument.name or argument.kind}) of {launch.kernel} has {theirs} bytes, "
                f"the launch plan passes {ours}",
            )


def _verify_geometry(launch: Launch) -> None:
    for name, extents, limits in (("grid", launch.grid, _GRID), ("block", launch.block, _BLOCK)):
        if not all(1 <= extent <= limit for extent, limit in zip(extents, limits, strict=True)):
            raise Rejected(Status.INVALID_GENOME, f"{name} {extents} of {launch.kernel}; CUDA allows 1 to {limits}")
    if any(blocks % size for blocks, size in zip(launch.grid, launch.cluster, strict=True)):
        raise Rejected(
            Status.INVALID_GENOME,
            f"grid {launch.grid} of {launch.kernel} is no multiple of its cluster {launch.cluster}",
        )


def _raise_limits(launch: Launch, function: Any, plan: LaunchPlan, facts: DeviceFacts) -> None:
    """Allows as many threads, as much shared memory and as large a cluster as the plan asks for, or says why not."""
    threads, most = math.prod(launch.block), _attribute(function, _Attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    if threads > most:
        raise Rejected(
            Status.RESOURCE_LIMIT, f"{launch.kernel} with {threads} threads a block; its registers allow {most}"
        )
    static = _attribute(function, _Attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    if static + launch.shared > facts.smem_block:
        raise Rejected(
            Status.RESOURCE_LIMIT,
            f"{launch.kernel} with {static + launch.shared} bytes of shared memory a block; "
            f"{facts.name} has {facts.smem_block}",
        )
    shared = max(other.shared for other in plan.launches if other.kernel == launch.kernel)
    call(
        driver.cuFuncSetAttribute, function, _Attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        min(shared, facts.smem_block - static),
    )  # fmt: skip
    if math.prod(launch.cluster) > _LARGEST_CLUSTER:
        raise Rejected(
            Status.RESOURCE_LIMIT, f"cluster {launch.cluster} of {launch.kernel}; at most {_LARGEST_CLUSTER} blocks"
        )
    if math.prod(launch.cluster) > _PORTABLE_CLUSTER:
        call(driver.cuFuncSetAttribute, function, _Attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)


def _verify_residency(launch: Launch, function: Any, facts: DeviceFacts, stream: Stream) -> None:
    """Blocks that must run at the same time (of a cluster, of a cooperative grid) must fit at the same time."""
    if launch.cluster != (1, 1, 1):
        config = configuration(launch, stream)
        if not call(driver.cuOccupancyMaxActiveClusters, function, config):
            raise Rejected(
                Status.RESOURCE_LIMIT, f"no cluster {launch.cluster} of {launch.kernel} fits {facts.name} at once"
            )
    if launch.cooperative:
        resident = facts.sms * int(
            call(
                driver.cuOccupancyMaxActiveBlocksPerMultiprocessor, function, math.prod(launch.block), launch.shared
            )
        )  # fmt: skip
        if math.prod(launch.grid) > resident:
            raise Rejected(
                Status.RESOURCE_LIMIT,
                f"cooperative grid {launch.grid} of {launch.kernel}; {facts.name} holds {resident} blocks at once",
            )


def _attribute(function: Any, name: Any) -> int:
    return int(call(driver.cuFuncGetAttribute, name, function))

"""Kernel launches with everything resolved beforehand, so that one costs the host a single driver call."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from cuda.bindings import driver

from evo.errors import RunError
from evo.fitness.cuda.arena import DeviceBuffer
from evo.fitness.cuda.driver import SUCCESS, Stream, call, failure
from evo.fitness.cuda.tensormap import encode
from evo.plan import Argument, Launch, LaunchPlan

_SCALARS: dict[str, Any] = {
    "i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float, "f64": ctypes.c_double,
}  # fmt: skip
_Attribute = driver.CUlaunchAttributeID


def configuration(launch: Launch, stream: Stream, *, first: bool = True) -> Any:
    """The driver's launch configuration; its grid counts blocks, as ours does.

    The first launch of a call never overlaps the one before: that would be the previous call's last.
    """
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared
    config.hStream = stream.handle
    attributes = []
    if launch.cluster != (1, 1, 1):
        attribute = driver.CUlaunchAttribute()
        attribute.id = _Attribute.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dimension = attribute.value.clusterDim
        dimension.x, dimension.y, dimension.z = launch.cluster
        attributes.append(attribute)
    if launch.cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id = _Attribute.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    if launch.pdl and not first:
        attribute = driver.CUlaunchAttribute()
        attribute.id = _Attribute.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


class Prepared:
    """One launch: a configuration, a function and its parameters, which it keeps alive."""

    __slots__ = ("_config", "_function", "_kernel", "_parameters", "_pointers", "_table")

    def __init__(self, kernel: str, function: Any, config: Any, parameters: Sequence[Any]) -> None:
        """`parameters` are ctypes objects, one an argument, in order."""
        self._kernel = kernel
        self._function = function
        self._config = config
        self._parameters = tuple(parameters)
        self._pointers = (ctypes.c_void_p * max(1, len(parameters)))(*map(ctypes.addressof, parameters))
        self._table = ctypes.addressof(self._pointers)

    def __call__(self) -> None:
        (result,) = driver.cuLaunchKernelEx(self._config, self._function, self._table, 0)
        if result != SUCCESS:
            raise failure(result, f"launching {self._kernel}")


class DeviceCall(ABC):
    """What `Machine.run` and the stopwatch do with a program or a baseline bound to buffers."""

    buffers: tuple[DeviceBuffer, ...]

    @abstractmethod
    def enqueue(self) -> None:
        """Queues one call on the stream; the part that is timed."""

    @abstractmethod
    def finish(self) -> None:
        """Queues what follows a checked call and is not timed."""

    def live(self) -> None:
        """Raises `RunError` when a later `allocate` has taken the buffers."""
        for buffer in self.buffers:
            buffer.live()


class LaunchCall(DeviceCall):
    """Memsets of scratch that starts at zero, then all launches of a plan."""

    def __init__(
        self, launches: Sequence[Prepared], buffers: Sequence[DeviceBuffer] = (), zeroed: Sequence[DeviceBuffer] = (),
        stream: Stream | None = None,
    ) -> None:  # fmt: skip
        self.buffers = tuple(buffers)
        self._launches = tuple(launches)
        self._zeroed = [(buffer.address, buffer.nbytes) for buffer in zeroed if buffer.nbytes]
        self._stream = stream.handle if stream else 0

    def enqueue(self) -> None:
        for address, nbytes in self._zeroed:
            call(driver.cuMemsetD8Async, address, 0, nbytes, self._stream)
        for launch in self._launches:
            launch()

    def finish(self) -> None:
        """Nothing: kernels write where they are told."""


def bind(
    plan: LaunchPlan, functions: Mapping[str, Any], buffers: Mapping[str, DeviceBuffer], stream: Stream
) -> LaunchCall:
    """A plan bound to buffers by name. Raises `RunError` for a name without a buffer, `Rejected` for a tensor map that
    the device cannot have."""
    maps = {entry.name: encode(entry, _buffer(buffers, entry.tensor)) for entry in plan.tensor_maps}
    launches = [
        Prepared(
            launch.kernel,
            functions[launch.kernel],
            configuration(launch, stream, first=index == 0),
            [_parameter(argument, buffers, maps) for argument in launch.args],
        )
        for index, launch in enumerate(plan.launches)
    ]
    zeroed = [_buffer(buffers, scratch.name) for scratch in plan.scratch if scratch.zero == "each"]
    return LaunchCall(launches, list(buffers.values()), zeroed, stream)


def _parameter(argument: Argument, buffers: Mapping[str, DeviceBuffer], maps: Mapping[str, Any]) -> Any:
    """The argument's bytes as the kernel gets them."""
    if argument.kind == "null":
        return ctypes.c_uint64(0)
    if argument.kind == "map":
        return maps[argument.name]
    if argument.kind == "scalar":
        return _SCALARS[argument.width](argument.value)
    return ctypes.c_uint64(_buffer(buffers, argument.name).given())


def _buffer(buffers: Mapping[str, DeviceBuffer], name: str) -> DeviceBuffer:
    try:
        return buffers[name]
    except KeyError:
        raise RunError(f"no buffer {name!r} for the launch plan", fix=f"bound are {sorted(buffers)}") from None

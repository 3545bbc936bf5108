"""One CUDA device, owned by this process: memory, launches, clock. Single-threaded."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.bindings import driver

from evo.dtypes import ITEMSIZE, numpy_dtype
from evo.errors import RunError, TargetError
from evo.fitness.cuda import program as programs
from evo.fitness.cuda.adopt import AdoptedCall
from evo.fitness.cuda.architectures import find_chip
from evo.fitness.cuda.arena import Arena, DeviceBuffer
from evo.fitness.cuda.clocks import Clocks
from evo.fitness.cuda.clockwork import Clockwork
from evo.fitness.cuda.comparison import Comparison
from evo.fitness.cuda.copying import measure_copy, round_size
from evo.fitness.cuda.devices import versions
from evo.fitness.cuda.driver import RUN_LIMIT_S, Stream, call
from evo.fitness.cuda.launch import DeviceCall, bind
from evo.fitness.cuda.protocols import STOPWATCHES, lanes_for
from evo.fitness.cuda.trusted import Trusted
from evo.fitness.poison import two_places
from evo.fitness.protocols import offered
from evo.operator import Fill
from evo.plan import LaunchPlan
from evo.records import Build, Deviation, DeviceFacts
from evo.target import Buffer, BufferSpec, Call, Program, Rejected, Stopwatch

if TYPE_CHECKING:
    from evo.target import Machine


class CudaMachine:
    """`CudaMachine("cuda:0")`; numbers count as CUDA does. Raises `TargetError` when there is no such device.

    `rng` places buffers; work that runs longer than `run_limit_s` counts as hung.

    Writes (fill, poison, zero, guard) are queued and not waited for; whatever returns a value, and `run`, waits.
    After a fatal `Rejected` only `close` may be called, and the process must end.
    """

    def __init__(self, device: str, *, rng: random.Random | None = None, run_limit_s: float = RUN_LIMIT_S) -> None:
        self._ordinal = _ordinal(device)
        try:
            call(driver.cuInit, 0)
            self._device = call(driver.cuDeviceGet, self._ordinal)
            call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, self._device))
        except (Rejected, RuntimeError) as error:  # RuntimeError: cuda.bindings finds no driver library
            raise TargetError(f"cannot open {device!r}: {error}", fix="`evo targets` lists what there is") from error
        self._clocks = Clocks(_text(call(driver.cuDeviceGetPCIBusId, 64, self._device)))
        self._facts = _read_facts(device, self._device, self._clocks)
        self._stream = Stream(run_limit_s)
        arch = self._facts.target
        self._trusted = Trusted(arch, self._facts.sms, self._stream)
        self._comparison = Comparison(arch, self._stream, self._trusted)
        self.clockwork = Clockwork(self._facts, self._stream, self._trusted, self._clocks.energy_mj)
        self._arena = Arena(rng)
        self._copy_rates: dict[int, float] = {}
        self._open = True

    @property
    def facts(self) -> DeviceFacts:
        return self._facts

    @property
    def protocols(self) -> tuple[str, ...]:
        return tuple(STOPWATCHES)

    def allocate(self, specs: Sequence[BufferSpec]) -> list[Buffer]:
        self._stream.wait()  # nothing that runs may still use the layout before
        return list(self._arena.layout(specs))

    def load(self, build: Build, code: bytes, plan: LaunchPlan) -> Program:
        return programs.load(build, code, plan, self._facts, self._stream)

    def bind(self, program: Program, buffers: Mapping[str, Buffer]) -> Call:
        if not isinstance(program, programs.CudaProgram):
            raise RunError(f"a {type(program).__name__} is no CUDA program", fix="load it on this machine first")
        return bind(program.plan, program.functions, _all_ours(buffers), self._stream)

    def adopt(
        self, run: Callable[[Mapping[str, Any], int], Mapping[str, Any] | None], buffers: Mapping[str, Buffer]
    ) -> Call:
        self._stream.wait()  # a library may use streams of its own: contents must be there
        return AdoptedCall(run, _all_ours(buffers), self._stream, self._ordinal)

    def fill(self, buffer: Buffer, data: Fill | np.ndarray[Any, Any], seed: int) -> None:
        ours = _ours(buffer)
        if isinstance(data, Fill):
            self._trusted.fill(ours, data, seed)
            return
        if data.shape != ours.spec.shape or data.dtype != numpy_dtype(ours.spec.dtype):
            raise RunError(
                f"contents for {ours.spec.name!r} are {data.dtype} {list(data.shape)}; the buffer is "
                f"{ours.spec.dtype} {list(ours.spec.shape)}", fix="give `Operator.inputs` the case's dtype and shape",
            )  # fmt: skip
        if ours.nbytes:
            flat = np.ascontiguousarray(data)
            call(driver.cuMemcpyHtoDAsync, ours.live(), flat.ctypes.data, ours.nbytes, self._stream.handle)

    def poison(self, buffer: Buffer, key: int, scale: float = 1.0) -> None:
        self._trusted.poison(_ours(buffer), key, scale)

    def perturb(self, buffer: Buffer, key: int) -> None:
        ours = _ours(buffer)
        size = ITEMSIZE[ours.spec.dtype]
        if ours.nbytes > size:
            source, target = (ours.live() + size * place for place in two_places(ours.nbytes // size, key))
            call(driver.cuMemcpyDtoDAsync, target, source, size, self._stream.handle)

    def zero(self, buffer: Buffer) -> None:
        ours = _ours(buffer)
        if ours.nbytes:
            call(driver.cuMemsetD8Async, ours.live(), 0, ours.nbytes, self._stream.handle)

    def is_zero(self, *buffers: Buffer) -> bool:
        return self._trusted.is_zero([_ours(buffer) for buffer in buffers])

    def guard(self, buffers: Sequence[Buffer], key: int) -> None:
        self._trusted.guard([_ours(buffer) for buffer in buffers], key)

    def breach(self, buffers: Sequence[Buffer], key: int) -> str:
        return self._trusted.breach([_ours(buffer) for buffer in buffers], key)

    def run(self, call: Call) -> None:
        ours = _our_call(call)
        ours.live()
        ours.enqueue()
        ours.finish()
        self._stream.wait()

    def read(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        ours = _ours(buffer)
        self._stream.wait()  # first: a copy to pageable memory would block on a hung kernel
        host = np.empty(ours.spec.shape, numpy_dtype(ours.spec.dtype))
        if ours.nbytes:
            call(driver.cuMemcpyDtoHAsync, host.ctypes.data, ours.live(), ours.nbytes, self._stream.handle)
            self._stream.wait()
        return host

    def digest(self, buffer: Buffer, key: int) -> int:
        return self.digests([buffer], key)[0]

    def digests(self, buffers: Sequence[Buffer], key: int) -> list[int]:
        return self._trusted.digests([_ours(buffer) for buffer in buffers], key)

    def lanes(self, estimate_us: float, protocol: str = "") -> int:
        return lanes_for(protocol or self.protocols[0], estimate_us)

    def compare(self, actual: Buffer, expected: Buffer, row_floor: float = 0.0) -> Deviation:
        return self._comparison(_ours(actual), _ours(expected), row_floor)

    def stopwatch(self, calls: Sequence[Call], estimate_us: float, protocol: str = "") -> Stopwatch:
        if not calls:
            raise RunError("a stopwatch without calls", fix="give it at least one, one a slot")
        ours = [_our_call(each) for each in calls]
        for each in ours:
            each.live()
        return STOPWATCHES[offered(protocol, self.protocols, self._facts.name)](self.clockwork, ours, estimate_us)

    def tempo(self) -> float:
        return self.clockwork.tempo()

    def clocks(self) -> Mapping[str, float]:
        return self._clocks.read()

    def copy_rate(self, nbytes: int) -> float:
        size = round_size(nbytes)
        if size not in self._copy_rates:
            self._copy_rates[size] = measure_copy(self.clockwork, self._trusted, size)
        return self._copy_rates[size]

    def free_bytes(self) -> int:
        """Memory of the device that no process holds."""
        return int(call(driver.cuMemGetInfo)[0])

    def close(self) -> None:
        """Frees everything in order. After a fault, or while a kernel hangs, only the process's end can."""
        if not self._open:
            return
        self._open = False
        self._clocks.close()
        if not self._stream.usable():
            return
        self._stream.wait()
        self._arena.close()
        self.clockwork.close()
        self._comparison.close()
        self._trusted.close()
        self._stream.close()
        call(driver.cuDevicePrimaryCtxRelease, self._device)


def _ordinal(device: str) -> int:
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number.isdigit():
        raise TargetError(f"{device!r} is no CUDA device", fix='write "cuda:0", "cuda:1", ...')
    return int(number)


def _read_facts(device: str, handle: Any, clocks: Clocks) -> DeviceFacts:
    def attribute(name: str) -> int:
        kind = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(driver.cuDeviceGetAttribute, kind, handle))

    name = _text(call(driver.cuDeviceGetName, 256, handle))
    target = f"sm_{attribute('COMPUTE_CAPABILITY_MAJOR')}{attribute('COMPUTE_CAPABILITY_MINOR')}"
    chip = find_chip(name, target)
    cuda = int(call(driver.cuDriverGetVersion))
    return DeviceFacts(
        id=device,
        name=name,
        target=target,
        sms=attribute("MULTIPROCESSOR_COUNT"),
        smem_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        smem_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        memory_bytes=int(call(driver.cuDeviceTotalMem, handle)),
        peak_bytes_per_s=chip.bytes_per_s if chip else 0.0,
        peak_flops=chip.flops if chip else 0.0,
        versions={
            "driver": clocks.driver_version(), "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}", **versions(),
        },
    )  # fmt: skip


def _ours(buffer: Buffer) -> DeviceBuffer:
    if not isinstance(buffer, DeviceBuffer):
        raise RunError(f"a {type(buffer).__name__} is no buffer of this machine", fix="use what `allocate` returned")
    return buffer


def _all_ours(buffers: Mapping[str, Buffer]) -> dict[str, DeviceBuffer]:
    return {name: _ours(buffer) for name, buffer in buffers.items()}


def _our_call(call: Call) -> DeviceCall:
    if not isinstance(call, DeviceCall):
        raise RunError(f"a {type(call).__name__} is no call of this machine", fix="use what `bind` or `adopt` returned")
    return call


def _text(value: bytes | str) -> str:
    return value.split(b"\0")[0].decode() if isinstance(value, bytes) else value


if TYPE_CHECKING:
    _checked: type[Machine] = CudaMachine

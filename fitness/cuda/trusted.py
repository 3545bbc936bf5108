"""evo's own kernels: compiled at start with NVRTC, launched on the machine's stream.

Nothing here waits except the functions that return a number.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

from evo.errors import RunError
from evo.fitness import poison as patterns
from evo.fitness.cuda.arena import GUARD, DeviceBuffer, Workspace
from evo.fitness.cuda.driver import Stream, call
from evo.fitness.cuda.launch import Prepared, configuration
from evo.fitness.cuda.program import Module
from evo.operator import ROW_KINDS, Fill
from evo.plan import Launch

THREADS = 256
_BLOCKS_A_SM = 32  # several waves, so that the last one's idle part is small
_SLICES = 8  # blocks that share one guard band
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LAWS = {"normal": 0, "uniform": 1, "constant": 2}
_KIND_BITS = 4  # of a row's kind in `Contents.kinds`
# A quarter of the least normal number.
_SUBNORMAL = {"bf16": 2.0**-128, "fp16": 2.0**-16, "fp32": 2.0**-128, "fp64": 2.0**-1024}
_RESULT_BYTES = 64 << 10  # of page-locked memory for what kernels report


class Contents(ctypes.Structure):
    """`struct Contents` of trusted.cu."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("a", "b", "low", "high", "rate", "scale")),
        *((name, ctypes.c_uint64) for name in ("value_seed", "row_seed", "outlier_seed", "count", "columns")),
        ("law", ctypes.c_int),
        *((name, ctypes.c_uint32) for name in ("kind_count", "stride", "shift")),
        ("kinds", ctypes.c_uint64),
        ("subnormal", ctypes.c_double),
    )


class Poison(ctypes.Structure):
    """`struct Poison` of trusted.cu."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("key", "exponent_key", "exponent", "quiet", "huge")),
        *((name, ctypes.c_uint32) for name in ("width", "mantissa", "top", "mode")),
    )


def poison_of(dtype: str, key: int, scale: float) -> Poison:
    """Masks for all the elements of an 8-byte word: exponent bits, the bit that makes a NaN quiet, the largest finite
    exponent."""
    keys, mode = (derive(key, 3), derive(key, 8)), patterns.mode(dtype, key)
    if mode is patterns.Mode.BITS:
        return Poison(*keys, 0, 0, 0, 64, 0, 0, mode)
    width, mantissa, _ = patterns.LAYOUT[dtype]
    ones = sum(1 << place for place in range(0, 64, width))
    exponent = ((1 << (width - 1 - mantissa)) - 1) << mantissa
    quiet, huge = 1 << (mantissa - 1), exponent - (1 << mantissa)
    return Poison(
        *keys, exponent * ones, quiet * ones, huge * ones, width, mantissa, patterns.top(dtype, scale, key), mode
    )


def mix(x: int) -> int:
    """The finaliser of splitmix64, as in elements.h."""
    x &= _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def derive(seed: int, purpose: int) -> int:
    """A 64-bit seed for one purpose, unrelated to those for others."""
    return mix(mix(seed) + (purpose + 1) * _GOLDEN)


def pack_kinds(kinds: Sequence[str]) -> int:
    """Row kinds by their place in `ROW_KINDS`, the first in the lowest bits. Raises `RunError` for more than fit."""
    if len(kinds) > 64 // _KIND_BITS:
        raise RunError(f"{len(kinds)} kinds of rows", fix=f"a fill deals at most {64 // _KIND_BITS}")
    return sum(ROW_KINDS.index(kind) << _KIND_BITS * place for place, kind in enumerate(kinds))


def compile_kernels(name: str, arch: str, defines: Mapping[str, str] | None = None, log: Any = None) -> bytes:
    """The cubin of a source file of this folder; needs no driver. `log` (with `write`) gets ptxas' resource report."""
    from cuda.core import Program, ProgramOptions

    path = Path(__file__).with_name(name)
    options = ProgramOptions(
        name=name,
        arch=arch,
        std="c++17",
        include_path=str(path.parent),
        define_macro=list((defines or {}).items()) or None,
        ptxas_options="-v" if log is not None else None,
    )
    program = Program(path.read_text(), "c++", options)
    try:
        built = program.compile("cubin", logs=log)
    finally:
        program.close()
    return bytes(built.code)


class Kernels:
    """The functions of one compiled source file, launched by name."""

    def __init__(self, code: bytes, stream: Stream) -> None:
        self._module = Module(code)
        self._stream = stream
        self._functions: dict[str, Any] = {}

    def prepare(self, name: str, grid: tuple[int, int, int], *parameters: Any, threads: int = THREADS) -> Prepared:
        """A launch of `name`; `parameters` are ctypes objects."""
        if name not in self._functions:
            function = self._module.function(name)
            if function is None:
                raise RunError(f"evo's own kernel {name!r} is missing", fix="reinstall evo-kernels")
            self._functions[name] = function
        launch = Launch(name, grid, (threads, 1, 1), ())
        return Prepared(name, self._functions[name], configuration(launch, self._stream), parameters)

    def close(self) -> None:
        self._module.close()


class Trusted:
    """Contents, poison, guard bands and digests of device buffers."""

    def __init__(self, arch: str, sms: int, stream: Stream) -> None:
        self._kernels = Kernels(compile_kernels("trusted.cu", arch), stream)
        self._stream = stream
        self._sms = sms
        self._workspace = Workspace()
        self._pinned = int(call(driver.cuMemAllocHost, _RESULT_BYTES))

    def fill(self, buffer: DeviceBuffer, data: Fill, seed: int) -> None:
        """Every element is a function of its index and the seed alone; integers are rounded and saturate."""
        rows, columns = buffer.rows
        contents = Contents(
            data.a, data.b, *data.row_log2, data.outlier_rate, data.outlier_scale,
            derive(seed, 0), derive(seed, 1), derive(seed, 2), rows * columns, columns, _LAWS[data.law],
            len(data.kinds), *(data.deal(seed) if data.kinds else (0, 0)), pack_kinds(data.kinds),
            _SUBNORMAL.get(buffer.spec.dtype, 0.0),
        )  # fmt: skip
        self._launch(f"fill_{buffer.spec.dtype}", rows * columns, ctypes.c_uint64(buffer.live()), contents)

    def poison(self, buffer: DeviceBuffer, key: int, scale: float) -> None:
        """See `evo.fitness.poison`."""
        place = map(ctypes.c_uint64, (buffer.live(), buffer.nbytes))
        self._launch("poison", -(-buffer.nbytes // 8), *place, poison_of(buffer.spec.dtype, key, scale))

    def is_zero(self, buffers: Sequence[DeviceBuffer]) -> bool:
        found = self._zeroed_result()
        for buffer in buffers:
            words = (buffer.live(), buffer.nbytes, found)
            self._launch("find_nonzero", -(-buffer.nbytes // 16), *map(ctypes.c_uint64, words))
        return self.fetch(found, 4) == bytes(4)

    def digests(self, buffers: Sequence[DeviceBuffer], key: int) -> list[int]:
        """All of them queued, then waited for once."""
        totals = self._workspace.get(8 * len(buffers))
        call(driver.cuMemsetD8Async, totals, 0, 8 * len(buffers), self._stream.handle)
        for number, buffer in enumerate(buffers):
            words = (buffer.live(), buffer.nbytes, derive(key, 4), derive(key, 5), totals + 8 * number)
            self._launch("digest", -(-buffer.nbytes // 16), *map(ctypes.c_uint64, words))
        values = struct.unpack(f"<{len(buffers)}Q", self.fetch(totals, 8 * len(buffers)))
        return [mix(v + derive(key, 6) + b.nbytes) for v, b in zip(values, buffers, strict=True)]

    def guard(self, buffers: Sequence[DeviceBuffer], key: int) -> None:
        if buffers:
            bands, _ = self._bands(buffers)
            grid = (2 * len(buffers), _SLICES, 1)
            self._kernels.prepare("guard_write", grid, ctypes.c_uint64(bands), ctypes.c_uint64(derive(key, 7)))()

    def breach(self, buffers: Sequence[DeviceBuffer], key: int) -> str:
        """ "" or which buffer was overrun, on which side and how far from it."""
        if not buffers:
            return ""
        bands, first = self._bands(buffers)
        call(driver.cuMemsetD8Async, first, 0xFF, 8, self._stream.handle)
        words = (bands, derive(key, 7), first)
        self._kernels.prepare("guard_check", (2 * len(buffers), _SLICES, 1), *map(ctypes.c_uint64, words))()
        (found,) = struct.unpack("<Q", self.fetch(first, 8))
        if found == _MASK:
            return ""
        band, distance = divmod(int(found), 1 << 40)
        spec = buffers[band // 2].spec
        where = "before its start" if band % 2 == 0 else "past its end"
        return (
            f"{spec.role} {spec.name!r} ({spec.dtype} {list(spec.shape)}): byte {distance + 1} {where} was overwritten"
        )

    def copy(self, source: int, target: int, nbytes: int) -> Prepared:
        """A plain copy as one launch; `nbytes` is a multiple of 16, both addresses are 16-byte aligned."""
        count = nbytes // 16
        steps = 4 if count >= 4 * THREADS * _BLOCKS_A_SM * self._sms else 1  # few bytes: rather more blocks
        words = map(ctypes.c_uint64, (source, target, count))
        return self._kernels.prepare("copy", (-(-count // (steps * THREADS)), 1, 1), *words, ctypes.c_uint32(steps))

    def gate(self, opened: int, ticket: ctypes.c_uint64, microseconds: float) -> Prepared:
        """Holds the stream until the word at `opened` equals the ticket, so that what is queued behind it starts
        together; at most so long."""
        words = (ctypes.c_uint64(opened), ticket, ctypes.c_uint64(int(microseconds * 1e3)))
        return self._kernels.prepare("gate", (1, 1, 1), *words, threads=1)

    def null(self, blocks: int = 1) -> Prepared:
        return self._kernels.prepare("null_kernel", (blocks, 1, 1))

    def fetch(self, address: int, nbytes: int) -> bytes:
        """Waits for the stream and reads device memory."""
        if nbytes > _RESULT_BYTES:
            raise RunError(f"{nbytes} bytes of results; at most {_RESULT_BYTES} are fetched at a time")
        call(driver.cuMemcpyDtoHAsync, self._pinned, address, nbytes, self._stream.handle)
        self._stream.wait()
        return ctypes.string_at(self._pinned, nbytes)

    def close(self) -> None:
        call(driver.cuMemFreeHost, self._pinned)
        self._workspace.close()
        self._kernels.close()

    def _launch(self, name: str, work: int, *parameters: Any) -> None:
        """Enough blocks for `work` threads, at most some waves: threads then take several steps."""
        if work:
            blocks = min(-(-work // THREADS), self._sms * _BLOCKS_A_SM)
            self._kernels.prepare(name, (blocks, 1, 1), *parameters)()

    def _zeroed_result(self) -> int:
        address = self._workspace.get(8)
        call(driver.cuMemsetD8Async, address, 0, 8, self._stream.handle)
        return address

    def _bands(self, buffers: Sequence[DeviceBuffer]) -> tuple[int, int]:
        """Device addresses of the table of bands (two a buffer) and of a result of 8 bytes."""
        starts = np.array([buffer.live() for buffer in buffers], np.uint64)
        ends = starts + np.array([buffer.nbytes for buffer in buffers], np.uint64)
        table = np.empty((len(buffers), 2, 3), np.uint64)
        table[:, 0, 0], table[:, 1, 0] = starts - np.uint64(GUARD), ends
        table[:, 0, 1], table[:, 1, 1] = GUARD, [buffer.after for buffer in buffers]
        table[:, 0, 2], table[:, 1, 2] = 1, 0
        address = self._workspace.get(table.nbytes + 8)
        call(driver.cuMemcpyHtoDAsync, address, table.ctypes.data, table.nbytes, self._stream.handle)
        return address, address + table.nbytes

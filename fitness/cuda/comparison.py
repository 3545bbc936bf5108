"""`Deviation` of one device tensor from another, by the kernels of compare.cu."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver

from evo.dtypes import ITEMSIZE, numpy_dtype
from evo.errors import RunError
from evo.fitness.cuda.arena import DeviceBuffer, Workspace
from evo.fitness.cuda.driver import Stream, call
from evo.fitness.cuda.trusted import THREADS, Kernels, Trusted, compile_kernels
from evo.records import Deviation

ELEMENTS = {
    "bf16": "bf16", "fp16": "fp16", "fp32": "float", "fp64": "double", "u8": "unsigned char", "i8": "signed char",
    "i32": "int", "u32": "unsigned", "i64": "long long", "u64": "unsigned long long",
}  # fmt: skip
_SHORT_ROW = 2048  # elements up to which a warp takes a whole row
_TILES = 4096  # blocks that keep a device busy
_LEAST_SEGMENT = 4096  # elements: shorter ones cost more in start-up than they gain
_SUMMARIES = 264  # blocks of the last pass
_MOST_TILES = 1 << 20  # of a part: four lists of 8 bytes a tile are kept

_SUMMARY = np.dtype(
    [("squares", "f8"), ("energy", "f8"), ("row", "f8"), ("worst", "f8"), ("index", "u8")]
)  # `struct Summary`


class Shape(ctypes.Structure):
    """`struct Shape` of compare.cu."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("rows", "columns", "segments", "length")),
        ("lanes", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class Tiling:
    """How rows are cut: `segments` a row of `length` elements, each the work of `lanes` threads."""

    rows: int
    columns: int
    segments: int
    length: int
    lanes: int

    @property
    def tiles(self) -> int:
        return self.rows * self.segments

    @property
    def blocks(self) -> int:
        return -(-self.tiles // (THREADS // self.lanes))

    @property
    def shape(self) -> Shape:
        return Shape(self.rows, self.columns, self.segments, self.length, self.lanes)


def tile(rows: int, columns: int) -> Tiling:
    """A warp per short row, a block per long row; long rows that are few are cut into segments."""
    if columns <= _SHORT_ROW:
        return Tiling(rows, columns, 1, columns, 32)
    wanted = min(-(-_TILES // rows), -(-columns // _LEAST_SEGMENT))
    length = -(-columns // (8 * wanted)) * 8  # whole packs of elements
    return Tiling(rows, columns, -(-columns // length), length, THREADS)


def chunks(rows: int, columns: int) -> Iterator[tuple[int, Tiling]]:
    """(first row, tiling) of parts whose lists take at most 32 MiB, however many rows there are."""
    for first in range(0, rows, _MOST_TILES):
        yield first, tile(min(_MOST_TILES, rows - first), columns)


class Comparison:
    """Keeps the compiled kernels, one module per pair of element types."""

    def __init__(self, arch: str, stream: Stream, trusted: Trusted) -> None:
        self._arch = arch
        self._stream = stream
        self._trusted = trusted
        self._modules: dict[tuple[str, str], Kernels] = {}
        self._workspace = Workspace()

    def __call__(self, actual: DeviceBuffer, expected: DeviceBuffer, row_floor: float = 0.0) -> Deviation:
        """See `Deviation`. Equal non-finite elements (NaN and NaN, or the same infinity) count as equal. Raises
        `RunError` where the shapes differ."""
        if actual.spec.shape != expected.spec.shape:
            raise RunError(
                f"comparing {actual.spec.name!r} {list(actual.spec.shape)} with "
                f"{expected.spec.name!r} {list(expected.spec.shape)}", fix="compare tensors of one shape",
            )  # fmt: skip
        rows, columns = actual.rows
        if rows * columns == 0:
            return Deviation(0.0, 0.0)
        parts = self._parts(actual, expected, 0.0)
        if row_floor:
            least = row_floor * math.sqrt(float(parts["energy"].sum()) / (rows * columns))
            parts = self._parts(actual, expected, least)
        squares, energy = float(parts["squares"].sum()), float(parts["energy"].sum())
        worst = parts[np.lexsort((parts["index"], -parts["worst"]))[0]]
        index = int(worst["index"])
        return Deviation(
            rms=0.0 if squares == 0 else _root_ratio(squares, energy),
            max=float(worst["worst"]),
            row=float(parts["row"].max()),
            index=index,
            got=self._element(actual, index),
            expected=self._element(expected, index),
            scale=math.sqrt(energy / (rows * columns)),
        )

    def close(self) -> None:
        for kernels in self._modules.values():
            kernels.close()
        self._workspace.close()

    def _parts(self, actual: DeviceBuffer, expected: DeviceBuffer, least: float) -> np.ndarray[Any, Any]:
        """Summaries of all rows, each counted with an RMS of `least` or more."""
        return np.concatenate([self._summaries(actual, expected, least, *each) for each in chunks(*actual.rows)])

    def _summaries(
        self, actual: DeviceBuffer, expected: DeviceBuffer, least: float, first: int, tiling: Tiling
    ) -> np.ndarray[Any, Any]:
        """The three passes over the rows from `first` on. What the workspace held is wiped: it tells of the truth."""
        kernels = self._kernels(actual.spec.dtype, expected.spec.dtype)
        lists = 8 * tiling.tiles  # bytes of one list of a double or an index a tile
        count = min(_SUMMARIES, -(-tiling.rows // (THREADS // 32)))
        start = self._workspace.get(4 * lists + count * _SUMMARY.itemsize)
        skipped = first * tiling.columns
        out, truth = (
            ctypes.c_uint64(buffer.live() + skipped * ITEMSIZE[buffer.spec.dtype]) for buffer in (actual, expected)
        )
        energy, squares, worst, where, summaries = (ctypes.c_uint64(start + i * lists) for i in range(5))
        grid = (tiling.blocks, 1, 1)
        kernels.prepare("row_energy", grid, truth, tiling.shape, energy)()
        bound = ctypes.c_double(least)
        kernels.prepare("row_difference", grid, out, truth, tiling.shape, bound, energy, squares, worst, where)()
        kernels.prepare("summarise", (count, 1, 1), tiling.shape, bound, energy, squares, worst, where, summaries)()
        found = np.frombuffer(self._trusted.fetch(summaries.value, count * _SUMMARY.itemsize), _SUMMARY).copy()
        call(driver.cuMemsetD8Async, start, 0, 4 * lists + found.nbytes, self._stream.handle)
        found["index"] += np.uint64(skipped)
        return found

    def _kernels(self, actual: str, expected: str) -> Kernels:
        pair = (actual, expected)
        if pair not in self._modules:
            code = compile_kernels("compare.cu", self._arch, definitions(actual, expected))
            self._modules[pair] = Kernels(code, self._stream)
        return self._modules[pair]

    def _element(self, buffer: DeviceBuffer, index: int) -> float:
        kind = numpy_dtype(buffer.spec.dtype)
        data = self._trusted.fetch(buffer.live() + index * kind.itemsize, kind.itemsize)
        return float(np.frombuffer(data, kind)[0])


def definitions(actual: str, expected: str) -> dict[str, str]:
    """Macros that compare.cu is compiled with for two element types."""
    return {"ACTUAL": ELEMENTS[actual], "EXPECTED": ELEMENTS[expected]}


def _root_ratio(squares: float, energy: float) -> float:
    """sqrt(squares / energy), infinite where that is not a number."""
    if energy == 0 or not math.isfinite(squares):
        return math.inf
    return math.sqrt(squares / energy)

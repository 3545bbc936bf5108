"""evo's own device kernels build for every architecture with nothing spilled, without a driver."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from evo.dtypes import numpy_dtype
from evo.errors import EvoError
from evo.fitness.cuda.comparison import ELEMENTS, chunks, definitions
from evo.fitness.cuda.trusted import Contents, Poison, compile_kernels, pack_kinds, poison_of
from evo.operator import ROW_KINDS

ARCHITECTURES = ["sm_90a", "sm_100a"]
KERNELS = {f"fill_{dtype}" for dtype in ELEMENTS} | {
    "poison", "guard_write", "guard_check", "find_nonzero", "digest", "copy", "gate", "null_kernel",
}  # fmt: skip
CLOCK = {"tempo", "flush_read", "spoil"}
COMPARE = {"row_energy", "row_difference", "summarise"}


class Log:
    """What ptxas reports."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, part: str | bytes) -> None:
        self.text += part if isinstance(part, str) else part.decode()


def report(name: str, arch: str, defines: dict[str, str] | None = None) -> tuple[set[str], list[str]]:
    """Kernels of a source file, and the lines of the report about their stacks and spills."""
    log = Log()
    code = compile_kernels(name, arch, defines, log)
    assert code.startswith(b"\x7fELF")
    kernels = {line.split("'")[1] for line in log.text.splitlines() if "Compiling entry function" in line}
    return kernels, [line for line in log.text.splitlines() if "spill stores" in line]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_trusted_kernels_build_without_spills(arch: str) -> None:
    kernels, lines = report("trusted.cu", arch)
    assert kernels == KERNELS
    assert len(lines) >= len(KERNELS)
    assert all("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in line for line in lines), lines


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_clock_kernels_build_without_spills(arch: str) -> None:
    kernels, lines = report("clock.cu", arch)
    assert kernels == CLOCK
    assert all("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in line for line in lines), lines


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("pair", [("bf16", "bf16"), ("fp16", "fp32"), ("fp32", "fp64"), ("i64", "u8")])
def test_compare_kernels_build_without_spills(arch: str, pair: tuple[str, str]) -> None:
    kernels, lines = report("compare.cu", arch, definitions(*pair))
    assert kernels == COMPARE
    assert len(lines) >= len(COMPARE)
    assert all("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in line for line in lines), lines


def test_structures_are_as_large_as_the_kernels_take() -> None:
    assert ctypes.sizeof(Contents) == 6 * 8 + 5 * 8 + 4 * 4 + 8 + 8
    assert ctypes.sizeof(Poison) == 5 * 8 + 4 * 4


def test_every_kind_of_row_has_its_bits() -> None:
    assert pack_kinds(()) == 0
    assert pack_kinds(("zeros", "nan")) == 1 | ROW_KINDS.index("nan") << 4
    assert len(ROW_KINDS) <= 16
    with pytest.raises(EvoError, match="17 kinds"):
        pack_kinds(("zeros",) * 17)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64"])
def test_poison_masks_are_those_of_the_type(dtype: str) -> None:
    kind = np.dtype(f"u{numpy_dtype(dtype).itemsize}")
    found = poison_of(dtype, 1, 0.5)
    nan, huge = (
        np.array([word], np.uint64).view(kind).view(numpy_dtype(dtype)).astype(np.float64)
        for word in (found.exponent | found.quiet, found.huge)
    )
    assert np.isnan(nan).all()
    assert np.isfinite(huge).all()
    assert (huge > 1e4).all()
    at_top = np.array([found.top << found.mantissa], np.uint64).view(kind).view(numpy_dtype(dtype))
    assert float(at_top[0]) == 0.5  # the largest plausible numbers are from here up to twice it
    assert poison_of(dtype, 5, 0.5).top == found.top + 1
    assert {poison_of(dtype, key, 1.0).mode for key in range(4)} == {1, 2, 3}
    assert poison_of("i32", 1, 1.0).mode == 0


def test_tall_tensors_are_compared_in_parts() -> None:
    rows = (5 << 20) + 3
    parts = list(chunks(rows, 16))
    assert [first for first, _ in parts] == [i << 20 for i in range(6)]
    assert sum(tiling.rows for _, tiling in parts) == rows
    assert all(32 * tiling.tiles <= 32 << 20 for columns in (1, 16, 4096) for _, tiling in chunks(rows, columns))

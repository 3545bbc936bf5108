"""evo's own device kernels build for every architecture with nothing spilled, without a driver."""

from __future__ import annotations

import pytest

from evo.fitness.cuda.comparison import ELEMENTS, definitions
from evo.fitness.cuda.trusted import compile_kernels

ARCHITECTURES = ["sm_90a", "sm_100a"]
KERNELS = {f"fill_{dtype}" for dtype in ELEMENTS} | {
    "poison", "guard_write", "guard_check", "find_nonzero", "digest", "copy", "gate", "null_kernel",
}  # fmt: skip
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
@pytest.mark.parametrize("pair", [("bf16", "bf16"), ("fp16", "fp32"), ("fp32", "fp64"), ("i64", "u8")])
def test_compare_kernels_build_without_spills(arch: str, pair: tuple[str, str]) -> None:
    kernels, lines = report("compare.cu", arch, definitions(*pair))
    assert kernels == COMPARE
    assert len(lines) >= len(COMPARE)
    assert all("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in line for line in lines), lines

"""The shapes: what is timed, what only gates, and the small neighbours of a timed case."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from evo.operator import Case

DTYPES = ("bf16", "fp16", "fp32")
EPS = 1e-6

# The matrix that published RMSNorm kernels are compared on: 2^31 bytes of bf16 at most in each direction.
CUDA_SHAPES = (
    *((32768, n) for n in (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)),
    (16384, 131072),
    (8192, 262144),
)
# 128 KB a call: three slots fill no more than half of a core's own cache, whatever pages they got. Beyond it, on a
# virtual machine, neighbours set the time (blocks of 0.3 ms spread by 2 to 15 % at 4 MB a call), and close to it the
# placement of pages does (2.9 to 5.4 us for one kernel at 256 KB a call, from process to process).
CPU_TUNE = (("fp32", 64, 256), ("bf16", 32, 1024), ("fp32", 8, 2048), ("bf16", 4, 8192))
# Neither powers of two nor multiples of a tile; a single row of one 16-byte access.
CHECK = (
    ("bf16", 37, 264), ("bf16", 1, 8),
    ("fp16", 5, 1000), ("fp16", 199, 760),
    ("fp32", 3, 4104), ("fp32", 199, 760),
)  # fmt: skip
CUDA_CHECK = (*CHECK, ("bf16", 5, 33000), ("fp16", 3, 40968), ("fp32", 3, 20004))  # rows that clusters share
LONG_ROW = 32768  # beyond it fewer neighbour rows, so that the float64 reference stays under 50 ms


def make(group: Literal["tune", "check", "holdout"], dtype: str, rows: int, columns: int) -> Case:
    return Case(
        name=f"{dtype}-{rows}x{columns}",
        group=group,
        dims={"M": rows, "N": columns},
        dtypes={"x": dtype, "weight": "fp32", "y": dtype},
        scalars={"eps": EPS},
    )


def cuda() -> tuple[Case, ...]:
    """The matrix in bf16; in fp16 and fp32 as hold-outs; the odd shapes."""
    tune = [make("tune", "bf16", *shape) for shape in CUDA_SHAPES]
    holdout = [make("holdout", dtype, *shape) for dtype in ("fp16", "fp32") for shape in CUDA_SHAPES]
    return (*tune, *holdout, *(make("check", *entry) for entry in CUDA_CHECK))


def cpu() -> tuple[Case, ...]:
    """A small matrix for one core, and the odd shapes."""
    return (*(make("tune", *entry) for entry in CPU_TUNE), *(make("check", *entry) for entry in CHECK))


def neighbours(case: Case) -> tuple[Case, ...]:
    """Few rows of the same length and dtypes: not a multiple of any tile, and a single one."""
    several = 37 if case.dims["N"] <= LONG_ROW else 5
    return tuple(
        replace(
            case,
            name=f"{case.name}~{rows}",
            group="check",
            dims={**case.dims, "M": rows},
            distribution=distribution,
        )
        for rows, distribution in ((several, "mixed"), (1, "rows"))
    )

"""The shapes: what is timed, what only gates, and the small neighbours of a timed case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from evo.operator import Case
from evo.operators.rmsnorm.cases import CUDA_SHAPES, DRAWN_ELEMENTS, DRAWN_ROWS, DTYPES, LONG_ROW, Group

if TYPE_CHECKING:
    import numpy as np

# What a case has beside x, an fp32 weight, dy, rstd, dx and an fp32 dw, by the prefix of its name; "y" stands for dy's
# element type.
MODES: dict[str, Mapping[str, str]] = {
    "": {},
    "residual": {"dresidual_out": "y"},
    # The residual stream is kept in fp32: so is the sum that was normalised, and its gradient is wanted in both types.
    "residual-fp32": {"x": "fp32", "dresidual_out": "fp32", "dresidual": "fp32"},
    "bias": {"db": "fp32"},
    "weight16": {"weight": "y", "dw": "y"},
    "full": {"weight": "y", "dw": "y", "db": "y", "dresidual_out": "y"},
}
OPTIONAL = frozenset({"dresidual_out", "dresidual", "db"})

ODD_SHAPES = tuple((16384, n) for n in (768, 1536, 2560, 3072, 5120, 7168, 12288, 18432))
SHORT_SHAPES = tuple((rows, n) for rows in (64, 256, 2048) for n in (4096, 7168))
# Small enough for a core's own cache; see the forward operator's cases.
CPU_TUNE = (("fp32", 64, 256), ("bf16", 32, 1024), ("fp32", 8, 2048), ("bf16", 4, 8192))
CHECK = (
    ("bf16", 37, 264), ("bf16", 3, 8),
    ("fp16", 5, 1000), ("fp16", 199, 760),
    ("fp32", 3, 4104), ("fp32", 199, 760),
)  # fmt: skip
CUDA_CHECK = (*CHECK, ("bf16", 5, 33024), ("fp16", 3, 40960), ("fp32", 3, 20032))  # rows that clusters share
MODE_CHECK = {"bf16": (37, 264), "fp16": (11, 1000), "fp32": (5, 1032)}  # of every mode
CUDA_MODE_CHECK = (("residual", "bf16", 3, 32768), ("residual-fp32", "fp16", 3, 8192), ("full", "bf16", 3, 16384))


def make(group: Group, dtype: str, rows: int, columns: int, mode: str = "", prefix: str = "") -> Case:
    """A case of one of `MODES`, named by its prefix, dy's element type and shape."""
    extra = {name: dtype if kind == "y" else kind for name, kind in MODES[mode].items()}
    head = prefix or mode
    plain = {"x": dtype, "weight": "fp32", "dy": dtype, "rstd": "fp32", "dx": dtype, "dw": "fp32"}
    return Case(
        name=f"{head}-{dtype}-{rows}x{columns}" if head else f"{dtype}-{rows}x{columns}",
        group=group,
        dims={"M": rows, "N": columns},
        dtypes={**plain, **extra},
        present=OPTIONAL & extra.keys(),
    )


def cuda() -> tuple[Case, ...]:
    """The matrix in bf16; other element types and modes, odd widths and few rows as hold-outs; the checks."""
    cases = [make("tune", "bf16", *shape) for shape in CUDA_SHAPES]
    # fp32 needs five buffers a slot: the longest rows of it would not fit thrice into the memory of an H200
    cases += [
        make("holdout", dtype, rows if dtype == "fp16" or columns < 65536 else rows // 2, columns)
        for dtype in ("fp16", "fp32")
        for rows, columns in CUDA_SHAPES
    ]
    cases += [make("holdout", "bf16", *shape, "residual") for shape in CUDA_SHAPES if shape[1] <= LONG_ROW]
    cases += [make("holdout", "bf16", *shape, prefix="odd") for shape in ODD_SHAPES]
    cases += [make("holdout", "bf16", *shape, prefix="short") for shape in SHORT_SHAPES]
    cases += [make("holdout", "bf16", 16384, 4096, mode) for mode in ("residual-fp32", "bias", "weight16", "full")]
    cases += [make("check", *entry) for entry in CUDA_CHECK]
    cases += [make("check", dtype, rows, columns, mode) for mode, dtype, rows, columns in CUDA_MODE_CHECK]
    return (*cases, *mode_checks())


def cpu() -> tuple[Case, ...]:
    """A small matrix for one core, a case with a residual, and the checks."""
    tune = [make("tune", *entry) for entry in CPU_TUNE]
    holdout = [make("holdout", "bf16", 16, 1024, "residual")]
    return (*tune, *holdout, *(make("check", *entry) for entry in CHECK), *mode_checks())


def mode_checks() -> list[Case]:
    """One small case for every mode and element type that plain cases do not cover."""
    return [
        make("check", dtype, *shape, mode)
        for mode in MODES
        if mode
        for dtype, shape in MODE_CHECK.items()
        if dtype != "fp32" or mode not in ("weight16", "residual-fp32")
    ]


def neighbours(case: Case) -> tuple[Case, ...]:
    """Few rows of the same length and dtypes: not a multiple of any tile, and a single one."""
    several = 37 if case.dims["N"] <= LONG_ROW else 5
    return tuple(
        replace(case, name=f"{case.name}~{rows}", group="check", dims={**case.dims, "M": rows}, distribution=law)
        for rows, law in ((several, "forward"), (1, "gradients"))
    )


def drawn_near(case: Case, rng: np.random.Generator) -> tuple[Case, ...]:
    """The case's row length with a drawn number of rows."""
    most = max(3, DRAWN_ELEMENTS // case.dims["N"])
    rows = int(rng.choice([rows for rows in DRAWN_ROWS if rows <= most]))
    return (replace(case, name=f"{case.name}~drawn-{rows}", group="check", dims={**case.dims, "M": rows}),)


__all__ = ["CHECK", "DTYPES", "MODES", "cpu", "cuda", "drawn_near", "make", "mode_checks", "neighbours"]

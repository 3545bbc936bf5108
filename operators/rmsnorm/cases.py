"""The shapes: what is timed, what only gates, and the small neighbours of a timed case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from evo.dtypes import ITEMSIZE
from evo.operator import Case

if TYPE_CHECKING:
    import numpy as np

DTYPES = ("bf16", "fp16", "fp32")
EPS = 1e-6
OTHER_EPS = 1e-5  # on small cases too, so that a kernel cannot have one built in
Group = Literal["tune", "check", "holdout"]

# What a case has beside x, an fp32 weight and y, by the prefix of its name; "x" stands for x's element type.
MODES: dict[str, Mapping[str, str]] = {
    "": {},
    "residual": {"residual": "x", "residual_out": "x"},
    "residual-out32": {"residual": "x", "residual_out": "fp32"},
    "residual-fp32": {"residual": "fp32", "residual_out": "fp32"},
    "rstd": {"rstd": "fp32"},  # as training keeps it
    "bias": {"bias": "fp32", "rstd": "fp32"},
    "weight16": {"weight": "x"},
    "heads": {"weight": "x"},  # a weight of its own for each of HEADS consecutive rows, as q and k norms have it
    "full": {"weight": "x", "bias": "x", "residual": "fp32", "residual_out": "fp32", "rstd": "fp32"},
}
HEADS = 8

# The matrix that published RMSNorm kernels are compared on: 2^31 bytes of bf16 at most in each direction.
CUDA_SHAPES = (
    *((32768, n) for n in (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)),
    (16384, 131072),
    (8192, 262144),
)
# In every mode in which those kernels are compared; bf16 without a residual is tuned.
HOLDOUTS = (
    *(("", dtype) for dtype in ("fp16", "fp32")),
    *(("residual", dtype) for dtype in DTYPES),
    *((mode, dtype) for mode in ("residual-out32", "residual-fp32") for dtype in ("bf16", "fp16")),
)
# Widths of models that are no power of two, and decoding: few rows, where the launch is most of the time.
ODD_SHAPES = tuple((16384, n) for n in (768, 1536, 2560, 3072, 5120, 7168, 12288, 18432))
DECODE_SHAPES = tuple((rows, n) for rows in (1, 8, 64, 256) for n in (4096, 7168))
HEAD_SHAPES = ((524288, 64), (524288, 128), (131072, 256))
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
MODE_CHECK = {"bf16": (37, 264), "fp16": (11, 1000), "fp32": (5, 1032)}  # of every mode
CUDA_MODE_CHECK = (("residual", "bf16", 3, 32776), ("residual-fp32", "fp16", 3, 8200), ("full", "bf16", 3, 16392))
# Rows that are drawn: one, primes, one less and one more than tiles of 32 to 256.
DRAWN_ROWS = (1, 2, 3, 7, 13, 31, 33, 61, 63, 65, 97, 127, 129, 131, 251, 255, 257)
DRAWN_ELEMENTS = 1 << 18  # so many at most, where three rows are no more
LONG_ROW = 32768  # beyond it fewer neighbour rows, so that the float64 reference stays under 50 ms


def make(group: Group, dtype: str, rows: int, columns: int, mode: str = "", prefix: str = "") -> Case:
    """A case of one of `MODES`, named by its prefix, x's element type and shape."""
    extra = {name: dtype if kind == "x" else kind for name, kind in MODES[mode].items()}
    head = prefix or mode
    return Case(
        name=f"{head}-{dtype}-{rows}x{columns}" if head else f"{dtype}-{rows}x{columns}",
        group=group,
        dims={"M": rows, "N": columns, "H": HEADS if mode == "heads" else 1},
        dtypes={"x": dtype, "weight": "fp32", "y": dtype, **extra},
        present=frozenset(extra) - {"weight"},
        scalars={"eps": EPS},
    )


def cuda() -> tuple[Case, ...]:
    """The matrix in bf16; other element types and modes, odd widths and decoding as hold-outs; the checks."""
    cases = [make("tune", "bf16", *shape) for shape in CUDA_SHAPES]
    cases += [make("holdout", dtype, *shape, mode) for mode, dtype in HOLDOUTS for shape in CUDA_SHAPES]
    cases += [make("holdout", "bf16", *shape, prefix="odd") for shape in ODD_SHAPES]
    cases += [make("holdout", "bf16", *shape, prefix="decode") for shape in DECODE_SHAPES]
    cases += [make("holdout", "bf16", *shape, "heads") for shape in HEAD_SHAPES]
    cases += [make("holdout", "bf16", 16384, 4096, mode) for mode in ("rstd", "bias", "weight16", "full")]
    cases += [make("check", *entry) for entry in CUDA_CHECK]
    cases += [make("check", dtype, rows, columns, mode) for mode, dtype, rows, columns in CUDA_MODE_CHECK]
    return (*cases, *mode_checks())


def cpu() -> tuple[Case, ...]:
    """A small matrix for one core, a case with a residual, and the checks."""
    tune = [make("tune", *entry) for entry in CPU_TUNE]
    holdout = [make("holdout", "bf16", 16, 1024, "residual"), make("holdout", "fp32", 64, 256, "rstd")]
    return (*tune, *holdout, *(make("check", *entry) for entry in CHECK), *mode_checks())


def mode_checks() -> list[Case]:
    """One small case for every mode and element type that plain cases do not cover. "weight16" with an fp32 x would be
    a plain case, and "heads" be checked with plain ones, by kernels that need not know of heads."""
    return [
        make("check", dtype, *shape, mode)
        for mode in MODES
        if mode
        for dtype, shape in MODE_CHECK.items()
        if dtype != "fp32" or mode not in ("weight16", "heads")
    ]


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
            scalars={"eps": eps},
        )
        for rows, distribution, eps in ((several, "mixed", EPS), (1, "rows", OTHER_EPS))
    )


def drawn_near(case: Case, rng: np.random.Generator) -> tuple[Case, ...]:
    """The case's row length with a drawn number of rows; and a drawn length, for kernels that take any."""
    return (_resized(case, case.dims["N"], rng), _resized(case, _length(case, case.dims["N"], rng), rng))


def drawn(cases: Sequence[Case], rng: np.random.Generator) -> tuple[Case, ...]:
    """One drawn length up to the longest, with the dtypes and tensors of one of the cases."""
    case = cases[int(rng.integers(len(cases)))]
    return (_resized(case, _length(case, max(each.dims["N"] for each in cases), rng), rng),)


def _length(case: Case, longest: int, rng: np.random.Generator) -> int:
    """One 16-byte access of x, or an odd number of them: no power of two, up to the longest."""
    vector = 16 // ITEMSIZE[case.dtypes["x"]]
    accesses = longest // vector
    return vector * min(int(accesses ** rng.random()) | 1, (accesses - 1) | 1)


def _resized(case: Case, columns: int, rng: np.random.Generator) -> Case:
    most = max(3, DRAWN_ELEMENTS // columns)
    rows = int(rng.choice([rows for rows in DRAWN_ROWS if rows <= most]))
    dims = {**case.dims, "M": rows, "N": columns}
    scalars = {"eps": float(rng.choice((EPS, OTHER_EPS)))}
    return replace(case, name=f"{case.name}~drawn-{rows}x{columns}", group="check", dims=dims, scalars=scalars)

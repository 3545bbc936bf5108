"""What the tensors hold: laws that look harmless, and rows that break a careless kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evo.operator import Case, Fill

if TYPE_CHECKING:
    import numpy as np

DISTRIBUTIONS = ("normal", "rows", "outliers", "constant", "mixed")

# Binary exponents of a row's magnitude. The sum of squares of 2^18 elements must stay finite in fp32, as it must in
# every published kernel; fp16 itself ends at 65504. The smallest are far below sqrt(eps).
EXPONENTS = {"bf16": (-66.0, 50.0), "fp32": (-66.0, 50.0), "fp16": (-20.0, 10.0)}
OUTLIER = 1000.0
# Rows of every kind side by side: what one row holds must not reach another. A NaN makes its own row NaN. None holds an
# infinity: x / inf is 0, but a root refined by Newton's iteration makes it NaN, and both are fair.
KINDS = ("plain", "zeros", "constant", "tiny", "huge", "heavy", "outlier", "first", "last", "alternating", "nan")

WEIGHT = Fill("normal", 1.0, 0.25)  # neither 0 nor exactly 1: a kernel that drops or rounds the weight must show
BIAS = Fill("normal", 0.0, 0.5)


def magnitudes(case: Case) -> tuple[float, float]:
    """Binary exponents of the rows of x and residual. A sum kept in fp16 must neither overflow nor be subnormal."""
    return (-8.0, 9.0) if case.dtypes.get("residual_out") == "fp16" else EXPONENTS[case.dtypes["x"]]


def kinds(case: Case) -> tuple[str, ...]:
    """Subnormal rows must not be flushed to zero: divided by sqrt(eps) they are normal numbers. Not where their sum
    with a residual is an output."""
    return KINDS if "residual" in case.dtypes else (*KINDS, "subnormal")


def inputs(case: Case, rng: np.random.Generator, distribution: str) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
    """Contents of x and residual [M, N], weight and bias [H * N]."""
    exponents = magnitudes(case)
    laws: dict[str, Fill] = {
        "normal": Fill(),
        "rows": Fill(row_log2=exponents),
        "outliers": Fill(outlier_rate=0.002, outlier_scale=OUTLIER),
        "constant": Fill("constant", 1.0, row_log2=exponents),
        "mixed": Fill(row_log2=exponents, outlier_scale=OUTLIER, kinds=kinds(case)),
    }
    return {**{n: laws[distribution] for n in ("x", "residual") if n in case.dtypes}, "weight": WEIGHT, **_bias(case)}


def _bias(case: Case) -> dict[str, Fill]:
    return {"bias": BIAS} if "bias" in case.present else {}

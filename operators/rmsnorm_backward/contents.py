"""What the tensors hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evo.operator import Case, Fill

if TYPE_CHECKING:
    import numpy as np

# "forward": x in rows of very different sizes, and rstd as the forward pass makes it of them. The other laws draw rstd
# at random, so that a kernel that computes it from x instead of reading it fails.
DISTRIBUTIONS = ("normal", "forward", "gradients", "outliers", "spoiled")

EPS = 1e-6
WEIGHT = Fill("normal", 1.0, 0.25)  # neither 0 nor exactly 1: a kernel that drops or rounds the weight must show
RSTD = Fill("uniform", 0.5, 2.0)
# Binary exponents of rows: of x, and of dy. dx and dw must be finite in every type, and no row of dx subnormal.
X_ROWS = {"bf16": (-8.0, 30.0), "fp32": (-8.0, 30.0), "fp16": (-3.0, 8.0)}
DY_ROWS = {"bf16": (-30.0, 20.0), "fp32": (-30.0, 20.0), "fp16": (-6.0, 3.0)}
OUTLIER = 100.0
HOST_ELEMENTS = 1 << 22  # beyond this many, rstd cannot be made to fit x: it is drawn


def inputs(case: Case, rng: np.random.Generator, distribution: str) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
    """Contents of x, dy, dresidual_out [M, N], weight [N] and rstd [M]."""
    made: dict[str, Fill | np.ndarray[Any, Any]] = {"x": Fill(), "dy": Fill(), "weight": WEIGHT, "rstd": RSTD}
    if "dresidual_out" in case.present:
        made["dresidual_out"] = Fill("normal", 0.0, 0.5)
    small = case.dims["M"] * case.dims["N"] <= HOST_ELEMENTS
    if distribution == "gradients":
        made["dy"] = Fill(row_log2=DY_ROWS[case.dtypes["dy"]])
    elif distribution == "outliers":
        made["x"] = Fill(outlier_rate=0.002, outlier_scale=OUTLIER)
    elif distribution == "forward" and small:
        made.update(forward(case, rng))
    elif distribution == "spoiled" and small:
        made.update(spoiled(case, rng))
    return made


def forward(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    """x in rows from small to huge, and the rstd that belongs to it."""
    import numpy as np

    from evo.dtypes import numpy_dtype
    from evo.operators.rmsnorm.reference import inverse_rms

    rows, columns = case.dims["M"], case.dims["N"]
    scale = 2.0 ** rng.uniform(*X_ROWS[case.dtypes["dx"]], (rows, 1))
    x = (rng.standard_normal((rows, columns)) * scale).astype(numpy_dtype(case.dtypes["x"]))
    return {"x": x, "rstd": inverse_rms(x.astype(np.float64), EPS).astype(np.float32)}


def spoiled(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    """A NaN in one row of dy, which may spoil that row of dx, that column of dw and db, and nothing else; and a row of
    x that is zero."""
    import numpy as np

    from evo.dtypes import numpy_dtype

    shape = (case.dims["M"], case.dims["N"])
    x, dy = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    if shape[0] > 2:
        bad, zero = rng.choice(shape[0], 2, replace=False)
        dy[bad, rng.integers(shape[1])] = np.nan
        x[zero] = 0.0
    return {"x": x.astype(numpy_dtype(case.dtypes["x"])), "dy": dy.astype(numpy_dtype(case.dtypes["dy"]))}

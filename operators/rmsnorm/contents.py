"""What the tensors hold: laws that look harmless, and rows that break a careless kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from evo.operator import Case, Fill

if TYPE_CHECKING:
    import numpy as np

DISTRIBUTIONS = ("normal", "rows", "outliers", "constant", "mixed")

# Binary exponents of a row's magnitude. The sum of squares of 2^18 elements must stay finite in fp32, as it must in
# every published kernel; fp16 itself ends at 65504. The smallest are far below sqrt(eps).
EXPONENTS = {"bf16": (-66.0, 50.0), "fp32": (-66.0, 50.0), "fp16": (-20.0, 10.0)}
OUTLIER = 1000.0
HOST_ELEMENTS = 1 << 22  # beyond this many, rows of several kinds are left to the device's fill

WEIGHT = Fill("normal", 1.0, 0.25)  # neither 0 nor exactly 1: a kernel that drops or rounds the weight must show


def inputs(case: Case, rng: np.random.Generator, distribution: str) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
    """Contents of x [M, N] and weight [N]."""
    exponents = EXPONENTS[case.dtypes["x"]]
    laws: dict[str, Fill] = {
        "normal": Fill(),
        "rows": Fill(row_log2=exponents),
        "outliers": Fill(outlier_rate=0.002, outlier_scale=OUTLIER),
        "constant": Fill("constant", 1.0, row_log2=exponents),
        "mixed": Fill(row_log2=exponents, outlier_rate=0.002, outlier_scale=8.0),
    }
    if distribution == "mixed" and case.dims["M"] * case.dims["N"] <= HOST_ELEMENTS:
        return {"x": mixed(case, rng), "weight": WEIGHT}
    return {"x": laws[distribution], "weight": WEIGHT}


def mixed(case: Case, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Rows of every kind side by side, in x's dtype: what one row holds must not reach another."""
    import numpy as np

    from evo.dtypes import numpy_dtype

    rows, columns = case.dims["M"], case.dims["N"]
    x = rng.standard_normal((rows, columns), dtype=np.float32)
    kinds = rng.permutation(len(KINDS))
    for index in range(rows):
        KINDS[kinds[index % len(KINDS)]](x[index], rng, EXPONENTS[case.dtypes["x"]])
    return x.astype(numpy_dtype(case.dtypes["x"]))


Kind = Callable[[Any, Any, tuple[float, float]], None]


def _normal(row: Any, rng: Any, exponents: tuple[float, float]) -> None:
    """As drawn."""


def _zeros(row: Any, rng: Any, exponents: tuple[float, float]) -> None:
    row[:] = 0.0


def _tiny(row: Any, rng: Any, exponents: tuple[float, float]) -> None:
    row *= 2.0 ** exponents[0]


def _huge(row: Any, rng: Any, exponents: tuple[float, float]) -> None:
    row *= 2.0 ** exponents[1]


def _outlier(row: Any, rng: Any, exponents: tuple[float, float]) -> None:
    row[rng.integers(row.size)] = OUTLIER


def _first(row: Any, rng: Any, exponents: tuple[float, float]) -> None:
    row[1:] = 0.0


def _last(row: Any, rng: Any, exponents: tuple[float, float]) -> None:
    row[:-1] = 0.0


def _alternating(row: Any, rng: Any, exponents: tuple[float, float]) -> None:
    row[::2], row[1::2] = 3.0, -3.0


def _nan(row: Any, rng: Any, exponents: tuple[float, float]) -> None:
    row[rng.integers(row.size)] = float("nan")


KINDS: tuple[Kind, ...] = (_normal, _zeros, _tiny, _huge, _outlier, _first, _last, _alternating, _nan)

"""One effect from many comparisons, each with an error of its own; and which of many such effects to believe.

Random effects: DerSimonian and Laird, "Meta-analysis in clinical trials", 1986, with the interval of Hartung and Knapp
(Student's t over the comparisons), never narrower than the measurements' own errors allow.
Many effects: Benjamini and Hochberg, "Controlling the false discovery rate", 1995.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evo.student import t_quantile, two_sided

Array = np.ndarray[Any, np.dtype[np.float64]]
LEVEL = 0.95  # of the intervals
DISCOVERY_RATE = 0.05  # of the effects that are called significant, so many are false


@dataclass(frozen=True, slots=True)
class Pooled:
    """`mean` with half-width `half` (infinite below two values), from `count` values; `p`: of no effect at all."""

    mean: float
    half: float
    count: int
    p: float


def pool(values: Array, variances: Array) -> Pooled:
    """The mean of independent values with known error variances, which may differ from each other by more than those
    say. Values that are NaN are left out."""
    there = np.isfinite(values) & np.isfinite(variances)
    values, variances = values[there], np.maximum(variances[there], 1e-12)
    count = len(values)
    if count < 2:
        return Pooled(float(values[0]) if count else math.nan, math.inf, count, 1.0)
    weights = 1 / (variances + _between(values, variances))
    total = float(weights.sum())
    mean = float((weights * values).sum()) / total
    spread = float((weights * (values - mean) ** 2).sum()) / (count - 1)
    error = math.sqrt(max(1.0, spread) / total)
    return Pooled(mean, t_quantile((1 + LEVEL) / 2, count - 1) * error, count, two_sided(mean / error, count - 1))


def _between(values: Array, variances: Array) -> float:
    """The variance of the true values round their mean."""
    weights = 1 / variances
    total = float(weights.sum())
    mean = float((weights * values).sum()) / total
    scatter = float((weights * (values - mean) ** 2).sum())
    scale = total - float((weights**2).sum()) / total
    return max(0.0, (scatter - (len(values) - 1)) / scale) if scale > 0 else 0.0


def false_discovery(ps: Sequence[float]) -> list[float]:
    """Every p-value adjusted: the least rate of false discoveries at which it would be called significant."""
    order = sorted(range(len(ps)), key=lambda index: ps[index], reverse=True)
    adjusted, least = [1.0] * len(ps), 1.0
    for behind, index in enumerate(order):
        least = min(least, ps[index] * len(ps) / (len(ps) - behind))
        adjusted[index] = least
    return adjusted

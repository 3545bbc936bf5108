"""Student's t with whole degrees of freedom: quantiles and tails."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: int) -> float:
    """For a probability of at least one half."""
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ValueError(f"probability {probability}, {freedom} degrees of freedom")
    if probability == 0.5:
        return 0.0
    low, high = 0.0, math.pi / 2  # the angle whose tangent is t / sqrt(freedom)
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _centre(angle, freedom) < 2 * probability - 1 else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def two_sided(t: float, freedom: int) -> float:
    """P(|T| >= |t|); good to about 1e-12, which is what a smaller answer means."""
    if freedom < 1:
        raise ValueError(f"{freedom} degrees of freedom")
    return max(1e-12, 1.0 - _centre(math.atan(abs(t) / math.sqrt(freedom)), freedom))


def _centre(angle: float, freedom: int) -> float:
    """P(|T| < sqrt(freedom) tan(angle)): the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(1 if odd else 0, freedom - 1, 2):
        if term == 0.0:  # the rest is nothing too
            break
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total

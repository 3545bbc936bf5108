"""The truth, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np


def forward(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any], eps: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """x / sqrt(mean(x^2) + eps) * weight, x [M, N] of any float dtype, weight [N]; unrounded [M, N].

    `eps` reaches kernels as fp32, so it is rounded to fp32 here too.
    """
    values = x.astype(np.float64)
    mean = np.mean(np.square(values), axis=-1, keepdims=True)
    result: np.ndarray[Any, np.dtype[np.float64]] = (
        values / np.sqrt(mean + float(np.float32(eps))) * weight.astype(np.float64)
    )
    return result

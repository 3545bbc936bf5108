"""The truth, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Float64 = np.ndarray[Any, np.dtype[np.float64]]


def backward(inputs: Mapping[str, Array]) -> dict[str, Float64]:
    """Gradients by name, unrounded: dx, dresidual [M, N], dw, db [N].

    x, dy [M, N], weight [N], rstd [M] as the forward pass kept it, and dresidual_out [M, N] where the sum before the
    norm was an output too. dresidual is dx: the sum's two parts have one gradient.
    """
    x, dy, weight = (inputs[name].astype(np.float64) for name in ("x", "dy", "weight"))
    rstd = inputs["rstd"].astype(np.float64)[:, None]
    normed, wdy = x * rstd, dy * weight
    dx: Float64 = (wdy - normed * np.mean(normed * wdy, axis=-1, keepdims=True)) * rstd
    if "dresidual_out" in inputs:
        dx = dx + inputs["dresidual_out"].astype(np.float64)
    return {"dx": dx, "dresidual": dx, "dw": np.sum(dy * normed, axis=0), "db": np.sum(dy, axis=0)}

"""The truth, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Float64 = np.ndarray[Any, np.dtype[np.float64]]


def total(x: Array, residual: Array | None = None) -> Float64:
    """What is normalised: x, plus the residual where there is one; [M, N]."""
    values: Float64 = x.astype(np.float64)
    return values if residual is None else values + residual.astype(np.float64)


def inverse_rms(values: Float64, eps: float) -> Float64:
    """1 / sqrt(mean(values^2) + eps) of every row, [M]. `eps` reaches kernels as fp32, so it is rounded here too."""
    root: Float64 = 1.0 / np.sqrt(np.mean(np.square(values), axis=-1) + float(np.float32(eps)))
    return root


def by_row(vector: Array, shape: tuple[int, ...]) -> Float64:
    """A weight or bias [H * N] as every row of [M, N] meets it: row r takes part r % H."""
    parts = vector.astype(np.float64).reshape(-1, shape[1])
    rows: Float64 = parts[np.arange(shape[0]) % len(parts)] if len(parts) > 1 else parts
    return rows


def forward(x: Array, weight: Array, eps: float, residual: Array | None = None, bias: Array | None = None) -> Float64:
    """y [M, N], unrounded; x of any float dtype, weight and bias [H * N]."""
    values = total(x, residual)
    y: Float64 = values * inverse_rms(values, eps)[:, None] * by_row(weight, x.shape)
    return y if bias is None else y + by_row(bias, x.shape)


def outputs(inputs: Mapping[str, Array], eps: float) -> dict[str, Float64]:
    """Every output that a case may have, by tensor name."""
    values = total(inputs["x"], inputs.get("residual"))
    y = forward(inputs["x"], inputs["weight"], eps, inputs.get("residual"), inputs.get("bias"))
    return {"y": y, "residual_out": values, "rstd": inverse_rms(values, eps)}

"""The truth: the recurrence, token by token, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NORM_EPS = 1e-6  # under the root of q's and k's l2 norm


def forward(
    q: Array, k: Array, v: Array, g: Array, beta: Array, a_log: Array, dt_bias: Array, *, scale: float,
    lower_bound: float, bounds: Sequence[tuple[int, int]], initial_state: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Kimi Delta Attention, unrounded.

    q, k, g [tokens, H, K]; v [tokens, H, V]; beta [tokens, H] logits; a_log [H]; dt_bias [H, K]; initial_state
    [sequences, H, V, K]. `bounds`: first and last token of each sequence. Returns out [tokens, H, V] and the final
    state [sequences, H, V, K], both float64.
    """
    q, k, v, g, beta, a_log, dt_bias = (each.astype(np.float64) for each in (q, k, v, g, beta, a_log, dt_bias))
    scale, lower_bound = float(np.float32(scale)), float(np.float32(lower_bound))  # as they reach kernels
    with np.errstate(over="ignore"):  # exp of a saturated gate
        gate = lower_bound / (1.0 + np.exp(-np.exp(a_log)[:, None] * (g + dt_bias)))
        weight = 1.0 / (1.0 + np.exp(-beta))
    decay = np.exp(gate)
    q, k = (each / np.sqrt(np.sum(each * each, axis=-1, keepdims=True) + NORM_EPS) for each in (q, k))
    heads, width = v.shape[1:]
    out = np.zeros(v.shape)
    final = np.zeros((len(bounds), heads, width, k.shape[-1]))
    for number, (first, last) in enumerate(bounds):
        state = final[number]
        if initial_state is not None:
            state[:] = initial_state[number]
        for t in range(first, last):
            state *= decay[t][:, None, :]
            missing = weight[t][:, None] * (v[t] - np.matmul(state, k[t][:, :, None])[:, :, 0])
            state += missing[:, :, None] * k[t][:, None, :]
            out[t] = scale * np.matmul(state, q[t][:, :, None])[:, :, 0]
    return out, final

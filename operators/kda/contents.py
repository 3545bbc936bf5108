"""What the tensors hold. The gate decides how much of the past a token sees, so the laws are about gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evo.operator import Case, Fill

if TYPE_CHECKING:
    import numpy as np

DISTRIBUTIONS = ("normal", "weak", "wild", "saturated", "mixed")

# By law: (A_log, dt_bias) ranges of a head. The gate is lower_bound * sigmoid(exp(A_log) * (g + dt_bias)) with g
# normal: near 0 everywhere (nothing is forgotten), all over its range, or at its ends, channel by channel.
GATES = {
    "normal": ((0.0, 1.0), (0.0, 1.0)),
    "weak": ((0.0, 0.5), (-9.0, -6.0)),
    "wild": ((1.0, 2.1), (-4.0, 4.0)),
    "saturated": ((1.0, 2.0), (-100.0, 100.0)),
}


def inputs(case: Case, rng: np.random.Generator, distribution: str) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
    """Contents of q, k, v, g [B, T, H, 128], beta [B, T, H], A_log [H], dt_bias [H, K], the initial state and
    cu_seqlens. "mixed" gives every head a law of its own, and outliers."""
    made: dict[str, Fill | np.ndarray[Any, Any]] = dict.fromkeys(("q", "k", "v", "g", "beta"), Fill())
    if distribution == "mixed":
        made |= {"q": Fill(row_log2=(-6.0, 6.0)), "k": Fill(row_log2=(-6.0, 6.0)), "beta": Fill(b=3.0)}
        made["v"] = Fill(outlier_rate=0.001, outlier_scale=20.0)
    made["A_log"], made["dt_bias"] = _gates(case, rng, distribution)
    if "initial_state" in case.present:
        made["initial_state"] = Fill()
    if "cu_seqlens" in case.present:
        made["cu_seqlens"] = _edges(case, rng, shuffled=distribution != "normal")
    return made


def _gates(case: Case, rng: np.random.Generator, law: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    import numpy as np

    heads, width = case.dims["H"], case.dims["K"]
    laws = [law] * heads if law != "mixed" else [str(each) for each in rng.choice(list(GATES), heads)]
    a_log, bias = np.empty(heads, np.float32), np.empty((heads, width), np.float32)
    for head, each in enumerate(laws):
        first, second = GATES[each]
        a_log[head] = rng.uniform(*first)
        bias[head] = rng.uniform(*second, width)
    return a_log, bias


def _edges(case: Case, rng: np.random.Generator, *, shuffled: bool) -> np.ndarray[Any, Any]:
    """[N + 1] int64, from 0 to T; the lengths in the case's order, or in any."""
    import numpy as np

    lengths = np.array(case.data["lengths"], np.int64)
    order = rng.permutation(len(lengths)) if shuffled else slice(None)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[order])])

"""What the tensors hold. The gate decides how much of the past a token sees, so the laws are about gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evo.operator import Case, Fill

if TYPE_CHECKING:
    import numpy as np

DISTRIBUTIONS = ("normal", "weak", "wild", "saturated", "mixed")

# By kind of gate: (A_log, dt_bias) ranges of a head. The gate is lower_bound * sigmoid(exp(A_log) * (g + dt_bias)) with
# g normal: near 0 everywhere (nothing is forgotten), all over its range, or at its ends, channel by channel.
GATES = {
    "normal": ((0.0, 1.0), (0.0, 1.0)),
    "weak": ((0.0, 0.5), (-9.0, -6.0)),
    "wild": ((1.0, 2.1), (-4.0, 4.0)),
    "saturated": ((1.0, 2.0), (-100.0, 100.0)),
}
LOGITS = {"wild": Fill(b=8.0), "saturated": Fill("uniform", -100.0, 100.0)}  # of g, normal elsewhere


def inputs(case: Case, rng: np.random.Generator, distribution: str) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
    """Contents of q, k, v, g [B, T, H, 128], beta [B, T, H], A_log [H], dt_bias [H, K], the initial state and
    cu_seqlens.

    "normal" is what is timed. Under every other law the heads have the kinds of gates in turn, the first head the law's
    own ("mixed": in a drawn order), so that four heads have all of them; wild and saturated laws also have such g.
    "mixed" adds rows of q and k of very different size, strong beta, and outliers in v.
    """
    made: dict[str, Fill | np.ndarray[Any, Any]] = dict.fromkeys(("q", "k", "v", "g", "beta"), Fill())
    made["g"] = LOGITS.get(distribution, Fill())
    if distribution == "mixed":
        made |= {"q": Fill(row_log2=(-6.0, 6.0)), "k": Fill(row_log2=(-6.0, 6.0)), "beta": Fill(b=3.0)}
        made["v"] = Fill(outlier_rate=0.001, outlier_scale=20.0)
    made["A_log"], made["dt_bias"] = gates(case, rng, _kinds(case.dims["H"], rng, distribution))
    if "initial_state" in case.present:
        made["initial_state"] = Fill()
    if "cu_seqlens" in case.present:
        made["cu_seqlens"] = edges(case, rng, shuffled=distribution != "normal")
    return made


def _kinds(heads: int, rng: np.random.Generator, law: str) -> list[str]:
    """Each head's kind of gate."""
    if law == "normal":
        return [law] * heads
    kinds = [str(each) for each in rng.permutation(list(GATES))]
    if law != "mixed":
        kinds.remove(law)
        kinds.insert(0, law)
    return [kinds[head % len(kinds)] for head in range(heads)]


def gates(
    case: Case, rng: np.random.Generator, kinds: Sequence[str]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A_log [H] and dt_bias [H, K] in fp32, by each head's kind."""
    import numpy as np

    heads, width = case.dims["H"], case.dims["K"]
    a_log, bias = np.empty(heads, np.float32), np.empty((heads, width), np.float32)
    for head, kind in enumerate(kinds):
        first, second = GATES[kind]
        a_log[head] = rng.uniform(*first)
        bias[head] = rng.uniform(*second, width)
    return a_log, bias


def edges(case: Case, rng: np.random.Generator, *, shuffled: bool) -> np.ndarray[Any, Any]:
    """[N + 1] int64, from 0 to T; the lengths in the case's order, or in any."""
    import numpy as np

    lengths = np.array(case.data["lengths"], np.int64)
    order = rng.permutation(len(lengths)) if shuffled else slice(None)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[order])])

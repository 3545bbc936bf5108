"""The shapes: what is timed, what only gates, and the small neighbours of a timed case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from evo.operator import Case

WIDTH = 128  # K and V
SAFE_BOUND = -5.0  # of the published benchmarks: a chunk of 16 tokens cannot leave the range of fp32
WEAK_BOUND = -0.01  # nothing is forgotten: what an earlier token left in the state must still be there
STATES = ("initial_state", "final_state")
Group = Literal["tune", "check", "holdout"]

# The matrix of FlashKDA's benchmark: 8192 tokens in one sequence, in six of mixed length, in eight equal ones.
TOKENS = 8192
MIXED = (1300, 547, 2048, 963, 271, 3063)
UNIFORM = (1024,) * 8
RAGGED = {  # the lists of FlashKDA's tests
    "16": (16,), "16x2": (16, 16), "4-8-12": (4, 8, 12), "64-128-256": (64, 128, 256), "20-50-100": (20, 50, 100),
    "17-33-65": (17, 33, 65), "1024x8": UNIFORM, "mixed": MIXED,
}  # fmt: skip


def make(
    name: str, group: Group, heads: int, *, tokens: int = 0, batch: int = 1, lengths: Sequence[int] = (),
    states: Sequence[str] = STATES, state: str = "fp32", lower_bound: float = SAFE_BOUND, distribution: str = "normal",
) -> Case:  # fmt: skip
    """`lengths` packs sequences of those lengths along T (then B is 1); without it every batch row is a sequence."""
    present = frozenset((*states, *(("cu_seqlens",) if lengths else ())))
    dtypes = dict.fromkeys(("q", "k", "v", "g", "beta", "out"), "bf16") | dict.fromkeys(("A_log", "dt_bias"), "fp32")
    dtypes |= dict.fromkeys(states, state) | ({"cu_seqlens": "i64"} if lengths else {})
    return Case(
        name=name,
        group=group,
        dims={
            "B": batch, "T": sum(lengths) if lengths else tokens, "H": heads, "K": WIDTH, "V": WIDTH,
            "N": len(lengths) if lengths else batch,
        },
        dtypes=dtypes,
        present=present,
        scalars={"scale": 1 / math.sqrt(WIDTH), "lower_bound": lower_bound},
        data={"lengths": tuple(lengths)} if lengths else {},
        distribution=distribution,
    )  # fmt: skip


def cuda() -> tuple[Case, ...]:
    tune = [
        case
        for heads in (96, 64)
        for case in (
            make(f"h{heads}-fixed", "tune", heads, tokens=TOKENS),
            make(f"h{heads}-mixed", "tune", heads, lengths=MIXED),
            make(f"h{heads}-uniform", "tune", heads, lengths=UNIFORM),
        )
    ]
    few = [
        make("h12-fixed-8k", "tune", 12, tokens=TOKENS),
        make("h12-fixed-32k", "tune", 12, tokens=4 * TOKENS),
        make("h16-mixed", "tune", 16, lengths=MIXED),
    ]
    holdout = [
        make("h32-fixed-4k", "holdout", 32, tokens=4096),
        make("h48-ragged", "holdout", 48, lengths=(2048, 17, 4096, 333, 1, 1697)),
        make("h8-batched", "holdout", 8, tokens=1024, batch=8),
        make("h96-bf16-states", "holdout", 96, tokens=TOKENS, state="bf16"),
        make("h96-no-states", "holdout", 96, tokens=TOKENS, states=()),
        make("h1-fixed-128k", "holdout", 1, tokens=131072),
    ]
    return (*tune, *few, *holdout, *checks())


def cpu() -> tuple[Case, ...]:
    tune = (
        make("h2-fixed", "tune", 2, tokens=64),
        make("h2-ragged", "tune", 2, lengths=(17, 33, 14)),
        make("h4-batched", "tune", 4, tokens=16, batch=2),
    )
    return (*tune, *checks())


def checks() -> tuple[Case, ...]:
    """Every state mode, batches, ragged lists, lengths that no chunk divides; weak, wild and saturated gates."""
    fixed = [
        make("t16-none", "check", 1, tokens=16, states=(), distribution="mixed"),
        make("t17-in", "check", 2, tokens=17, states=STATES[:1], distribution="mixed"),
        make("t37-both", "check", 2, tokens=37, distribution="wild"),
        make("t97-bf16", "check", 2, tokens=97, state="bf16", distribution="mixed"),
        make("t64-saturated", "check", 3, tokens=64, distribution="saturated"),
        make("t256-out", "check", 1, tokens=256, states=STATES[1:], distribution="mixed"),
        make("t320-weak", "check", 2, tokens=320, lower_bound=WEAK_BOUND, distribution="wild"),
        make("b2-t64", "check", 2, tokens=64, batch=2, distribution="mixed"),
        make("b4-t33-bf16", "check", 1, tokens=33, batch=4, state="bf16", states=STATES[1:], distribution="wild"),
    ]
    ragged = [
        make("ragged-4-8-12", "check", 4, lengths=RAGGED["4-8-12"], distribution="mixed"),
        make("ragged-17-33-65", "check", 2, lengths=RAGGED["17-33-65"], state="bf16", distribution="mixed"),
        make("ragged-20-50-100-none", "check", 1, lengths=RAGGED["20-50-100"], states=(), distribution="weak"),
        make("ragged-64-128-256-in", "check", 1, lengths=RAGGED["64-128-256"], states=STATES[:1], distribution="mixed"),
    ]
    return (*fixed, *ragged)


def neighbours(case: Case) -> tuple[Case, ...]:
    """The same tensors at few heads and tokens: every kind of gate side by side, and one that forgets nothing."""
    mixed = _near(case, "mixed", 3, (37,), (1, 40, 16, 5))
    weak = _near(case, "wild", 1, (129,), (67, 2, 48))
    return mixed, replace(weak, scalars={**case.scalars, "lower_bound": WEAK_BOUND})


def _near(case: Case, law: str, heads: int, fixed: Sequence[int], ragged: Sequence[int]) -> Case:
    lengths = ragged if "cu_seqlens" in case.present else fixed
    packed = {"lengths": tuple(ragged)} if "cu_seqlens" in case.present else {}
    dims = {**case.dims, "B": 1, "H": heads, "T": sum(lengths), "N": len(lengths)}
    return replace(case, name=f"{case.name}~{law}", group="check", dims=dims, data=packed, distribution=law)


def bounds(case: Case) -> list[tuple[int, int]]:
    """First and last token (of B * T, one after the other) of every sequence, in the case's own order."""
    lengths = case.data.get("lengths") or (case.dims["T"],) * case.dims["B"]
    edges = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    return list(zip(edges, edges[1:], strict=False))

"""The shapes: what is timed, what only gates, and the small neighbours of a timed case."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from evo.errors import UsageError
from evo.operator import Case

if TYPE_CHECKING:
    import numpy as np

WIDTH = 128  # K and V
SCALE = 1 / math.sqrt(WIDTH)
OTHER_SCALE = 0.25  # on small cases too, so that a kernel cannot have one built in
SAFE_BOUND = -5.0  # of the published benchmarks: a chunk of 16 tokens cannot leave the range of fp32
WEAK_BOUND = -0.01  # nothing is forgotten: what an earlier token left in the state must still be there
DRAWN_BOUNDS = (SAFE_BOUND, -1.0, WEAK_BOUND, 0.0)
DRAWN_LENGTHS = (1, 2, 7, 15, 16, 17, 31, 33, 48)  # round about a chunk and its multiples
STATES = ("initial_state", "final_state")
Group = Literal["tune", "check", "holdout"]

# The matrix of FlashKDA's benchmark: 8192 tokens in one sequence, in six of mixed length, in eight equal ones.
TOKENS = 8192
MIXED = (1300, 547, 2048, 963, 271, 3063)
UNIFORM = (1024,) * 8
RAGGED = {  # the lists of FlashKDA's tests
    "16": (16,), "16x2": (16, 16), "4-8-12": (4, 8, 12), "64-128-256": (64, 128, 256), "20-50-100": (20, 50, 100),
    "17-33-65": (17, 33, 65), "1024x8": UNIFORM, "mixed": MIXED, "tails": tuple(range(1, 16)),
}  # fmt: skip
# (tokens in all, heads, sequences): the few-head shapes that NVIDIA publishes times of its fused Hopper kernel for.
FEW_HEADS = (
    (1024, 4, 1), (2048, 12, 1), (2048, 16, 1), (3072, 10, 1), (4096, 8, 1), (4096, 12, 1), (8192, 12, 4),
    (8192, 16, 1), (8192, 24, 1), (16384, 16, 8),
)  # fmt: skip


def make(
    name: str, group: Group, heads: int, *, tokens: int = 0, batch: int = 1, lengths: Sequence[int] = (),
    states: Sequence[str] = STATES, state: str = "fp32", lower_bound: float = SAFE_BOUND, scale: float = SCALE,
    distribution: str = "normal",
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
        scalars={"scale": scale, "lower_bound": lower_bound},
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
    return (*tune, *few, *holdouts(), *checks())


def holdouts() -> tuple[Case, ...]:
    """Other lengths, heads and states; and timed shapes in which nothing is forgotten."""
    shapes = [
        make("h32-fixed-4k", "holdout", 32, tokens=4096),
        make("h48-ragged", "holdout", 48, lengths=(2048, 17, 4096, 333, 1, 1697)),
        make("h8-batched", "holdout", 8, tokens=1024, batch=8),
        make("h96-bf16-states", "holdout", 96, tokens=TOKENS, state="bf16"),
        make("h96-no-states", "holdout", 96, tokens=TOKENS, states=()),
        make("h64-mixed-in", "holdout", 64, lengths=MIXED, states=STATES[:1]),
        make("h64-mixed-out-bf16", "holdout", 64, lengths=MIXED, states=STATES[1:], state="bf16"),
        make("h1-fixed-128k", "holdout", 1, tokens=131072),
    ]
    weak = [
        make("h64-fixed-weak", "holdout", 64, tokens=TOKENS, lower_bound=WEAK_BOUND),
        make("h16-mixed-weak", "holdout", 16, lengths=MIXED, lower_bound=WEAK_BOUND),
    ]
    few = [
        make(f"h{heads}-{tokens}x{count}", "holdout", heads, tokens=tokens // count, batch=count)
        if count == 1
        else make(f"h{heads}-{tokens}x{count}", "holdout", heads, lengths=(tokens // count,) * count)
        for tokens, heads, count in FEW_HEADS
    ]
    return (*shapes, *weak, *few)


def cpu() -> tuple[Case, ...]:
    tune = (
        make("h2-fixed", "tune", 2, tokens=64),
        make("h2-ragged", "tune", 2, lengths=(17, 33, 14)),
        make("h4-batched", "tune", 4, tokens=16, batch=2),
    )
    return (*tune, *checks())


def checks() -> tuple[Case, ...]:
    """Every state mode, batches, ragged lists, lengths that no chunk divides; with four heads every kind of gate."""
    fixed = [
        make("t16-none", "check", 1, tokens=16, states=(), distribution="mixed"),
        make("t16-both", "check", 1, tokens=16, distribution="weak"),
        make("t17-in", "check", 4, tokens=17, states=STATES[:1], distribution="mixed"),
        make("t37-both", "check", 4, tokens=37, scale=OTHER_SCALE, distribution="wild"),
        make("t97-bf16", "check", 4, tokens=97, state="bf16", distribution="mixed"),
        make("t64-saturated", "check", 4, tokens=64, distribution="saturated"),
        make("t256-out", "check", 1, tokens=256, states=STATES[1:], distribution="mixed"),
        make("t320-weak", "check", 2, tokens=320, lower_bound=WEAK_BOUND, distribution="wild"),
        make("b2-t64", "check", 4, tokens=64, batch=2, distribution="mixed"),
        make("b4-t33-bf16", "check", 1, tokens=33, batch=4, state="bf16", states=STATES[1:], distribution="wild"),
        make("b8-t20-in-bf16", "check", 2, tokens=20, batch=8, state="bf16", states=STATES[:1], distribution="weak"),
    ]
    ragged = [
        make("ragged-16", "check", 1, lengths=RAGGED["16"], distribution="mixed"),
        make("ragged-16x2", "check", 2, lengths=RAGGED["16x2"], distribution="weak"),
        make("ragged-4-8-12", "check", 4, lengths=RAGGED["4-8-12"], distribution="mixed"),
        make("ragged-tails", "check", 4, lengths=RAGGED["tails"], scale=OTHER_SCALE, distribution="mixed"),
        make("ragged-20-50-100", "check", 1, lengths=RAGGED["20-50-100"], lower_bound=WEAK_BOUND, distribution="wild"),
        make("ragged-64-128-256", "check", 1, lengths=RAGGED["64-128-256"], distribution="weak"),
        make("ragged-17-33-65", "check", 4, lengths=RAGGED["17-33-65"], state="bf16", distribution="mixed"),
        make("ragged-20-50-100-none", "check", 1, lengths=RAGGED["20-50-100"], states=(), distribution="weak"),
        make("ragged-64-128-256-in", "check", 1, lengths=RAGGED["64-128-256"], states=STATES[:1], distribution="mixed"),
        make("ragged-17-33-out", "check", 4, lengths=(17, 33), states=STATES[1:], distribution="saturated"),
    ]
    return (*fixed, *ragged)


def neighbours(case: Case) -> tuple[Case, ...]:
    """The same tensors at few heads and tokens: every kind of gate side by side, and one that forgets nothing."""
    mixed = _near(case, "mixed", 4, (37,), (1, 40, 16, 5))
    weak = _near(case, "wild", 1, (129,), (67, 2, 48))
    return mixed, replace(weak, scalars={**case.scalars, "lower_bound": WEAK_BOUND})


def _near(case: Case, law: str, heads: int, fixed: Sequence[int], ragged: Sequence[int]) -> Case:
    ragged_case = "cu_seqlens" in case.present
    return _small(case, f"{case.name}~{law}", heads, ragged if ragged_case else fixed, law)


def _small(case: Case, name: str, heads: int, lengths: Sequence[int], law: str) -> Case:
    """`case` with other sizes: `lengths` packed, or (all equal) a batch."""
    packed = "cu_seqlens" in case.present
    dims = {**case.dims, "H": heads, "N": len(lengths)}
    dims |= {"B": 1, "T": sum(lengths)} if packed else {"B": len(lengths), "T": lengths[0]}
    data = {"lengths": tuple(lengths)} if packed else {}
    return replace(case, name=name, group="check", dims=dims, data=data, distribution=law)


def drawn(case: Case, rng: np.random.Generator) -> Case:
    """A small case with the tensors of `case`; its heads, lengths, scale and lower bound are drawn."""
    count, heads = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    lengths = [int(rng.choice(DRAWN_LENGTHS)) for _ in range(count)]
    if "cu_seqlens" not in case.present:
        lengths = lengths[:1] * count
    scalars = {"scale": float(rng.uniform(0.02, 1.0)), "lower_bound": float(rng.choice(DRAWN_BOUNDS))}
    made = _small(case, f"{case.name}~drawn", heads, lengths, "mixed")
    return replace(made, scalars=scalars)


def check(case: Case) -> None:
    """What KDA asks of a case besides the general rules. Raises `UsageError`."""
    dims, states = case.dims, [case.dtypes[name] for name in STATES if name in case.present]
    for name in ("K", "V"):
        if dims[name] != WIDTH:
            raise UsageError(f"case {case.name!r}: {name} is {dims[name]}", fix=f"K and V are {WIDTH} each")
    if len(set(states)) > 1:
        raise UsageError(
            f"case {case.name!r}: the initial state is {states[0]}, the final one {states[1]}", fix="give both one type"
        )
    bound, scale = case.scalars["lower_bound"], case.scalars["scale"]
    if not SAFE_BOUND <= bound <= 0.0:
        raise UsageError(
            f"case {case.name!r}: lower_bound is {bound:g}",
            fix=f"it is from {SAFE_BOUND:g} to 0: beyond, a chunk's decay leaves the range of fp32",
        )
    if not math.isfinite(scale):
        raise UsageError(f"case {case.name!r}: scale is {scale:g}", fix=f"give a number, 1 / sqrt(K) is {SCALE:g}")
    _check_lengths(case)


def _check_lengths(case: Case) -> None:
    lengths, dims = case.data.get("lengths", ()), case.dims
    if "cu_seqlens" not in case.present:
        if lengths:
            raise UsageError(f"case {case.name!r} has lengths but no cu_seqlens", fix="give both, or neither")
        if dims["N"] != dims["B"]:
            raise UsageError(f"case {case.name!r}: N is {dims['N']}, B is {dims['B']}", fix="without cu_seqlens N is B")
        return
    if dims["B"] != 1:
        raise UsageError(f"case {case.name!r}: B is {dims['B']} with cu_seqlens", fix="packed sequences have B = 1")
    if len(lengths) != dims["N"]:
        raise UsageError(
            f"case {case.name!r}: {len(lengths)} lengths for N = {dims['N']}", fix="give a length for every sequence"
        )
    check_edges([sum(lengths[:i]) for i in range(len(lengths) + 1)], dims["T"], f"case {case.name!r}")


def check_edges(edges: Iterable[int], tokens: int, whose: str) -> None:
    """cu_seqlens: from 0 to `tokens`, every sequence at least one token long. Raises `UsageError`."""
    values = [int(edge) for edge in edges]
    if len(values) < 2:
        raise UsageError(f"{whose}: cu_seqlens holds {values}", fix="it is the N + 1 edges of N sequences")
    if values[0] != 0:
        raise UsageError(f"{whose}: cu_seqlens starts at {values[0]}", fix="the first sequence starts at token 0")
    for number, (first, last) in enumerate(zip(values, values[1:], strict=False)):
        if last == first:
            raise UsageError(f"{whose}: sequence {number} is empty (cu_seqlens {first}, {last})", fix="leave it out")
        if last < first:
            raise UsageError(f"{whose}: cu_seqlens falls from {first} to {last}", fix="sort it")
    if values[-1] != tokens:
        raise UsageError(
            f"{whose}: cu_seqlens ends at {values[-1]}, T is {tokens}", fix="its last entry is the number of tokens"
        )


def bounds(case: Case) -> list[tuple[int, int]]:
    """First and last token (of B * T, one after the other) of every sequence, in the case's own order."""
    lengths = case.data.get("lengths") or (case.dims["T"],) * case.dims["B"]
    edges = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    return list(zip(edges, edges[1:], strict=False))

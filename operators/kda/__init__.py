"""Kimi Delta Attention, forward: a gated delta rule with one decay a channel (Kimi Linear, arXiv 2510.26692)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.dtypes import ITEMSIZE
from evo.operator import Baseline, Case, Cost, Fill, Operator, Recorded, Scalar, Tensor, Tolerance
from evo.operators.kda import cases, contents
from evo.operators.kda.baselines import CudnnKda, CudnnPrecastKda, FlaKda, FlashKda
from evo.operators.rmsnorm.records import read_recorded

if TYPE_CHECKING:
    import numpy as np

HERE = Path(__file__).parent
# The first covers every case: it is the yardstick of last resort. `recurrent` does too, and is twenty times slower.
CUDA_SEEDS = ("chunked.cu", "recurrent.cu", "fused.cu", "solver.cu")
CPU_SEEDS = ("recurrent.cpp",)
RECORDED = ("recorded.json", "recorded_forced.json")
HEADED, KEYS, VALUES = ("B", "T", "H"), ("B", "T", "H", "K"), ("B", "T", "H", "V")


class Kda(Operator):
    """q, k, g [B, T, H, K], v and out [B, T, H, V], beta [B, T, H] logits, all bf16; A_log [H], dt_bias [H, K] fp32;
    states [N, H, V, K] in fp32 or bf16, each optional; cu_seqlens [N + 1] int64 packs N sequences along T (B is 1).

    With qh = q / sqrt(sum(q^2) + 1e-6), kh likewise, per head and token t, S [K, V] from the initial state or 0:

        a = exp(lower_bound * sigmoid(exp(A_log) * (g + dt_bias)))      b = sigmoid(beta)
        S <- diag(a) S;  S <- S + kh (b (v - kh^T S))^T;  out = scale * qh^T S
    """

    name = "kda"
    summary = "Kimi Delta Attention forward: chunks of a gated delta rule, fixed, batched and ragged sequences"
    dims = ("B", "T", "H", "K", "V", "N")
    tensors: tuple[Tensor, ...] = (
        Tensor("q", "in", ("bf16",), KEYS),
        Tensor("k", "in", ("bf16",), KEYS),
        Tensor("v", "in", ("bf16",), VALUES),
        Tensor("g", "in", ("bf16",), KEYS),
        Tensor("beta", "in", ("bf16",), HEADED),
        Tensor("A_log", "in", ("fp32",), ("H",)),
        Tensor("dt_bias", "in", ("fp32",), ("H", "K")),
        Tensor("cu_seqlens", "in", ("i64",), ("N + 1",), optional=True),
        Tensor("initial_state", "in", ("fp32", "bf16"), ("N", "H", "V", "K"), optional=True),
        Tensor("out", "out", ("bf16", "fp32"), VALUES),
        Tensor("final_state", "out", ("fp32", "bf16"), ("N", "H", "V", "K"), optional=True),
    )
    scalars = (Scalar("scale", "f32"), Scalar("lower_bound", "f32"))
    numerics = ("accurate", "bit-exact")
    distributions: tuple[str, ...] = contents.DISTRIBUTIONS

    def cases(self, target: str) -> tuple[Case, ...]:
        return cases.cpu() if target == "cpu" else cases.cuda()

    def validate(self, case: Case) -> None:
        """Besides the general rules: K, V, the lower bound, one type of state, and sequences that fill the tokens."""
        super().validate(case)
        cases.check(case)

    def neighbours(self, case: Case) -> tuple[Case, ...]:
        return cases.neighbours(case)

    def drawn_near(self, case: Case, rng: np.random.Generator) -> tuple[Case, ...]:
        """Near what is timed; the reference takes a millisecond for a few tokens, so not near every small case too."""
        return (cases.drawn(case, rng),) if case.group != "check" else ()

    def drawn(self, cases_: Sequence[Case], rng: np.random.Generator) -> tuple[Case, ...]:
        return (cases.drawn(cases_[int(rng.integers(len(cases_)))], rng),) if cases_ else ()

    def inputs(
        self, case: Case, rng: np.random.Generator, distribution: str
    ) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
        return contents.inputs(case, rng, distribution)

    def reference(
        self, inputs: Mapping[str, np.ndarray[Any, Any]], case: Case
    ) -> Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]:
        from evo.operators.kda.reference import forward

        flat = {name: inputs[name].reshape(-1, *inputs[name].shape[2:]) for name in ("q", "k", "v", "g", "beta")}
        spans = cases.bounds(case)
        if (edges := inputs.get("cu_seqlens")) is not None:  # their order is the contents' own
            cases.check_edges(edges, case.dims["T"], f"case {case.name!r}")
            spans = [(int(a), int(b)) for a, b in zip(edges, edges[1:], strict=False)]
        out, final = forward(
            **flat, a_log=inputs["A_log"], dt_bias=inputs["dt_bias"], scale=float(case.scalars["scale"]),
            lower_bound=float(case.scalars["lower_bound"]), bounds=spans, initial_state=inputs.get("initial_state"),
        )  # fmt: skip
        found = {"out": out.reshape(inputs["v"].shape)}
        return found | ({"final_state": final} if "final_state" in case.present else {})

    def tolerance(self, case: Case) -> Tolerance:
        """What bf16 factors cost and little more, the same for out and state.

        FlashKDA's own arithmetic, which rounds the state to bf16 after every chunk, is 5.2e-3 to 5.7e-3 from float64
        where the gates are the timed ones, and up to 8.2e-3 where nothing is forgotten and on small cases; with the
        state in fp32 it is 3e-3 to 4e-3 everywhere.

        An output row whose q meets no k of the past is almost nothing, and almost all error; it is judged by the size
        of the tensor's rows. A segment that started from the wrong state is off by a row's own size.
        """
        timed = case.group != "check" and case.scalars["lower_bound"] == cases.SAFE_BOUND
        return Tolerance(rms=6e-3 if timed else 9e-3, max=0.25, row=0.06, row_floor=1.0)

    def cost(self, case: Case) -> Cost:
        """The states' products alone are 6 K V operations a token and head, whatever the chunk."""
        tokens, heads = case.dims["B"] * case.dims["T"], case.dims["H"]
        width = case.dims["K"]
        states = case.dims["N"] * heads * width * case.dims["V"]
        read = tokens * heads * (4 * width + 1) * ITEMSIZE["bf16"] + heads * (width + 1) * ITEMSIZE["fp32"]
        written = tokens * heads * case.dims["V"] * ITEMSIZE[case.dtypes["out"]]
        if "initial_state" in case.present:
            read += states * ITEMSIZE[case.dtypes["initial_state"]]
        if "final_state" in case.present:
            written += states * ITEMSIZE[case.dtypes["final_state"]]
        return Cost(read, written, flops=6 * width * case.dims["V"] * tokens * heads)

    def seeds(self, target: str) -> tuple[Path, ...]:
        return tuple(HERE / "seeds" / name for name in (CPU_SEEDS if target == "cpu" else CUDA_SEEDS))

    def oracle(self, target: str) -> Path | None:
        return HERE / ("oracle.cpp" if target == "cpu" else "oracle.cu")

    def baselines(self, target: str) -> Sequence[Baseline]:
        return () if target == "cpu" else (FlaKda(), CudnnKda(target), CudnnPrecastKda(target), FlashKda())

    def recorded(self, target: str) -> Sequence[Recorded]:
        if target != "sm_90":
            return ()
        return tuple(entry for name in RECORDED for entry in read_recorded(HERE / name))

    def notes(self) -> str:
        return (HERE / "notes.md").read_text(encoding="utf-8")

"""RMSNorm forward: y = x / sqrt(mean(x^2) + eps) * weight over the last axis, in x's dtype, with an fp32 weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.dtypes import ITEMSIZE
from evo.operator import Baseline, Case, Cost, Fill, Operator, Scalar, Tensor, Tolerance
from evo.operators.rmsnorm import cases, contents
from evo.operators.rmsnorm.baselines import NumpyRmsNorm, QuackRmsNorm, TorchRmsNorm

if TYPE_CHECKING:
    import numpy as np

HERE = Path(__file__).parent
CUDA_SEEDS = ("block.cu", "warp.cu", "cluster.cu")  # the first covers every case: it is the yardstick of last resort
CPU_SEEDS = ("plain.cpp", "simd.cpp")

# Half a unit in the last place at 1.0, the largest relative error of rounding to nearest; and the relative RMS error of
# rounding normally distributed values.
UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}
ROUNDING_RMS = {"bf16": 1.7e-3, "fp16": 2.1e-4}


class RmsNorm(Operator):
    """x [M, N] and y [M, N] in bf16, fp16 or fp32 (the same for both), weight [N] fp32, eps fp32."""

    name = "rmsnorm"
    summary = "RMSNorm forward over rows of bf16, fp16 or fp32 with an fp32 weight"
    dims = ("M", "N")
    tensors = (
        Tensor("x", "in", cases.DTYPES, ("M", "N")),
        Tensor("weight", "in", ("fp32",), ("N",)),
        Tensor("y", "out", cases.DTYPES, ("M", "N")),
    )
    scalars = (Scalar("eps", "f32"),)
    distributions = contents.DISTRIBUTIONS

    def cases(self, target: str) -> tuple[Case, ...]:
        return cases.cpu() if target == "cpu" else cases.cuda()

    def neighbours(self, case: Case) -> tuple[Case, ...]:
        return cases.neighbours(case)

    def inputs(
        self, case: Case, rng: np.random.Generator, distribution: str
    ) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
        return contents.inputs(case, rng, distribution)

    def reference(
        self, inputs: Mapping[str, np.ndarray[Any, Any]], case: Case
    ) -> Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]:
        from evo.operators.rmsnorm.reference import forward

        return {"y": forward(inputs["x"], inputs["weight"], float(case.scalars["eps"]))}

    def tolerance(self, case: Case) -> Tolerance:
        """Room for the output's rounding and hardly more.

        Timed cases hold millions of normally distributed values: their RMS error is that of rounding, within 20 %. On
        check cases one element may carry a row (an outlier), so only the largest rounding error bounds it. In fp32 the
        arithmetic itself shows: an approximate root, three products, and a sum whose error grows where outliers meet
        many small squares in few accumulators. Reduced precision inside is still a hundred times worse.
        """
        dtype, timed = case.dtypes["y"], case.group != "check"
        if dtype == "fp32":
            return Tolerance(rms=5e-7, max=2e-6, row=1e-6) if timed else Tolerance(rms=1e-5, max=1e-5, row=1e-5)
        largest = 1.02 * UNIT[dtype]
        return Tolerance(rms=1.2 * ROUNDING_RMS[dtype] if timed else largest, max=largest, row=largest)

    def cost(self, case: Case) -> Cost:
        elements = case.dims["M"] * case.dims["N"]
        return Cost(
            bytes_read=elements * ITEMSIZE[case.dtypes["x"]] + case.dims["N"] * ITEMSIZE["fp32"],
            bytes_written=elements * ITEMSIZE[case.dtypes["y"]],
            flops=4 * elements,
        )

    def seeds(self, target: str) -> tuple[Path, ...]:
        return tuple(HERE / "seeds" / name for name in (CPU_SEEDS if target == "cpu" else CUDA_SEEDS))

    def oracle(self, target: str) -> Path | None:
        return HERE / ("oracle.cpp" if target == "cpu" else "oracle.cu")

    def baselines(self, target: str) -> Sequence[Baseline]:
        return (NumpyRmsNorm(),) if target == "cpu" else (QuackRmsNorm(), TorchRmsNorm())

    def genome_baselines(self, target: str) -> Mapping[str, Path]:
        return {"c++ loop": HERE / "seeds" / "plain.cpp"} if target == "cpu" else {}

    def notes(self) -> str:
        return (HERE / "notes.md").read_text(encoding="utf-8")

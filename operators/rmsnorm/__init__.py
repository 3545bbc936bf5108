"""RMSNorm forward: with s = x + residual, y = s / sqrt(mean(s^2) + eps) * weight + bias over the last axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.dtypes import ITEMSIZE
from evo.errors import UsageError
from evo.operator import Baseline, Case, Cost, Fill, Operator, Recorded, Scalar, Tensor, Tolerance
from evo.operators.rmsnorm import cases, contents
from evo.operators.rmsnorm.baselines import NumpyRmsNorm, TorchRmsNorm
from evo.operators.rmsnorm.libraries import Int21RmsNorm, QuackRmsNorm, QuackTunedRmsNorm
from evo.operators.rmsnorm.records import read_recorded

if TYPE_CHECKING:
    import numpy as np

HERE = Path(__file__).parent
# The first covers every case: it is the yardstick of last resort.
CUDA_SEEDS = ("block.cu", "warp.cu", "cluster.cu", "smem.cu", "ring.cu", "chunks.cu")
CPU_SEEDS = ("plain.cpp", "simd.cpp")

# Half a unit in the last place at 1.0, the largest relative error of rounding to nearest; and the relative RMS error of
# rounding normally distributed values.
UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}
ROUNDING_RMS = {"bf16": 1.7e-3, "fp16": 2.1e-4}


class RmsNorm(Operator):
    """x, residual, y, residual_out [M, N]; weight, bias [H * N]; rstd [M] fp32; eps fp32.

    Row r takes part r % H of weight and bias: x [M / H, H, N] with a weight [H, N] a head; H is 1 elsewhere. The sum
    x + residual is normalised as it is in fp32, not as residual_out keeps it.
    """

    name = "rmsnorm"
    summary = (
        "RMSNorm forward over rows of bf16, fp16 or fp32, with residual, bias and statistics where a case has them"
    )
    dims = ("M", "N", "H")
    tensors = (
        Tensor("x", "in", cases.DTYPES, ("M", "N")),
        Tensor("weight", "in", ("fp32", "bf16", "fp16"), ("H * N",)),
        Tensor("residual", "in", cases.DTYPES, ("M", "N"), optional=True),
        Tensor("bias", "in", ("fp32", "bf16", "fp16"), ("H * N",), optional=True),
        Tensor("y", "out", cases.DTYPES, ("M", "N")),
        Tensor("residual_out", "out", cases.DTYPES, ("M", "N"), optional=True),
        Tensor("rstd", "out", ("fp32",), ("M",), optional=True),
    )
    scalars = (Scalar("eps", "f32"),)
    distributions = contents.DISTRIBUTIONS

    def cases(self, target: str) -> tuple[Case, ...]:
        return cases.cpu() if target == "cpu" else cases.cuda()

    def neighbours(self, case: Case) -> tuple[Case, ...]:
        return cases.neighbours(case)

    def drawn_near(self, case: Case, rng: np.random.Generator) -> tuple[Case, ...]:
        return cases.drawn_near(case, rng)

    def drawn(self, cases_: Sequence[Case], rng: np.random.Generator) -> tuple[Case, ...]:
        return cases.drawn(cases_, rng)

    def inputs(
        self, case: Case, rng: np.random.Generator, distribution: str
    ) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
        return contents.inputs(case, rng, distribution)

    def validate(self, case: Case) -> None:
        """Besides the general rules: y has x's type; the others have x's or are fp32; residual_out needs a residual."""
        super().validate(case)
        x = case.dtypes["x"]
        for name, dtype in case.dtypes.items():
            allowed = (x,) if name == "y" else (x, "fp32")
            if dtype not in allowed:
                raise UsageError(
                    f"case {case.name!r}: {name} is {dtype}, x is {x}", fix=f"make it {' or '.join(allowed)}"
                )
        if ("residual" in case.present) != ("residual_out" in case.present):
            raise UsageError(f"case {case.name!r} has one of residual and residual_out", fix="give both, or neither")
        if case.dims["N"] * ITEMSIZE[x] % 16:
            raise UsageError(f"case {case.name!r}: rows of {case.dims['N']} {x} are no whole number of 16 bytes")

    def reference(
        self, inputs: Mapping[str, np.ndarray[Any, Any]], case: Case
    ) -> Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]:
        from evo.operators.rmsnorm.reference import outputs

        made = outputs(inputs, float(case.scalars["eps"]))
        return {name: made[name] for name in ("y", "residual_out", "rstd") if name in case.dtypes}

    def tolerance(self, case: Case) -> Tolerance:
        return self.output_tolerance(case, "y")

    def output_tolerance(self, case: Case, output: str) -> Tolerance:
        """Room for the output's rounding and hardly more.

        Timed cases hold millions of normally distributed values: their RMS error is that of rounding, within 20 %. On
        check cases one element may carry a row (an outlier), so only the largest rounding error bounds it. In fp32 the
        arithmetic itself shows: an approximate root, three products, and a sum whose error grows where outliers meet
        many small squares in few accumulators. Reduced precision inside is still a hundred times worse.
        """
        dtype, timed = case.dtypes[output], case.group != "check"
        if dtype == "fp32":
            return Tolerance(rms=5e-7, max=2e-6, row=1e-6) if timed else Tolerance(rms=1e-5, max=1e-5, row=1e-5)
        largest = 1.02 * UNIT[dtype]
        return Tolerance(rms=1.2 * ROUNDING_RMS[dtype] if timed else largest, max=largest, row=largest)

    def cost(self, case: Case) -> Cost:
        rows, columns, heads = (case.dims[name] for name in ("M", "N", "H"))
        sizes = {"rstd": rows, "weight": heads * columns, "bias": heads * columns}
        nbytes = {name: sizes.get(name, rows * columns) * ITEMSIZE[dtype] for name, dtype in case.dtypes.items()}
        return Cost(
            bytes_read=sum(nbytes.get(tensor.name, 0) for tensor in self.tensors if tensor.role == "in"),
            bytes_written=sum(nbytes.get(tensor.name, 0) for tensor in self.tensors if tensor.role == "out"),
            flops=(4 + ("residual" in case.present) + ("bias" in case.present)) * rows * columns,
        )

    def seeds(self, target: str) -> tuple[Path, ...]:
        return tuple(HERE / "seeds" / name for name in (CPU_SEEDS if target == "cpu" else CUDA_SEEDS))

    def oracle(self, target: str) -> Path | None:
        return HERE / ("oracle.cpp" if target == "cpu" else "oracle.cu")

    def baselines(self, target: str) -> Sequence[Baseline]:
        return (
            (NumpyRmsNorm(),)
            if target == "cpu"
            else (QuackRmsNorm(), QuackTunedRmsNorm(), Int21RmsNorm(), TorchRmsNorm())
        )

    def genome_baselines(self, target: str) -> Mapping[str, Path]:
        return {"c++ loop": HERE / "seeds" / "plain.cpp"} if target == "cpu" else {}

    def recorded(self, target: str) -> Sequence[Recorded]:
        return read_recorded(HERE / "recorded.json") if target == "sm_90" else ()

    def notes(self) -> str:
        return (HERE / "notes.md").read_text(encoding="utf-8")

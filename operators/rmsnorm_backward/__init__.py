"""RMSNorm backward: the gradients of x (or x + residual), weight and bias from the gradient of y."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.dtypes import ITEMSIZE
from evo.errors import UsageError
from evo.operator import Baseline, Case, Cost, Fill, Operator, Recorded, Tensor, Tolerance
from evo.operators.rmsnorm import ROUNDING_RMS, UNIT
from evo.operators.rmsnorm.records import read_recorded
from evo.operators.rmsnorm_backward import cases, contents
from evo.operators.rmsnorm_backward.baselines import (
    Int21RmsNormBackward,
    NumpyRmsNormBackward,
    QuackRmsNormBackward,
    QuackTunedRmsNormBackward,
    TorchRmsNormBackward,
)

if TYPE_CHECKING:
    import numpy as np

HERE = Path(__file__).parent
# The first covers the most: it is the yardstick of last resort.
CUDA_SEEDS = ("block.cu", "warp.cu", "ring.cu", "cluster.cu", "chunks.cu")
CPU_SEEDS = ("plain.cpp",)


class RmsNormBackward(Operator):
    """x, dy, dx, dresidual_out, dresidual [M, N]; weight, dw, db [N]; rstd [M] fp32.

    With n = x * rstd and g = weight * dy: dx = (g - n * mean(n * g)) * rstd + dresidual_out, dw = sum over rows of
    dy * n, db = sum over rows of dy. x is what was normalised: the forward pass's x, or its residual_out. dresidual is
    dx once more in another element type.
    """

    name = "rmsnorm_backward"
    summary = "RMSNorm backward: dx and dw, with residual and bias gradients where a case has them"
    dims = ("M", "N")
    tensors = (
        Tensor("x", "in", cases.DTYPES, ("M", "N")),
        Tensor("weight", "in", ("fp32", "bf16", "fp16"), ("N",)),
        Tensor("dy", "in", cases.DTYPES, ("M", "N")),
        Tensor("rstd", "in", ("fp32",), ("M",)),
        Tensor("dresidual_out", "in", cases.DTYPES, ("M", "N"), optional=True),
        Tensor("dx", "out", cases.DTYPES, ("M", "N")),
        Tensor("dw", "out", ("fp32", "bf16", "fp16"), ("N",)),
        Tensor("dresidual", "out", cases.DTYPES, ("M", "N"), optional=True),
        Tensor("db", "out", ("fp32", "bf16", "fp16"), ("N",), optional=True),
    )
    distributions = contents.DISTRIBUTIONS

    def cases(self, target: str) -> tuple[Case, ...]:
        return cases.cpu() if target == "cpu" else cases.cuda()

    def validate(self, case: Case) -> None:
        """Besides the general rules: dx has dy's type; the others have dy's or are fp32."""
        super().validate(case)
        dy = case.dtypes["dy"]
        for name, dtype in case.dtypes.items():
            allowed = (dy,) if name == "dx" else (dy, "fp32")
            if dtype not in allowed:
                fix = f"make it {' or '.join(dict.fromkeys(allowed))}"
                raise UsageError(f"case {case.name!r}: {name} is {dtype}, dy is {dy}", fix=fix)
        if "dresidual" in case.present and "dresidual_out" not in case.present:
            raise UsageError(f"case {case.name!r} has dresidual without dresidual_out", fix="give both")
        if case.dims["N"] * ITEMSIZE[dy] % 16:
            raise UsageError(f"case {case.name!r}: rows of {case.dims['N']} {dy} are no whole number of 16 bytes")

    def neighbours(self, case: Case) -> tuple[Case, ...]:
        return cases.neighbours(case)

    def drawn_near(self, case: Case, rng: np.random.Generator) -> tuple[Case, ...]:
        return cases.drawn_near(case, rng)

    def inputs(
        self, case: Case, rng: np.random.Generator, distribution: str
    ) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
        return contents.inputs(case, rng, distribution)

    def reference(
        self, inputs: Mapping[str, np.ndarray[Any, Any]], case: Case
    ) -> Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]:
        from evo.operators.rmsnorm_backward.reference import backward

        made = backward(inputs)
        return {name: made[name] for name in ("dx", "dw", "dresidual", "db") if name in case.dtypes}

    def tolerance(self, case: Case) -> Tolerance:
        return self.output_tolerance(case, "dx")

    def output_tolerance(self, case: Case, output: str) -> Tolerance:
        """Room for the output's rounding, and for fp32 arithmetic where the output is fp32.

        dw and db are sums over M rows in fp32. Added one after the other, n numbers of like size leave a relative error
        of about sqrt(n) * 2^-25; kernels have far shorter chains. The bound has room for the long one, and is a
        hundred times below what 16-bit partial sums leave. Largest errors are some five deviations of that, and where
        rows differ in size by powers of two a few of them count.
        """
        dtype, timed = case.dtypes[output], case.group != "check"
        if output in ("dw", "db"):
            sum_rms = 1e-6 + 2.0**-25 * sqrt(case.dims["M"])
            if dtype == "fp32":
                return Tolerance(rms=sum_rms, max=16 * sum_rms) if timed else Tolerance(rms=1e-5, max=1e-4)
            return Tolerance(rms=1.2 * ROUNDING_RMS[dtype] + sum_rms if timed else UNIT[dtype], max=1.05 * UNIT[dtype])
        if dtype == "fp32":
            return Tolerance(rms=1e-6, max=1e-5, row=4e-6) if timed else Tolerance(rms=1e-5, max=3e-5, row=1e-5)
        largest = 1.02 * UNIT[dtype]
        return Tolerance(rms=1.2 * ROUNDING_RMS[dtype] if timed else largest, max=largest, row=largest)

    def cost(self, case: Case) -> Cost:
        rows, columns = case.dims["M"], case.dims["N"]
        sizes = {"rstd": rows, "weight": columns, "dw": columns, "db": columns}
        nbytes = {name: sizes.get(name, rows * columns) * ITEMSIZE[dtype] for name, dtype in case.dtypes.items()}
        return Cost(
            bytes_read=sum(nbytes.get(tensor.name, 0) for tensor in self.tensors if tensor.role == "in"),
            bytes_written=sum(nbytes.get(tensor.name, 0) for tensor in self.tensors if tensor.role == "out"),
            flops=10 * rows * columns,
        )

    def seeds(self, target: str) -> tuple[Path, ...]:
        return tuple(HERE / "seeds" / name for name in (CPU_SEEDS if target == "cpu" else CUDA_SEEDS))

    def oracle(self, target: str) -> Path | None:
        return HERE / ("oracle.cpp" if target == "cpu" else "oracle.cu")

    def baselines(self, target: str) -> Sequence[Baseline]:
        if target == "cpu":
            return (NumpyRmsNormBackward(),)
        return (
            QuackRmsNormBackward(), QuackTunedRmsNormBackward(), Int21RmsNormBackward(), TorchRmsNormBackward(),
        )  # fmt: skip

    def genome_baselines(self, target: str) -> Mapping[str, Path]:
        return {"c++ loop": HERE / "seeds" / "plain.cpp"} if target == "cpu" else {}

    def recorded(self, target: str) -> Sequence[Recorded]:
        return read_recorded(HERE / "recorded.json") if target == "sm_90" else ()

    def notes(self) -> str:
        return (HERE / "notes.md").read_text(encoding="utf-8")

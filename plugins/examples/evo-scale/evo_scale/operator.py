"""y = a * x, elementwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evo.operator import Case, Cost, Fill, Operator, Scalar, Tensor, Tolerance

HERE = Path(__file__).parent


class Scale(Operator):
    """`x` and `y` are fp32 of shape (N,); `a` is a scalar."""

    name = "scale"
    summary = "y = a * x, fp32"
    dims = ("N",)
    tensors = (
        Tensor("x", "in", ("fp32",), ("N",)),
        Tensor("y", "out", ("fp32",), ("N",)),
    )
    scalars = (Scalar("a", "f32"),)

    def cases(self, target: str) -> tuple[Case, ...]:
        tune = tuple(_case(f"n{1 << power}", "tune", 1 << power) for power in (12, 14, 16))
        return (*tune, _case("n1001", "check", 1001, factor=-0.75))

    def neighbours(self, case: Case) -> tuple[Case, ...]:
        return (_case("n1", "check", 1), _case("n1001", "check", 1001, factor=-0.75))

    def inputs(
        self, case: Case, rng: np.random.Generator, distribution: str
    ) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
        return {"x": Fill("normal")}

    def reference(
        self, inputs: Mapping[str, np.ndarray[Any, Any]], case: Case
    ) -> Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]:
        return {"y": np.float64(np.float32(case.scalars["a"])) * inputs["x"].astype(np.float64)}

    def tolerance(self, case: Case) -> Tolerance:
        return Tolerance(rms=1e-7, max=1e-6)

    def cost(self, case: Case) -> Cost:
        count = case.dims["N"]
        return Cost(bytes_read=4 * count, bytes_written=4 * count, flops=count)

    def seeds(self, target: str) -> tuple[Path, ...]:
        return (HERE / "plain.cpp",) if target == "cpu" else ()

    def oracle(self, target: str) -> Path | None:
        return HERE / "oracle.cpp" if target == "cpu" else None


def _case(name: str, group: Any, count: int, factor: float = 2.5) -> Case:
    return Case(name, group, {"N": count}, {"x": "fp32", "y": "fp32"}, scalars={"a": factor})

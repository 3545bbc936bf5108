"""Opponents from libraries that the user has installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from evo.operator import Case

Run = Callable[[Mapping[str, Any], int], Mapping[str, Any] | None]
BLOCK = 1 << 15  # elements that NumPy works on at a time: float32 copies of them stay in the second-level cache


class NumpyRmsNorm:
    """Float32 arithmetic in preallocated arrays, a block of rows at a time."""

    name = "numpy"

    def missing(self) -> str:
        return ""

    def version(self) -> str:
        return importlib.metadata.version("numpy")

    def configuration(self, case: Case) -> str:
        return f"float32, in place, {self._rows(case)} rows at a time"

    def prepare(self, case: Case) -> Run:
        import numpy as np

        eps, step = np.float32(case.scalars["eps"]), self._rows(case)
        shape = (step, case.dims["N"])
        values, squares = np.empty(shape, np.float32), np.empty(shape, np.float32)

        def run(tensors: Mapping[str, Any], stream: int) -> None:
            x, weight, y = tensors["x"], tensors["weight"], tensors["y"]
            for first in range(0, len(x), step):
                part = x[first : first + step]
                work, square = values[: len(part)], squares[: len(part)]
                np.copyto(work, part)
                np.square(work, out=square)
                work /= np.sqrt(square.mean(axis=1, keepdims=True) + eps)
                work *= weight
                np.copyto(y[first : first + step], work, casting="same_kind")

        return run

    @staticmethod
    def _rows(case: Case) -> int:
        return max(1, min(case.dims["M"], BLOCK // case.dims["N"]))


class TorchRmsNorm:
    """`torch.nn.functional.rms_norm` with the weight in x's dtype: unequal dtypes fall off torch's fused kernel."""

    name = "torch"

    def missing(self) -> str:
        return "" if importlib.util.find_spec("torch") else "PyTorch with CUDA: pip install torch"

    def version(self) -> str:
        return importlib.metadata.version("torch")

    def configuration(self, case: Case) -> str:
        return f"torch.nn.functional.rms_norm, weight cast to {case.dtypes['x']} beforehand"

    def prepare(self, case: Case) -> Run:
        import torch

        shape, eps = [case.dims["N"]], float(case.scalars["eps"])
        weights: dict[int, Any] = {}

        def run(tensors: Mapping[str, Any], stream: int) -> Mapping[str, Any]:
            with _on_stream(stream):
                x, weight = torch.from_dlpack(tensors["x"]), torch.from_dlpack(tensors["weight"])
                # Every plain call casts the weight that it finds; a captured one reuses the cast of the plain call
                # before it, so that preparing a static weight is not timed.
                if weight.data_ptr() not in weights or not torch.cuda.is_current_stream_capturing():
                    weights[weight.data_ptr()] = weight.to(x.dtype)
                return {"y": torch.nn.functional.rms_norm(x, shape, weights[weight.data_ptr()], eps)}

        return run


class QuackRmsNorm:
    """QuACK's CuTe kernel as its own heuristics configure it; takes the fp32 weight as it is."""

    name = "quack"

    def missing(self) -> str:
        if importlib.util.find_spec("quack") and importlib.util.find_spec("torch"):
            return ""
        return "QuACK and PyTorch: pip install quack-kernels"

    def version(self) -> str:
        return importlib.metadata.version("quack-kernels")

    def configuration(self, case: Case) -> str:
        return "quack.rmsnorm.rmsnorm_fwd, fp32 weight, default configuration"

    def prepare(self, case: Case) -> Run:
        import torch

        # By its module's full name: the package rebinds `quack.rmsnorm` to a function.
        forward = importlib.import_module("quack.rmsnorm").rmsnorm_fwd
        eps = float(case.scalars["eps"])

        def run(tensors: Mapping[str, Any], stream: int) -> Mapping[str, Any]:
            with _on_stream(stream):
                out = forward(torch.from_dlpack(tensors["x"]), torch.from_dlpack(tensors["weight"]), eps=eps)
            return {"y": out[0] if isinstance(out, tuple) else out}

        return run


@contextmanager
def _on_stream(stream: int) -> Iterator[None]:
    """torch's current stream is `stream` (a raw handle) inside."""
    import torch

    with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
        yield

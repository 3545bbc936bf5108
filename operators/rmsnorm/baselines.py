"""Opponents: NumPy on the CPU, PyTorch on a GPU."""

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

        eps, step, heads = np.float32(case.scalars["eps"]), self._rows(case), case.dims["H"]
        shape = (step, case.dims["N"])
        values, squares = np.empty(shape, np.float32), np.empty(shape, np.float32)

        def run(tensors: Mapping[str, Any], stream: int) -> None:
            x, y = tensors["x"], tensors["y"]
            for first in range(0, len(x), step):
                rows = slice(first, min(first + step, len(x)))
                work, square = values[: rows.stop - first], squares[: rows.stop - first]
                np.copyto(work, x[rows])
                if "residual" in tensors:
                    work += tensors["residual"][rows]
                    np.copyto(tensors["residual_out"][rows], work, casting="same_kind")
                np.square(work, out=square)
                rms = np.sqrt(square.mean(axis=1, keepdims=True) + eps)
                if "rstd" in tensors:
                    np.divide(1.0, rms[:, 0], out=tensors["rstd"][rows])
                work /= rms
                head = np.arange(rows.start, rows.stop) % heads if heads > 1 else slice(None)
                work *= tensors["weight"].reshape(heads, -1)[head]
                if "bias" in tensors:
                    work += tensors["bias"].reshape(heads, -1)[head]
                np.copyto(y[rows], work, casting="same_kind")

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
        parts = []
        if "residual" in case.present:
            parts.append(f"x + residual in {case.dtypes['residual_out']}")
        parts.append("aten._fused_rms_norm" if "rstd" in case.present else "torch.nn.functional.rms_norm")
        parts.append(f"weight cast to {case.dtypes['x']} beforehand")
        if case.dims["H"] > 1:
            parts.append("multiplied by it apart, a head each")
        if "bias" in case.present:
            parts.append("bias added apart")
        return ", ".join(parts)

    def prepare(self, case: Case) -> Run:
        import torch

        columns, heads, eps = case.dims["N"], case.dims["H"], float(case.scalars["eps"])
        cast = CastOnce()

        def run(tensors: Mapping[str, Any], stream: int) -> Mapping[str, Any]:
            with on_stream(stream):
                given = {name: torch.from_dlpack(tensor) for name, tensor in tensors.items()}
                x, out = given["x"], {}
                weight = cast(given["weight"], x.dtype)
                values = x
                if "residual" in given:
                    wide = given["residual_out"].dtype
                    values = torch.add(x.to(wide), given["residual"].to(wide))
                    out["residual_out"] = values
                    values = values.to(x.dtype)
                if heads > 1:
                    y = torch.nn.functional.rms_norm(values, [columns], None, eps)
                    y = (y.view(-1, heads, columns) * weight.view(heads, columns)).view(x.shape)
                elif "rstd" in given:
                    y, rstd = torch.ops.aten._fused_rms_norm(values, [columns], weight, eps)
                    out["rstd"] = rstd.view(-1)
                else:
                    y = torch.nn.functional.rms_norm(values, [columns], weight, eps)
                if "bias" in given:
                    y = y + cast(given["bias"], x.dtype)
                return {**out, "y": y}

        return run


class CastOnce:
    """A static tensor in another dtype. Every plain call casts what it finds; a captured one reuses the cast of the
    plain call before it, so that preparing a static weight is not timed."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}

    def __call__(self, tensor: Any, dtype: Any) -> Any:
        import torch

        if tensor.data_ptr() not in self._kept or not torch.cuda.is_current_stream_capturing():
            self._kept[tensor.data_ptr()] = tensor.to(dtype)
        return self._kept[tensor.data_ptr()]


@contextmanager
def on_stream(stream: int) -> Iterator[None]:
    """torch's current stream is `stream` (a raw handle) inside."""
    import torch

    with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
        yield

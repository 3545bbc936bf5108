"""Opponents: NumPy on the CPU; on a GPU PyTorch, QuACK and INT21's kernels."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from evo.operator import Case
from evo.operators.rmsnorm.baselines import BLOCK, CastOnce, NumpyRmsNorm, Run, TorchRmsNorm, on_stream
from evo.operators.rmsnorm.libraries import TORCH_DTYPES, Int21RmsNorm, QuackRmsNorm


class NumpyRmsNormBackward(NumpyRmsNorm):
    """Float32 arithmetic, a block of rows at a time."""

    def configuration(self, case: Case) -> str:
        return f"float32, {max(1, min(case.dims['M'], BLOCK // case.dims['N']))} rows at a time"

    def prepare(self, case: Case) -> Run:
        import numpy as np

        step = max(1, min(case.dims["M"], BLOCK // case.dims["N"]))

        def run(tensors: Mapping[str, Any], stream: int) -> None:
            weight = tensors["weight"].astype(np.float32)
            dw, db = (np.zeros(case.dims["N"], np.float32) for _ in range(2))
            for first in range(0, case.dims["M"], step):
                rows = slice(first, first + step)
                x, dy = (tensors[name][rows].astype(np.float32) for name in ("x", "dy"))
                rstd = tensors["rstd"][rows, None]
                x *= rstd
                dw += np.einsum("ij,ij->j", dy, x)
                if "db" in tensors:
                    db += dy.sum(axis=0)
                dy *= weight
                x *= np.einsum("ij,ij->i", x, dy)[:, None] / np.float32(case.dims["N"])
                dy -= x
                dy *= rstd
                if "dresidual_out" in tensors:
                    dy += tensors["dresidual_out"][rows]
                for name in ("dx", "dresidual"):
                    if name in tensors:
                        np.copyto(tensors[name][rows], dy, casting="same_kind")
            np.copyto(tensors["dw"], dw, casting="same_kind")
            if "db" in tensors:
                np.copyto(tensors["db"], db, casting="same_kind")

        return run


class TorchRmsNormBackward(TorchRmsNorm):
    """PyTorch's fused backward kernel alone, called as autograd calls it. It takes one element type for all and gives
    dw in it: where dw is fp32 and x is not, it is rounded on the way, which such a case does not accept."""

    def configuration(self, case: Case) -> str:
        text = f"aten._fused_rms_norm_backward, all in {case.dtypes['x']}, weight cast to it beforehand"
        text += ", dresidual_out added apart" if "dresidual_out" in case.present else ""
        return text + (", db by a sum apart" if "db" in case.present else "")

    def prepare(self, case: Case) -> Run:
        import torch

        columns, cast = case.dims["N"], CastOnce()
        dtypes = {name: getattr(torch, TORCH_DTYPES[dtype]) for name, dtype in case.dtypes.items()}

        def run(tensors: Mapping[str, Any], stream: int) -> Mapping[str, Any]:
            with on_stream(stream):
                given = {name: torch.from_dlpack(tensor) for name, tensor in tensors.items()}
                x, dy = given["x"], given["dy"].to(dtypes["x"])
                dx, dw = torch.ops.aten._fused_rms_norm_backward(
                    dy, x, [columns], given["rstd"].view(-1, 1), cast(given["weight"], x.dtype), [True, True]
                )
                out = {"dw": dw.to(dtypes["dw"])}
                if "dresidual_out" in given:
                    dx = dx + given["dresidual_out"]
                if "dresidual" in given:
                    out["dresidual"] = dx.to(dtypes["dresidual"])
                if "db" in given:
                    out["db"] = given["dy"].sum(dim=0, dtype=torch.float32).to(dtypes["db"])
                return {**out, "dx": dx.to(dtypes["dx"])}

        return run


class QuackRmsNormBackward(QuackRmsNorm):
    """QuACK's backward kernel and the sum of its partial dw, as its own heuristics configure it."""

    def configuration(self, case: Case) -> str:
        return f"quack.rmsnorm.rmsnorm_bwd, {case.dtypes['weight']} weight, default configuration"

    def prepare(self, case: Case) -> Run:
        return backward_call(importlib.import_module("quack.rmsnorm").rmsnorm_bwd, case)


class QuackTunedRmsNormBackward(QuackRmsNorm):
    """The same as its tuner configures it, at a case's first call, by timing; the sum of the partial dw is torch's."""

    name = "quack-tuned"
    on_request = True  # too slow to be measured by every run

    def configuration(self, case: Case) -> str:
        return f"quack.rmsnorm.rmsnorm_bwd_tuned and torch.sum, {case.dtypes['weight']} weight, tuned on this case"

    def prepare(self, case: Case) -> Run:
        import torch

        tuned = importlib.import_module("quack.rmsnorm").rmsnorm_bwd_tuned
        count_rows = importlib.import_module("quack.rmsnorm_config").get_sm_count
        dtypes = {name: getattr(torch, TORCH_DTYPES[dtype]) for name, dtype in case.dtypes.items()}
        refuse_mixed(case)

        def run(tensors: Mapping[str, Any], stream: int) -> Mapping[str, Any]:
            with on_stream(stream):
                given = {name: torch.from_dlpack(tensor) for name, tensor in tensors.items()}
                x, device = given["x"], given["x"].device
                shape = (count_rows(case.dims["N"], device), case.dims["N"])
                partial = {
                    n: torch.empty(shape, device=device, dtype=torch.float32) for n in ("dw", "db") if n in given
                }
                tuned(
                    x, given["weight"], given["dy"], given["rstd"], given["dx"], partial["dw"], partial.get("db"),
                    dresidual_out=given.get("dresidual_out"), dresidual=given.get("dresidual"), sm_count=shape[0],
                    has_dw_partial=True, has_db_partial="db" in given,
                )  # fmt: skip
                return {name: each.sum(dim=0).to(dtypes[name]) for name, each in partial.items()}

        return run


class Int21RmsNormBackward(Int21RmsNorm):
    """INT21's PTX kernel for the plain case; what its package falls back to elsewhere is called as well."""

    def configuration(self, case: Case) -> str:
        return f"rmsnorm.rmsnorm.rmsnorm_bwd, {case.dtypes['weight']} weight"

    def prepare(self, case: Case) -> Run:
        return backward_call(importlib.import_module("rmsnorm.rmsnorm").rmsnorm_bwd, case)


def refuse_mixed(case: Case) -> None:
    """These libraries give dx in x's element type."""
    if case.dtypes["x"] != case.dtypes["dx"]:
        raise ValueError(f"dx comes in x's type {case.dtypes['x']}, wanted {case.dtypes['dx']}")


def backward_call(backward: Any, case: Case) -> Run:
    """A function with the signature that QuACK gave it and INT21 took over: returns (dx, dw, db, dresidual)."""
    import torch

    refuse_mixed(case)
    dtypes = {name: getattr(torch, TORCH_DTYPES[dtype]) for name, dtype in case.dtypes.items()}
    options: dict[str, Any] = {"has_bias": "db" in case.present, "has_residual": "dresidual_out" in case.present}

    def run(tensors: Mapping[str, Any], stream: int) -> Mapping[str, Any]:
        with on_stream(stream):
            given = {name: torch.from_dlpack(tensor) for name, tensor in tensors.items()}
            inputs = (given[name] for name in ("x", "weight", "dy", "rstd"))
            found = backward(*inputs, dresidual_out=given.get("dresidual_out"), **options)
            named = dict(zip(("dx", "dw", "db", "dresidual"), found, strict=True))
            return {name: named[name].to(dtypes[name]) for name in named if name in case.dtypes}

    return run

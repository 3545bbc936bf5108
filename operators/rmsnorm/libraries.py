"""Opponents from libraries of RMSNorm kernels that the user has installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from typing import Any

from evo.operator import Case
from evo.operators.rmsnorm.baselines import Run, on_stream

TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


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
        return f"quack.rmsnorm.rmsnorm_fwd, {case.dtypes['weight']} weight, default configuration"

    def prepare(self, case: Case) -> Run:
        # By its module's full name: the package rebinds `quack.rmsnorm` to a function.
        return forward_call(importlib.import_module("quack.rmsnorm").rmsnorm_fwd, case)


class QuackTunedRmsNorm(QuackRmsNorm):
    """QuACK's kernel as its tuner configures it, which it does at a case's first call, by timing (12 to 58 s a case on
    an H200). The tuner of 0.6.5 raises for rows of 32768 and more, which makes those cases fail here."""

    name = "quack-tuned"
    on_request = True  # too slow to be measured by every run

    def configuration(self, case: Case) -> str:
        return f"quack.rmsnorm.rmsnorm_fwd_tuned, {case.dtypes['weight']} weight, tuned on this case's own tensors"

    def prepare(self, case: Case) -> Run:
        import torch

        tuned = importlib.import_module("quack.rmsnorm").rmsnorm_fwd_tuned
        eps, heads = float(case.scalars["eps"]), case.dims["H"]

        def run(tensors: Mapping[str, Any], stream: int) -> None:
            with on_stream(stream):
                given = by_head({n: torch.from_dlpack(tensor) for n, tensor in tensors.items()}, case)
                optional = {n: given.get(n) for n in ("bias", "rstd", "residual", "residual_out")}
                extra = {"per_head": True} if heads > 1 else {}
                tuned(given["x"], given["weight"], given["y"], mean=None, eps=eps, **optional, **extra)

        return run


class Int21RmsNorm:
    """INT21's PTX kernels (github.com/Int21-AI/RMSNorm-H100), which have no wheel: used where they are installed."""

    name = "int21"
    distribution = "rmsnorm-h100"

    def missing(self) -> str:
        try:
            importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return f"INT21's RMSNorm-H100, from its sources (distribution {self.distribution}), and PyTorch"
        return "" if importlib.util.find_spec("torch") else "PyTorch with CUDA: pip install torch"

    def version(self) -> str:
        return importlib.metadata.version(self.distribution)

    def configuration(self, case: Case) -> str:
        return f"rmsnorm.rmsnorm.rmsnorm_fwd, {case.dtypes['weight']} weight"

    def prepare(self, case: Case) -> Run:
        return forward_call(importlib.import_module("rmsnorm.rmsnorm").rmsnorm_fwd, case)


def by_head(given: dict[str, Any], case: Case) -> dict[str, Any]:
    """Tensors as these libraries take a weight per head: [M / H, H, N] and [H, N]; unchanged where H is 1."""
    heads, columns = case.dims["H"], case.dims["N"]
    if heads == 1:
        return given
    if case.dims["M"] % heads:
        raise ValueError(f"{case.dims['M']} rows are no whole number of {heads} heads")
    flat = {"weight", "bias"}
    return {
        name: tensor.view(heads, columns)
        if name in flat
        else tensor.view(-1, heads)
        if name == "rstd"
        else tensor.view(-1, heads, columns)
        for name, tensor in given.items()
    }


def forward_call(forward: Any, case: Case) -> Run:
    """A function with the signature that QuACK gave it and INT21 took over: returns (y, residual_out, rstd)."""
    import torch

    eps, shape = float(case.scalars["eps"]), (case.dims["M"], case.dims["N"])
    options: dict[str, Any] = {"eps": eps}
    if "residual_out" in case.present:
        options["residual_dtype"] = getattr(torch, TORCH_DTYPES[case.dtypes["residual_out"]])
    if "rstd" in case.present:
        options["store_rstd"] = True

    def run(tensors: Mapping[str, Any], stream: int) -> Mapping[str, Any]:
        with on_stream(stream):
            given = by_head({n: torch.from_dlpack(tensor) for n, tensor in tensors.items()}, case)
            named = {n: given[n] for n in ("bias", "residual") if n in given}
            y, residual_out, rstd = forward(given["x"], given["weight"], **named, **options)
        made = {"y": y.view(shape)}
        if "residual_out" in case.present:
            made["residual_out"] = residual_out.view(shape)
        if "rstd" in case.present:
            made["rstd"] = rstd.view(-1)
        return made

    return run

"""Opponents: libraries with a KDA forward that the user has installed. They run on PyTorch tensors."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

from evo.operator import Case
from evo.operators.rmsnorm.baselines import Run, on_stream

CUDNN = "nvidia-cudnn-frontend"
CUDNN_LEAST = (1, 32)  # the first that ships the fused kernel for Hopper
HOPPER_ENGINE = "kda_hopper_cuda"


class Beforehand:
    """What is made of an input once, at the first call on its buffer: that one is checked and not timed."""

    def __init__(self) -> None:
        self._made: dict[object, Any] = {}

    def __call__(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


class FlaKda:
    """flash-linear-attention's Triton kernels with the bounded ("safe") gate."""

    name = "fla"

    def missing(self) -> str:
        if importlib.util.find_spec("fla") and importlib.util.find_spec("torch"):
            return ""
        return 'flash-linear-attention and PyTorch: pip install "fla-core[cuda]"'

    def version(self) -> str:
        return importlib.metadata.version("fla-core")

    def configuration(self, case: Case) -> str:
        parts = ["fla.ops.kda.chunk_kda, state_v_first, safe_gate, FLA_FLASH_KDA=0"]
        if case.dtypes.get("initial_state", "fp32") != "fp32":
            parts.append("initial state cast to fp32 in the call")
        if case.data.get("lengths"):
            parts.append("its table of chunks made beforehand, as layers that share cu_seqlens do")
        return "; ".join(parts)

    def prepare(self, case: Case) -> Run:
        import torch

        os.environ["FLA_FLASH_KDA"] = "0"  # else it hands the call to FlashKDA where that is installed
        chunk_kda = importlib.import_module("fla.ops.kda").chunk_kda
        kept, same = Beforehand(), case.distribution == "normal"
        options = {
            "scale": float(case.scalars["scale"]), "lower_bound": float(case.scalars["lower_bound"]),
            "output_final_state": "final_state" in case.present, "use_qk_l2norm_in_kernel": True,
            "use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "safe_gate": True, "state_v_first": True,
        }  # fmt: skip

        def run(tensors: Mapping[str, Any], stream: int) -> Mapping[str, Any]:
            with on_stream(stream), torch.no_grad():
                given = {name: torch.from_dlpack(tensor) for name, tensor in tensors.items()}
                edges, state = given.get("cu_seqlens"), given.get("initial_state")
                if edges is not None and same:  # fla knows its table again by the tensor object
                    edges = kept("cu_seqlens", edges.clone)
                out, final = chunk_kda(
                    *(given[name] for name in ("q", "k", "v", "g", "beta")),
                    A_log=given["A_log"], dt_bias=given["dt_bias"].view(-1), cu_seqlens=edges,
                    initial_state=None if state is None else state.float(), **options,
                )  # fmt: skip
                return outputs(given, out, final)

        return run


class CudnnKda:
    """cuDNN's one-launch kernel, which reads g and beta in fp32. The contract has them in bf16, so what the library
    needs to cast them is part of the call."""

    name = "cudnn"
    precast = False

    def __init__(self, target: str) -> None:
        self.engine = HOPPER_ENGINE if target == "sm_90" else None  # elsewhere the library's own choice

    def missing(self) -> str:
        try:
            known = tuple(int(part) for part in importlib.metadata.version(CUDNN).split(".")[:2])
        except (importlib.metadata.PackageNotFoundError, ValueError):
            known = (0, 0)
        if known >= CUDNN_LEAST and importlib.util.find_spec("torch"):
            return ""
        least = ".".join(map(str, CUDNN_LEAST))
        found = f" (found {known[0]}.{known[1]})" if known > (0, 0) else ""
        return f'{CUDNN} {least}{found} and PyTorch: pip install "{CUDNN}>={least}" torch'

    def version(self) -> str:
        return importlib.metadata.version(CUDNN)

    def configuration(self, case: Case) -> str:
        casts = "beforehand, NOT counted" if self.precast else "by the library in the call, counted"
        return f"kimi_delta_attention, plan {self.engine or 'of its own choice'}; g and beta cast to fp32 {casts}"

    def prepare(self, case: Case) -> Run:
        import torch

        attention = importlib.import_module("cudnn.linear_attention.ops").kimi_delta_attention
        kept, same = Beforehand(), case.distribution == "normal"
        last = case.dims["B"] * case.dims["T"]
        options = {
            "scale": float(case.scalars["scale"]), "gate_lower_bound": float(case.scalars["lower_bound"]),
            "output_final_state": "final_state" in case.present, "use_qk_l2norm_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True, "safe_gate": True, "plan_name": self.engine,
        }  # fmt: skip

        def run(tensors: Mapping[str, Any], stream: int) -> Mapping[str, Any]:
            with on_stream(stream), torch.no_grad():
                given = {name: torch.from_dlpack(tensor) for name, tensor in tensors.items()}
                packed = {n: given[n].view(last, *given[n].shape[2:]) for n in ("q", "k", "v", "g", "beta")}
                edges = given.get("cu_seqlens")
                if edges is None:  # a batch is packed sequences of one length
                    edges = kept("edges", lambda: torch.arange(
                        0, last + 1, case.dims["T"], dtype=torch.int32, device=given["q"].device))  # fmt: skip
                elif self.precast and same:
                    edges = kept("edges", lambda: given["cu_seqlens"].to(torch.int32))
                if self.precast:
                    for name in ("g", "beta"):
                        packed[name] = kept((name, given[name].data_ptr()), packed[name].float)
                out, final = attention(
                    **packed, cu_seqlens=edges, a_log=given["A_log"], dt_bias=given["dt_bias"],
                    initial_state=given.get("initial_state"), **options,
                )  # fmt: skip
                return outputs(given, out.view(given["v"].shape), final)

        return run


class CudnnPrecastKda(CudnnKda):
    """The kernel alone. It does less than the contract asks for, so it is no yardstick unless it is named."""

    name = "cudnn-precast"
    precast = True
    on_request = True


class FlashKda:
    """FlashKDA's two kernels (github.com/MoonshotAI/FlashKDA), which have no wheel: used where they are installed."""

    name = "flash_kda"

    def missing(self) -> str:
        if importlib.util.find_spec("flash_kda") and importlib.util.find_spec("torch"):
            return ""
        return (
            "FlashKDA and PyTorch, built with nvcc: "
            "pip install --no-build-isolation git+https://github.com/MoonshotAI/FlashKDA"
        )

    def version(self) -> str:
        return importlib.metadata.version("flash_kda")

    def configuration(self, case: Case) -> str:
        return "flash_kda.fwd, outputs in place, its own workspace and transpose of beta in the call"

    def prepare(self, case: Case) -> Run:
        import torch

        forward = importlib.import_module("flash_kda").fwd
        scale, lower_bound = float(case.scalars["scale"]), float(case.scalars["lower_bound"])

        def run(tensors: Mapping[str, Any], stream: int) -> None:
            with on_stream(stream), torch.no_grad():
                given = {name: torch.from_dlpack(tensor) for name, tensor in tensors.items()}
                optional = {name: given.get(name) for name in ("initial_state", "final_state", "cu_seqlens")}
                forward(
                    *(given[name] for name in ("q", "k", "v", "g", "beta")), scale, given["out"],
                    A_log=given["A_log"], dt_bias=given["dt_bias"], lower_bound=lower_bound, **optional,
                )  # fmt: skip

        return run


def outputs(given: Mapping[str, Any], out: Any, final: Any) -> dict[str, Any]:
    """What a library returned, in the types that the case asks for."""
    made = {"out": out.to(given["out"].dtype)}
    if "final_state" in given:
        made["final_state"] = final.to(given["final_state"].dtype)
    return made

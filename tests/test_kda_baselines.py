"""KDA: the libraries that it is compared with, and their recorded times."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evo.app.listing import list_baselines
from evo.fitness.filters import host_inputs
from evo.operator import Case
from evo.operators.kda import Kda, baselines, cases
from evo.operators.kda.reference import forward

KDA = Kda()
Array = np.ndarray[Any, Any]
RAGGED = cases.make("r", "check", 2, lengths=(3, 5))


def test_recorded_times_are_of_cases_that_there_are_and_are_shown_as_recorded() -> None:
    names = {case.name for case in KDA.cases("sm_90")}
    found = {(entry.opponent, entry.case): entry for entry in KDA.recorded("sm_90")}
    assert {entry.case for entry in found.values()} <= names
    assert found["FlashKDA", "h96-fixed"].time_us == 1404.4
    assert found["FlashKDA", "h96-fixed"].protocol == "flashkda"
    assert all("H200" in entry.provenance for entry in found.values())
    assert KDA.recorded("sm_100") == ()
    rows = {row.name: row for row in list_baselines("kda", "sm_90")}
    shown = rows["cudnn-frontend 1.32.0 fused, casts counted"]
    assert not shown.installed
    assert shown.recorded == 9
    assert "by flashkda" in shown.note
    assert "h96-fixed 1388.3 us" in shown.note


def test_what_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib.metadata, "version", absent)
    said = {library.name: library.missing() for library in KDA.baselines("sm_90")}
    assert 'pip install "fla-core[cuda]"' in said["fla"]
    assert 'pip install "nvidia-cudnn-frontend>=1.32"' in said["cudnn"]
    assert said["cudnn"] == said["cudnn-precast"]
    assert "github.com/MoonshotAI/FlashKDA" in said["flash_kda"]
    assert KDA.baselines("cpu") == ()


@pytest.mark.parametrize(("version", "usable"), [("1.31.4", False), ("1.32.0", True), ("2.0", True), ("dev", False)])
def test_an_old_cudnn_frontend_is_not_enough(monkeypatch: pytest.MonkeyPatch, version: str, usable: bool) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    said = baselines.CudnnKda("sm_90").missing()
    assert (said == "") is usable
    assert ("found 1.31" in said) is (version == "1.31.4")


def test_the_kernel_alone_is_marked_and_no_yardstick_of_its_own_accord() -> None:
    alone = baselines.CudnnPrecastKda("sm_90")
    assert getattr(alone, "on_request", False)
    assert "NOT counted" in alone.configuration(RAGGED)
    assert "in the call, counted" in baselines.CudnnKda("sm_90").configuration(RAGGED)
    assert "kda_hopper_cuda" in alone.configuration(RAGGED)
    assert "of its own choice" in baselines.CudnnKda("sm_100").configuration(RAGGED)


class Tensor:
    """What the adapters ask of a torch tensor, over a NumPy array."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape, self.dtype, self.device = array.shape, array.dtype, "device"

    def view(self, *shape: Any) -> Tensor:
        return Tensor(self.array.reshape(*shape))

    def to(self, dtype: Any) -> Tensor:
        return Tensor(self.array.astype(dtype))

    def float(self) -> Tensor:
        return self.to(np.float32)

    def clone(self) -> Tensor:
        return Tensor(self.array.copy())

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)


Computed = tuple[Array, Array]


def answer(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, edges: Array, *, a_log: Tensor, dt_bias: Tensor,
    scale: float, lower_bound: float, state: Tensor | None,
) -> Computed:  # fmt: skip
    """The truth for packed tensors, as the libraries' functions are said to compute it."""
    heads = a_log.shape[0]
    rows = [each.array.reshape(-1, heads, 128) for each in (q, k, v, g)]
    bounds = [(int(a), int(b)) for a, b in zip(edges, edges[1:], strict=False)]
    return forward(
        rows[0], rows[1], rows[2], rows[3], beta.array.reshape(-1, heads), a_log.array,
        dt_bias.array.reshape(heads, 128), scale=scale, lower_bound=lower_bound, bounds=bounds,
        initial_state=None if state is None else state.array,
    )  # fmt: skip


def fake_fla(calls: list[dict[str, Any]]) -> Callable[..., Any]:
    def chunk_kda(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, initial_state: Tensor | None,
        output_final_state: bool, use_qk_l2norm_in_kernel: bool, use_gate_in_kernel: bool,
        use_beta_sigmoid_in_kernel: bool, safe_gate: bool, lower_bound: float, state_v_first: bool,
        cu_seqlens: Tensor | None, A_log: Tensor, dt_bias: Tensor,
    ) -> Any:  # fmt: skip
        assert use_qk_l2norm_in_kernel
        assert use_gate_in_kernel
        assert use_beta_sigmoid_in_kernel
        assert safe_gate
        assert state_v_first
        assert -5 <= lower_bound < 0
        assert initial_state is None or initial_state.dtype == np.float32
        calls.append({"edges": cu_seqlens})
        tokens = q.shape[1]
        edges = np.arange(q.shape[0] + 1) * tokens if cu_seqlens is None else cu_seqlens.array
        out, final = answer(
            q, k, v, g, beta, edges, a_log=A_log, dt_bias=dt_bias, scale=scale, lower_bound=lower_bound,
            state=initial_state,
        )  # fmt: skip
        return Tensor(out.reshape(v.shape)), Tensor(final) if output_final_state else None

    return chunk_kda


def fake_cudnn(calls: list[dict[str, Any]]) -> Callable[..., Any]:
    def kimi_delta_attention(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor, scale: float,
        initial_state: Tensor | None, output_final_state: bool, use_qk_l2norm_in_kernel: bool,
        use_beta_sigmoid_in_kernel: bool, safe_gate: bool, gate_lower_bound: float, a_log: Tensor, dt_bias: Tensor,
        plan_name: str | None,
    ) -> Any:  # fmt: skip
        assert len(q.shape) == 3
        assert use_qk_l2norm_in_kernel
        assert use_beta_sigmoid_in_kernel
        assert safe_gate
        assert plan_name == "kda_hopper_cuda"
        calls.append({"g": g, "beta": beta, "edges": cu_seqlens})
        out, final = answer(
            q, k, v, g, beta, cu_seqlens.array, a_log=a_log, dt_bias=dt_bias, scale=scale,
            lower_bound=gate_lower_bound, state=initial_state,
        )  # fmt: skip
        return Tensor(out.reshape(v.shape)), Tensor(final) if output_final_state else Tensor(np.empty(0))

    return kimi_delta_attention


def fake_flash_kda(calls: list[dict[str, Any]]) -> Callable[..., Any]:
    def fwd(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, out: Tensor, A_log: Tensor,
        dt_bias: Tensor, lower_bound: float, initial_state: Tensor | None = None, final_state: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> None:  # fmt: skip
        calls.append({"edges": cu_seqlens})
        edges = np.arange(q.shape[0] + 1) * q.shape[1] if cu_seqlens is None else cu_seqlens.array
        made, final = answer(
            q, k, v, g, beta, edges, a_log=A_log, dt_bias=dt_bias, scale=scale, lower_bound=lower_bound,
            state=initial_state,
        )  # fmt: skip
        out.array[:] = made.reshape(out.shape)
        if final_state is not None:
            final_state.array[:] = final

    return fwd


FAKES = {
    "fla": ("fla.ops.kda", "chunk_kda", fake_fla),
    "cudnn": ("cudnn.linear_attention.ops", "kimi_delta_attention", fake_cudnn),
    "cudnn-precast": ("cudnn.linear_attention.ops", "kimi_delta_attention", fake_cudnn),
    "flash_kda": ("flash_kda", "fwd", fake_flash_kda),
}


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("torch")
    module.from_dlpack = Tensor
    module.no_grad = contextlib.nullcontext
    module.int32 = np.int32
    module.arange = lambda *bounds, dtype, device: Tensor(np.arange(*bounds, dtype=dtype))
    module.cuda = SimpleNamespace(ExternalStream=lambda raw: raw, stream=contextlib.nullcontext)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setenv("FLA_FLASH_KDA", "1")


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("name", FAKES)
@pytest.mark.parametrize(
    "case",
    [
        cases.make("fixed", "tune", 2, tokens=9),
        cases.make("batch-bf16", "tune", 2, tokens=6, batch=3, state="bf16"),
        cases.make("ragged", "tune", 3, lengths=(4, 1, 7)),
        cases.make("ragged-out", "tune", 1, lengths=(4, 5), states=cases.STATES[1:], state="bf16"),
        cases.make("none", "tune", 2, tokens=5, states=()),
    ],
    ids=lambda case: case.name,
)
def test_a_library_gets_what_it_wants_and_its_answer_is_found(
    name: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries' functions, with the signatures of fla-core 0.6.0, cudnn-frontend 1.32.0 and FlashKDA, are stood in
    for by the reference: what the adapter makes of their answers must be the truth again."""
    where, function, make = FAKES[name]
    calls: list[dict[str, Any]] = []
    module = ModuleType(where)
    setattr(module, function, make(calls))
    known = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda path: module if path == where else known(path))
    library = next(each for each in KDA.baselines("sm_90") if each.name == name)
    run = library.prepare(case)
    inputs = host_inputs(KDA, case, "normal", np.random.default_rng(7))
    truth = KDA.reference(inputs, case)
    dtype = inputs["q"].dtype
    written = {
        output: np.zeros(array.shape, dtype if output == "out" else np.float32) for output, array in truth.items()
    }
    if "final_state" in written and case.dtypes["final_state"] == "bf16":
        written["final_state"] = written["final_state"].astype(dtype)
    for _ in range(2):
        returned = run({**inputs, **written}, 0)
    found = {n: tensor.array for n, tensor in returned.items()} if returned else written
    assert set(found) == set(truth)
    for output, array in truth.items():
        assert found[output].shape == array.shape
        assert found[output].dtype == written[output].dtype
        np.testing.assert_array_equal(found[output], array.astype(written[output].dtype))
    first, second = calls
    if name == "fla":
        assert os.environ["FLA_FLASH_KDA"] == "0"
    if name == "fla" and "cu_seqlens" in case.present:
        assert first["edges"] is second["edges"]
    if name.startswith("cudnn"):
        precast = name == "cudnn-precast"
        assert first["g"].dtype == first["beta"].dtype == (np.float32 if precast else dtype)
        assert (first["g"] is second["g"]) is precast
        assert first["edges"].dtype == (np.int64 if "cu_seqlens" in case.present and not precast else np.int32)

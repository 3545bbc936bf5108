"""RMSNorm's backward pass: the operator's contract, its golden answers, and every genome that comes with it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from host_kernels import host_inputs, run_on_host, wrong

from evo.dtypes import numpy_dtype
from evo.errors import UsageError
from evo.fitness.compare import deviation
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.cuda.build import inspect_code
from evo.fitness.cuda.target import CudaTarget
from evo.genome import Genome, compile_request, objection, resolve_plan, uncovered
from evo.operator import Case, Operator
from evo.operators.rmsnorm.reference import forward
from evo.operators.rmsnorm_backward import RmsNormBackward, cases, contents
from evo.operators.rmsnorm_backward.baselines import NumpyRmsNormBackward
from evo.operators.rmsnorm_backward.reference import backward
from evo.records import Build, Status, Value
from evo.target import BlobStore, Target
from evo.testing.operators import OperatorContract

GOLDEN = Path(__file__).parent / "data" / "golden"
BACKWARD = RmsNormBackward()
Values = Mapping[str, Value]


class TestContract(OperatorContract):
    target_names = ("cpu", "sm_90")

    @pytest.fixture
    def operator(self) -> Operator:
        return BACKWARD

    @pytest.fixture(params=["cpu", "sm_90", "sm_100"])
    def target(self, request: pytest.FixtureRequest) -> Target:
        return CpuTarget() if request.param == "cpu" else CudaTarget(request.param)


# --- the matrix and the truth


def test_matrix_is_the_published_one() -> None:
    tune = [case for case in BACKWARD.cases("sm_90") if case.group == "tune"]
    assert [case.name for case in tune[-2:]] == ["bf16-16384x131072", "bf16-8192x262144"]
    cost = BACKWARD.cost(tune[4])
    elements = 32768 * 4096
    assert cost.bytes_read == 2 * elements * 2 + 4096 * 4 + 32768 * 4  # x, dy, weight, rstd
    assert cost.bytes_written == elements * 2 + 4096 * 4  # dx, dw


@pytest.mark.parametrize("name", ["bf16_37x264", "bf16_outliers_8x512", "fp32_3x4104"])
def test_reference_agrees_with_golden_gradients(name: str) -> None:
    golden = np.load(GOLDEN / f"rmsnorm_{name}.npz")
    found = backward({**{n: golden[n] for n in ("x", "dy", "weight")}, "rstd": golden["expected_rstd"]})
    np.testing.assert_allclose(found["dx"], golden["expected_dx"], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found["dw"], golden["expected_dw"], rtol=1e-7, atol=1e-7)


def test_reference_agrees_with_golden_after_a_residual() -> None:
    golden = np.load(GOLDEN / "rmsnorm_fp16_residual_bias_5x1000.npz")
    total = golden["x"].astype(np.float64) + golden["residual"]
    found = backward({"x": total, "dy": golden["dy"], "weight": golden["weight"], "rstd": golden["expected_rstd"]})
    np.testing.assert_allclose(found["dx"], golden["expected_dx"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found["dw"], golden["expected_dw"], rtol=1e-6, atol=1e-7)


def test_reference_is_the_derivative_of_the_forward_reference() -> None:
    """Central differences of a loss sum(y * dy) + sum(s * more), in float64, with eps that matters."""
    rng = np.random.default_rng(3)
    x, dy, more = rng.standard_normal((3, 4, 16))
    weight, bias, eps = rng.normal(1.0, 0.25, 16), rng.standard_normal(16), 0.5

    def loss(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> float:
        return float(np.sum(forward(x, weight, eps, bias=bias) * dy) + np.sum(x * more))

    rstd = 1.0 / np.sqrt(np.mean(x * x, axis=1) + eps)
    found = backward({"x": x, "dy": dy, "weight": weight, "rstd": rstd, "dresidual_out": more})
    arguments = {"x": x, "weight": weight, "bias": bias}
    for name, gradient in (("x", found["dx"]), ("weight", found["dw"]), ("bias", found["db"])):
        for index in np.ndindex(gradient.shape):
            step = np.zeros_like(arguments[name])
            step[index] = 1e-5
            up, down = (loss(**{**arguments, name: arguments[name] + sign * step}) for sign in (1, -1))
            assert (up - down) / 2e-5 == pytest.approx(gradient[index], rel=1e-6, abs=1e-7), (name, index)


def test_a_spoiled_row_spoils_its_row_of_dx_and_its_column_of_dw() -> None:
    case = cases.make("check", "bf16", 37, 264, "full")
    inputs = host_inputs(BACKWARD, case, "spoiled")
    ((row, column),) = np.argwhere(np.isnan(inputs["dy"].astype(np.float64)))
    truth = BACKWARD.reference(inputs, case)
    assert np.isnan(truth["dx"]).all(axis=1).nonzero()[0].tolist() == [row]
    assert np.isnan(truth["dx"]).sum() == 264
    for name in ("dw", "db"):
        assert np.isnan(truth[name]).nonzero()[0].tolist() == [column]


def test_rstd_of_the_forward_law_belongs_to_x() -> None:
    case = cases.make("check", "bf16", 37, 264)
    inputs = host_inputs(BACKWARD, case, "forward")
    x = inputs["x"].astype(np.float64)
    np.testing.assert_allclose(inputs["rstd"], 1 / np.sqrt(np.mean(x * x, axis=1) + contents.EPS), rtol=1e-6)
    assert np.ptp(np.log2(inputs["rstd"])) > 10


def test_tolerance_of_dw_has_room_for_one_long_chain_and_none_for_16_bit_sums() -> None:
    case = cases.make("tune", "bf16", 8192, 64)
    inputs = host_inputs(BACKWARD, case, "normal")
    truth = BACKWARD.reference(inputs, case)["dw"]
    terms = inputs["dy"].astype(np.float32) * (inputs["x"].astype(np.float32) * inputs["rstd"][:, None])
    limit = BACKWARD.output_tolerance(case, "dw")
    chain = deviation(np.cumsum(terms, axis=0, dtype=np.float32)[-1], truth)
    assert chain.rms < limit.rms
    assert chain.max < limit.max
    parts = terms.reshape(64, -1, 64).sum(axis=1).astype(numpy_dtype("bf16"))  # rounded once, summed in fp32
    assert deviation(parts.astype(np.float32).sum(axis=0), truth).rms > 100 * limit.rms


def test_illegal_cases_are_refused() -> None:
    good = cases.make("check", "bf16", 5, 64, "residual-fp32")
    BACKWARD.validate(good)
    for change, text in (
        ({"dims": {"M": 0, "N": 64}}, "M is 0"),
        ({"dims": {"M": 5, "N": 60}}, "no whole number of 16 bytes"),
        ({"dtypes": {**good.dtypes, "dx": "fp32"}}, "dx is fp32, dy is bf16"),
        ({"dtypes": {**good.dtypes, "x": "fp16"}}, "x is fp16, dy is bf16"),
        ({"dtypes": {**good.dtypes, "db": "fp32"}}, "'db' has an element type or is there, not both"),
    ):
        with pytest.raises(UsageError, match=text):
            BACKWARD.validate(dataclasses.replace(good, **change))


@pytest.mark.parametrize("mode", cases.MODES)
def test_numpy_baseline_is_right(mode: str) -> None:
    for case in (cases.make("check", "fp32", 301, 256, mode), cases.make("check", "bf16", 5, 40000, mode)):
        inputs = host_inputs(BACKWARD, case, "normal")
        truth = BACKWARD.reference(inputs, case)
        got = {name: np.full(each.shape, np.nan).astype(numpy_dtype(case.dtypes[name])) for name, each in truth.items()}
        assert NumpyRmsNormBackward().prepare(case)({**inputs, **got}, 0) is None
        assert wrong(BACKWARD, case, got, truth) == ""


def test_recorded_opponents_are_of_real_cases() -> None:
    names = {case.name for case in BACKWARD.cases("sm_90")}
    recorded = BACKWARD.recorded("sm_90")
    assert {entry.protocol for entry in recorded} == {"triton"}
    times = {(entry.opponent, entry.case): entry.time_us for entry in recorded}
    assert times["quack 0.6.5", "bf16-32768x65536"] == 4819.31
    assert times["int21 RMSNorm-H100", "bf16-32768x65536"] == 3204.38
    assert {entry.case for entry in recorded if entry.case.startswith("bf16")} <= names
    assert BACKWARD.recorded("cpu") == ()


# --- CPU genomes, compiled and run

CPU_CASES: list[tuple[Path, Case, Values]] = [
    (path, case, {})
    for path in (*BACKWARD.seeds("cpu"), *filter(None, [BACKWARD.oracle("cpu")]))
    for case in (*(cases.make("check", *entry) for entry in cases.CHECK), *cases.mode_checks())
]
CPU_CASES += [
    (path, cases.make("check", "bf16", 37, 264, "full"), {gene.name: gene.choices[-1]})
    for path in BACKWARD.seeds("cpu")
    for gene in Genome.read(path).genes.values()
]


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize(
    ("path", "case", "changes"), CPU_CASES, ids=lambda v: getattr(v, "stem", getattr(v, "name", str(v)))
)
def test_cpu_genome_is_right(path: Path, case: Case, changes: Values, tmp_path: Path) -> None:
    for law in contents.DISTRIBUTIONS if case.name == "bf16-37x264" else ("spoiled",):
        got, truth = run_on_host(BACKWARD, path, case, changes, law, tmp_path)
        assert wrong(BACKWARD, case, got, truth) == "", law


# --- CUDA genomes, compiled and inspected (running them needs a GPU: tests/gpu)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def _build(seed: str, case: Case, changes: Values, name: str, blobs: BlobStore) -> Build:
    path = next(each for each in (*BACKWARD.seeds(name), BACKWARD.oracle(name)) if each and each.stem == seed)
    genome, target = Genome.read(path), CudaTarget(name)
    values = genome.values(changes)
    assert objection(genome, values, target.nominal()) == ""
    assert uncovered(genome, BACKWARD, case, values, target.nominal()) == ""
    resolve_plan(genome, BACKWARD, case, values, target.nominal())
    return target.build(compile_request(genome, BACKWARD, case, values, target=name, arch=target.arch), blobs)


LONG: Values = {"RING": 96}


@pytest.mark.parametrize("name", ["sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("seed", "dtype", "columns", "mode", "changes"),
    [
        ("block", "bf16", 264, "", {}), ("block", "bf16", 8192, "", {}), ("block", "fp32", 4096, "", {}),
        ("block", "fp16", 4096, "full", {}), ("block", "bf16", 2048, "residual-fp32", {}),
        ("block", "bf16", 8192, "", {"WEIGHT": "held", "CTAS": 1}),
        ("warp", "bf16", 256, "", {}), ("warp", "bf16", 512, "", {}), ("warp", "fp32", 256, "", {}),
        ("warp", "fp16", 264, "full", {"CTAS": 1}),
        ("warp", "bf16", 256, "", {"FINISH": "ticket", "LANES": 8, "CTAS": 1}),
        ("ring", "bf16", 256, "", {}), ("ring", "fp16", 264, "full", {}), ("ring", "bf16", 2048, "", {}),
        ("ring", "bf16", 256, "", {"FINISH": "ticket", "PER": 32, "HELD": 0}),
        ("cluster", "bf16", 8192, "", {}), ("cluster", "bf16", 65536, "", {}), ("cluster", "bf16", 262144, "", {}),
        ("cluster", "fp32", 32768, "", LONG), ("cluster", "bf16", 65536, "full", LONG),
        ("cluster", "bf16", 65536, "", {**LONG, "WEIGHT": "shared"}),
        ("cluster", "fp16", 40960, "residual", {**LONG, "WEIGHT": "late"}),
        ("chunks", "bf16", 4096, "", {}), ("chunks", "bf16", 65536, "", {}), ("chunks", "bf16", 262144, "", {}),
        ("chunks", "fp16", 16384, "residual", {"WEIGHT": "late", "BEHIND": 0}),
    ],
)  # fmt: skip
def test_cuda_seed_builds_without_spills(
    seed: str, dtype: str, columns: int, mode: str, changes: Values, name: str, blobs: BlobStore
) -> None:
    build = _build(seed, cases.make("check", dtype, 37, columns, mode), changes, name, blobs)
    assert build.status is Status.OK, build.diagnosis
    assert {kernel.name for kernel in build.kernels} == {"backward_rows", "backward_sums"}
    assert [(kernel.spill_bytes, kernel.stack_bytes) for kernel in build.kernels] == [(0, 0)] * 2


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_cuda_oracle_builds(dtype: str, blobs: BlobStore) -> None:
    build = _build("oracle", cases.make("check", dtype, 5, 8), {}, "sm_90", blobs)
    assert build.status is Status.OK, build.diagnosis


def _opcodes(seed: str, columns: int, changes: Values, blobs: BlobStore) -> dict[str, set[str]]:
    build = inspect_code(_build(seed, cases.make("check", "bf16", 37, columns), changes, "sm_90", blobs), blobs)
    assert build.status is Status.OK, build.diagnosis
    return {kernel.name: set(kernel.opcodes) for kernel in build.kernels}


def test_loads_are_what_the_species_says(blobs: BlobStore) -> None:
    block = _opcodes("block", 4096, {}, blobs)["backward_rows"]
    assert any(name.startswith("LDGSTS") and ".128" in name for name in block)
    cluster = _opcodes("cluster", 65536, {}, blobs)["backward_rows"]
    assert any(name.startswith("UBLKCP") for name in cluster)
    assert any(name.startswith("STAS") for name in cluster)
    ticket = _opcodes("warp", 256, {"FINISH": "ticket"}, blobs)["backward_rows"]
    assert any(name.startswith(("ATOMG", "ATOM")) for name in ticket)
    second = _opcodes("warp", 256, {}, blobs)
    assert not any(name.startswith("ATOM") for name in second["backward_rows"])
    assert any(name.startswith("ACQBULK") for name in second["backward_sums"]), "it waits for the launch before"
    for name in block | cluster | second["backward_rows"]:
        assert not name.startswith("STG") or ".128" in name, name

"""RMSNorm: the operator's contract, its golden answers, and every genome that comes with it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
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
from evo.genome import Genome, compile_request, objection, uncovered
from evo.operator import Case, Operator
from evo.operators.rmsnorm import RmsNorm, cases, contents
from evo.operators.rmsnorm.baselines import NumpyRmsNorm
from evo.operators.rmsnorm.reference import forward
from evo.records import Build, BuildOptions, CompileRequest, Status, Value
from evo.target import BlobStore, Target
from evo.testing.operators import OperatorContract

GOLDEN = Path(__file__).parent / "data" / "golden"
RMSNORM = RmsNorm()
Values = Mapping[str, Value]


class TestContract(OperatorContract):
    target_names = ("cpu", "sm_90")

    @pytest.fixture
    def operator(self) -> Operator:
        return RMSNORM

    @pytest.fixture(params=["cpu", "sm_90", "sm_100"])
    def target(self, request: pytest.FixtureRequest) -> Target:
        return CpuTarget() if request.param == "cpu" else CudaTarget(request.param)


# --- the matrix and the truth


def test_matrix_is_the_published_one() -> None:
    every = RMSNORM.cases("sm_90")
    tune = [case for case in every if case.group == "tune"]
    assert [case.name for case in tune[:2]] == ["bf16-32768x256", "bf16-32768x512"]
    assert [case.dims["N"] for case in tune] == [256 << i for i in range(11)]
    assert [case.dims["M"] for case in tune] == [32768] * 9 + [16384, 8192]
    assert {case.dtypes["x"] for case in tune} == {"bf16"}
    for prefix in ("fp16", "fp32", "residual-bf16", "residual-fp16", "residual-out32-bf16", "residual-fp32-bf16"):
        assert [case.dims["N"] for case in every if case.name.startswith(f"{prefix}-") and case.group == "holdout"] == [
            256 << i for i in range(11)
        ]
    cost = RMSNORM.cost(tune[4])
    assert (cost.bytes_read, cost.bytes_written) == (32768 * 4096 * 2 + 4096 * 4, 32768 * 4096 * 2)


@pytest.mark.parametrize("name", ["bf16_37x264", "bf16_outliers_8x512", "fp32_3x4104"])
def test_reference_agrees_with_golden(name: str) -> None:
    golden = np.load(GOLDEN / f"rmsnorm_{name}.npz")
    y = forward(golden["x"], golden["weight"], float(golden["eps"]))
    np.testing.assert_allclose(y, golden["expected_y"], rtol=1e-7, atol=1e-12)


def test_reference_agrees_with_golden_after_residual_and_bias() -> None:
    golden = np.load(GOLDEN / "rmsnorm_fp16_residual_bias_5x1000.npz")
    total = golden["x"].astype(np.float64) + golden["residual"]
    y = forward(total, golden["weight"], float(golden["eps"])) + golden["bias"]
    np.testing.assert_allclose(y, golden["expected_y"], rtol=1e-7, atol=1e-7)


def test_cost_counts_every_tensor_once() -> None:
    cost = RMSNORM.cost(cases.make("holdout", "bf16", 1024, 4096, "full"))
    elements = 1024 * 4096
    assert cost.bytes_read == elements * (2 + 4) + 2 * 4096 * 2  # x, residual; weight, bias
    assert cost.bytes_written == elements * (2 + 4) + 1024 * 4  # y, residual_out; rstd


def test_a_row_takes_the_weight_of_its_head() -> None:
    case = cases.make("check", "bf16", 37, 264, "heads")
    inputs = host_inputs(RMSNORM, case, "normal")
    y = RMSNORM.reference(inputs, case)["y"]
    weight = inputs["weight"].reshape(cases.HEADS, 264)
    for row in (0, 7, 8, 36):
        alone = forward(inputs["x"][row : row + 1], weight[row % cases.HEADS], 1e-6)
        np.testing.assert_allclose(y[row : row + 1], alone, rtol=1e-12)


def test_kinds_of_cases_that_old_kernels_do_not_know_are_never_checked_with_plain_ones() -> None:
    """A kernel that takes x, an fp32 weight and y alone would silently be wrong where a case means more by them."""
    plain = [dict(cases.make("tune", dtype, 1, 8).dtypes) for dtype in cases.DTYPES]
    for target in ("cpu", "sm_90"):
        for case in RMSNORM.cases(target):
            assert dict(case.dtypes) not in plain or case.dims["H"] == 1, case.name
    old = "operator = 'rmsnorm'\nspecies = 'old'\n[[launch]]\nkernel = 'k'\ngrid = ['M']\nblock = [32]\n"
    genome = Genome.parse(f"/* evo\n{old}args = ['x', 'weight', 'y']\n*/\n", ".cu")
    facts = CudaTarget("sm_90").nominal()
    assert uncovered(genome, RMSNORM, cases.make("check", "bf16", 5, 64), {}, facts) == ""
    reason = uncovered(genome, RMSNORM, cases.make("check", "bf16", 5, 64, "residual"), {}, facts)
    assert reason == "no kernel takes the optional tensor 'residual', which the case has"


def test_illegal_cases_are_refused() -> None:
    good = cases.make("check", "bf16", 5, 64, "residual-fp32")
    RMSNORM.validate(good)
    for change, text in (
        ({"dims": {"M": 5, "N": 0, "H": 1}}, "N is 0"),
        ({"dims": {"M": 5, "N": 64}}, "its dimensions are"),
        ({"dims": {"M": 5, "N": 60, "H": 1}}, "no whole number of 16 bytes"),
        ({"dtypes": {**good.dtypes, "y": "fp32"}}, "y is fp32, x is bf16"),
        ({"dtypes": {**good.dtypes, "weight": "fp16"}}, "weight is fp16, x is bf16"),
        ({"dtypes": {**good.dtypes, "x": "fp64"}}, "x is fp64"),
        ({"present": frozenset({"residual"})}, "'residual_out' has an element type or is there, not both"),
        ({"present": frozenset({"residual", "offset"})}, "'offset' is no optional tensor"),
        ({"scalars": {}}, "its scalars are"),
        ({"flags": {"fast": True}}, "'fast' is no flag"),
        ({"distribution": "odd"}, "no distribution 'odd'"),
    ):
        with pytest.raises(UsageError, match=text):
            RMSNORM.validate(dataclasses.replace(good, **change))


def test_recorded_opponents_are_of_real_cases() -> None:
    names = {case.name for case in RMSNORM.cases("sm_90")}
    recorded = RMSNORM.recorded("sm_90")
    assert {entry.case for entry in recorded} <= names
    times = {(entry.opponent, entry.case): entry.time_us for entry in recorded}
    assert times["quack 0.6.5", "bf16-32768x256"] == 13.12
    assert times["quack-tuned 0.6.5", "bf16-32768x4096"] == 132.27
    assert ("quack-tuned 0.6.5", "bf16-32768x65536") not in times, "its tuner fails there"
    assert all("H200" in entry.provenance and entry.protocol == "triton" for entry in recorded)
    assert RMSNORM.recorded("sm_100") == ()


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_no_row_overflows_a_float_sum_of_squares(dtype: str) -> None:
    largest = 8.0 * 2.0 ** contents.EXPONENTS[dtype][1]  # eight standard deviations
    assert np.float32(largest) ** 2 * np.float32(262144) < np.finfo(np.float32).max
    assert largest < 65504 or dtype != "fp16"


def test_mixed_rows_hold_every_kind_and_a_nan_stays_in_its_row() -> None:
    case = cases.make("check", "bf16", 37, 264)
    x = host_inputs(RMSNORM, case, "mixed")["x"].astype(np.float64)
    bad = np.isnan(x).any(axis=1)
    assert bad.any()
    assert (x == 0).all(axis=1).any()
    assert (np.count_nonzero(x, axis=1) == 1).any()
    assert np.nanmax(np.abs(x)) > 2.0**49
    y = forward(x, np.ones(264, np.float32), 1e-6)
    assert np.array_equal(np.isnan(y).all(axis=1), bad)


def test_tolerance_refuses_rounding_inside() -> None:
    """A bf16 root, or a bf16 weight, is further from the truth than rounding the output is."""
    case = cases.make("tune", "bf16", 64, 4096)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((64, 4096)).astype(numpy_dtype("bf16"))
    weight = rng.normal(1.0, 0.25, 4096).astype(np.float32)
    truth, limit = forward(x, weight, 1e-6), RMSNORM.tolerance(case)
    good = deviation(truth.astype(numpy_dtype("bf16")), truth)
    assert good.rms < limit.rms
    assert good.max < limit.max
    worse = deviation(forward(x, weight.astype(numpy_dtype("bf16")), 1e-6).astype(numpy_dtype("bf16")), truth)
    assert worse.rms > limit.rms
    assert worse.max > limit.max


@pytest.mark.parametrize("mode", cases.MODES)
def test_numpy_baseline_is_right(mode: str) -> None:
    for case in (cases.make("check", "fp32", 301, 256, mode), cases.make("check", "bf16", 5, 40000, mode)):
        inputs = host_inputs(RMSNORM, case, "normal")
        truth = RMSNORM.reference(inputs, case)
        got = {name: np.full(each.shape, np.nan).astype(numpy_dtype(case.dtypes[name])) for name, each in truth.items()}
        assert NumpyRmsNorm().prepare(case)({**inputs, **got}, 0) is None
        assert wrong(RMSNORM, case, got, truth) == ""


# --- CPU genomes, compiled and run


def _one_gene_away(path: Path) -> Iterator[dict[str, Value]]:
    genome = Genome.read(path)
    for gene in genome.genes.values():
        yield {gene.name: gene.choices[-1]}


CPU_SEEDS = RMSNORM.seeds("cpu")
CPU_GENOMES = (*CPU_SEEDS, *filter(None, [RMSNORM.oracle("cpu")]))
CPU_CASES: list[tuple[Path, Case, Values]] = [
    (path, case, {})
    for path in CPU_GENOMES
    for case in (*(cases.make("check", *entry) for entry in cases.CHECK), *cases.mode_checks())
]
CPU_CASES += [
    (path, cases.make("check", dtype, 37, columns, mode), change)
    for path in CPU_SEEDS
    for change in _one_gene_away(path)
    for dtype, columns, mode in (("bf16", 264, ""), ("fp32", 256, ""), ("bf16", 272, "residual"))
]


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize(
    ("path", "case", "changes"), CPU_CASES, ids=lambda v: getattr(v, "stem", getattr(v, "name", str(v)))
)
def test_cpu_genome_is_right(path: Path, case: Case, changes: Values, tmp_path: Path) -> None:
    for law in ("mixed", "rows") if case.name == "bf16-37x264" else ("mixed",):
        got, truth = run_on_host(RMSNORM, path, case, changes, law, tmp_path)
        assert wrong(RMSNORM, case, got, truth) == ""


# --- CUDA genomes, compiled and inspected (running them needs a GPU: tests/gpu)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def _build(path: Path, case: Case, changes: Values, target: Target, blobs: BlobStore) -> Build:
    genome = Genome.read(path)
    values = genome.values(changes)
    assert objection(genome, values, target.nominal()) == ""
    assert uncovered(genome, RMSNORM, case, values, target.nominal()) == ""
    return target.build(compile_request(genome, RMSNORM, case, values, target=target.name, arch=target.arch), blobs)


TIED: Values = {"THREADS": 512, "KEEP": 32, "CTAS": 2, "WLOAD": "ld.global.v4.b32"}  # a whole row of fp32, 64 registers
ALONE: Values = {"CLUSTER": 1, "WEIGHT": "late", "BEHIND": 0, "RING": 208}


@pytest.mark.parametrize("name", ["sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("seed", "dtype", "columns", "mode", "changes"),
    [
        ("block", "bf16", 264, "", {}), ("block", "bf16", 16384, "", {}), ("block", "fp16", 262144, "", {}),
        ("block", "fp32", 65536, "", {}), ("block", "fp32", 65536, "bias", {}), ("block", "bf16", 65536, "full", {}),
        ("block", "fp32", 4096, "full", {}), ("block", "bf16", 128, "heads", {}),
        ("block", "fp32", 16384, "", TIED), ("block", "fp32", 32768, "", {**TIED, "THREADS": 1024, "CTAS": 1}),
        ("warp", "bf16", 256, "", {}), ("warp", "bf16", 2048, "", {}), ("warp", "fp16", 1000, "", {}),
        ("warp", "fp32", 1024, "", {}), ("warp", "bf16", 512, "full", {}), ("warp", "fp16", 128, "heads", {}),
        ("cluster", "bf16", 33000, "", {}), ("cluster", "bf16", 262144, "", {}), ("cluster", "fp16", 65536, "", {}),
        ("cluster", "fp32", 32768, "", {}), ("cluster", "bf16", 65536, "full", {}),
        ("smem", "bf16", 512, "", {}), ("smem", "fp32", 16384, "", {}), ("smem", "bf16", 4096, "residual", {}),
        ("smem", "bf16", 4096, "full", {"KEEP": "registers", "WEIGHT": "early", "CTAS": 4}),
        ("ring", "bf16", 256, "", {}), ("ring", "bf16", 512, "", {"OUT": "bulk"}), ("ring", "fp32", 256, "", {}),
        ("ring", "bf16", 256, "full", {}), ("ring", "bf16", 1024, "", {"ROWS": 1, "CTAS": 1}),
        ("chunks", "bf16", 8192, "", {}), ("chunks", "bf16", 65536, "", {}), ("chunks", "bf16", 65536, "", ALONE),
        ("chunks", "fp32", 32768, "", ALONE), ("chunks", "fp16", 8192, "full", {}),
        ("chunks", "bf16", 262144, "", {"CLUSTER": 8, "WEIGHT": "late", "RING": 208, "DEPTH": 2}),
    ],
)  # fmt: skip
def test_cuda_seed_builds_without_spills(
    seed: str, dtype: str, columns: int, mode: str, changes: Values, name: str, blobs: BlobStore
) -> None:
    path = next(each for each in RMSNORM.seeds(name) if each.stem == seed)
    build = _build(path, cases.make("check", dtype, 37, columns, mode), changes, CudaTarget(name), blobs)
    assert build.status is Status.OK, build.diagnosis
    (kernel,) = build.kernels
    assert (kernel.spill_bytes, kernel.stack_bytes) == (0, 0)
    assert kernel.parameters == (8, 8, 8, 8, 8, 8, 8, 4, 4)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_cuda_oracle_builds(dtype: str, blobs: BlobStore) -> None:
    path = RMSNORM.oracle("sm_90")
    assert path
    build = _build(path, cases.make("check", dtype, 5, 7), {}, CudaTarget("sm_90"), blobs)
    assert build.status is Status.OK, build.diagnosis


WRAPPERS = """
#include "evo.h"
extern "C" __global__ void touch(const __grid_constant__ CUtensorMap map, const float* in, float* out, double* wide) {
    extern __shared__ __align__(128) float tile[];
    __shared__ unsigned long long barrier;
    const unsigned at = evo_shared(&barrier), to = evo_shared(tile);
    evo_pdl_wait();
    if (threadIdx.x == 0) {
        evo_barrier_init(at, 1);
        evo_barrier_fence();
        evo_barrier_expect(at, 4096 + 1024 + 4);
        evo_bulk_load(to, in, 4096, at);
        evo_tensor_load(to + 4096, &map, 0, 0, at);
        evo_peer_store(evo_peer(to, evo_cluster_rank()), 1.0f, evo_peer(at, evo_cluster_rank()));
    }
    evo_cluster_arrive();
    evo_cluster_wait();
    evo_barrier_wait(at, 0);
    evo_shared_store(to + 4, evo_shared_load(to) + evo_peer_load(evo_peer(to, 0)));
    unsigned eight[8];
    float values[16], more[8];
    evo_shared_load(to, eight);
    evo_unpack<evo_bf16>(eight, values);
    EVO_LOAD("ld.global.nc.v4.b32", eight, in);
    evo_unpack<float>(eight, more);
    evo_pack<float>(more, eight);
    EVO_STORE("st.global.v4.b32", out + 16, eight);
    evo_pack<evo_fp16>(values, eight);
    evo_async_load(to + 8192, in + 8);
    evo_async_commit();
    evo_async_wait<0>();
    evo_shared_store(to, eight);
    evo_sync(1, blockDim.x);
    evo_copy_fence();
    evo_barrier_arrive(at);
    evo_bulk_store(out + 32, to, 4096);
    evo_bulk_commit();
    evo_bulk_wait<0>();
    const unsigned word = evo_pack2<evo_fp16>(out[0], out[1]) ^ evo_pack2<evo_bf16>(out[2], out[3]);
    out[4] = evo_float(evo_cast<evo_fp16>(out[5])) + evo_float(evo_cast<evo_bf16>(out[6])) + evo_cast<float>(out[7]);
    out[8] = evo_sum(evo_unpack2<evo_fp16>(word).x) + evo_unpack2<evo_bf16>(word).y + evo_float(wide[0]);
    wide[1] = evo_cast<double>(out[9]);
    evo_pdl_launch();
}
"""


@pytest.mark.parametrize("name", ["sm_90", "sm_100"])
def test_every_wrapper_of_evo_h_assembles(name: str, blobs: BlobStore) -> None:
    target = CudaTarget(name)
    request = CompileRequest(name, target.arch, ".cu", WRAPPERS, (), BuildOptions(), ("touch",))
    build = inspect_code(target.build(request, blobs), blobs)
    assert build.status is Status.OK, build.diagnosis
    opcodes = " ".join(build.kernels[0].opcodes)
    for wanted in ("UBLKCP", "UTMALDG.2D", "STAS", "SYNCS", "UCGABAR_ARV", "ACQBULK", "PREEXIT", "F2FP.BF16", "LDGSTS"):
        assert wanted in opcodes, wanted


def _opcodes(seed: str, columns: int, changes: Values, blobs: BlobStore) -> dict[str, int]:
    path = next(each for each in RMSNORM.seeds("sm_90") if each.stem == seed)
    build = _build(path, cases.make("check", "bf16", 37, columns), changes, CudaTarget("sm_90"), blobs)
    assert build.status is Status.OK, build.diagnosis
    return dict(inspect_code(build, blobs).kernels[0].opcodes)


def test_every_memory_access_is_128_bits_wide_and_carries_its_policy(blobs: BlobStore) -> None:
    changes = {"LOAD": "ld.global.nc.L1::no_allocate.L2::256B.v4.b32", "STORE": "st.global.cs.v4.b32"}
    for seed, columns in (("block", 4096), ("warp", 512), ("cluster", 65536)):
        found = _opcodes(seed, columns, changes, blobs)
        memory = [name for name in found if name.startswith(("LDG", "STG"))]
        assert all(".128" in name for name in memory), (seed, memory)
        assert "LDG.E.NA.LTC256B.128.CONSTANT" in memory, seed
        assert "STG.E.EF.128" in memory, seed


def test_copies_are_what_the_species_says(blobs: BlobStore) -> None:
    assert any(name.startswith("LDGSTS") and ".128" in name for name in _opcodes("smem", 4096, {}, blobs))
    for seed, columns in (("ring", 256), ("chunks", 65536)):
        found = _opcodes(seed, columns, {}, blobs)
        assert any(name.startswith("UBLKCP") for name in found), seed
        assert all(".128" in name for name in found if name.startswith(("LDG", "STG"))), seed
    out = _opcodes("ring", 256, {"OUT": "bulk"}, blobs)
    assert not any(name.startswith("STG") for name in out), "y leaves by bulk copies alone"
    assert any(name.startswith("STAS") for name in _opcodes("chunks", 65536, {}, blobs))
    assert not any(name.startswith("STAS") for name in _opcodes("chunks", 32768, ALONE, blobs))


def test_cluster_exchange_is_what_the_gene_says(blobs: BlobStore) -> None:
    push = _opcodes("cluster", 65536, {"EXCHANGE": "push"}, blobs)
    pull = _opcodes("cluster", 65536, {"EXCHANGE": "pull"}, blobs)
    assert any(name.startswith("STAS") for name in push)
    assert not any(name.startswith("STAS") for name in pull)
    assert any(name.startswith("UCGABAR") for name in pull)


@pytest.mark.parametrize("gene", ["LOAD", "STORE", "WLOAD", "RSQRT", "FORM", "WEIGHT", "ROWS", "KEEP"])
def test_every_choice_of_a_gene_makes_its_own_machine_code(gene: str, blobs: BlobStore) -> None:
    path = RMSNORM.seeds("sm_90")[0]
    case = cases.make("check", "bf16", 37, 8192)
    choices = Genome.read(path).genes[gene].choices
    if gene == "KEEP":
        choices = choices[2:4]  # a row of 8192 needs 16 words a thread: more change nothing
    builds = [_build(path, case, {gene: choice, "CTAS": 1}, CudaTarget("sm_90"), blobs) for choice in choices]
    assert [build.status for build in builds] == [Status.OK] * len(choices)
    assert len({build.code_hash for build in builds}) == len(choices)

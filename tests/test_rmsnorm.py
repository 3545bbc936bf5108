"""RMSNorm: the operator's contract, its golden answers, and every genome that comes with it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from evo.dtypes import numpy_dtype
from evo.fitness.compare import deviation
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.cuda.build import inspect_code
from evo.fitness.cuda.target import CudaTarget
from evo.genome import Genome, compile_request, objection, resolve_plan, uncovered
from evo.operator import Case, Operator
from evo.operators.rmsnorm import RmsNorm, cases, contents
from evo.operators.rmsnorm.baselines import NumpyRmsNorm
from evo.operators.rmsnorm.reference import forward
from evo.records import Build, BuildOptions, CompileRequest, Status, Value
from evo.target import BlobStore, Target
from evo.testing.operators import OperatorContract
from evo.testing.operators import contents as made

GOLDEN = Path(__file__).parent / "data" / "golden"
INCLUDE = Path(contents.__file__).parents[2] / "fitness"
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
    assert sum(case.group == "holdout" for case in every) == 22
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


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_no_row_overflows_a_float_sum_of_squares(dtype: str) -> None:
    largest = 8.0 * 2.0 ** contents.EXPONENTS[dtype][1]  # eight standard deviations
    assert np.float32(largest) ** 2 * np.float32(262144) < np.finfo(np.float32).max
    assert largest < 65504 or dtype != "fp16"


def test_mixed_rows_hold_every_kind_and_a_nan_stays_in_its_row() -> None:
    case = cases.make("check", "bf16", 37, 264)
    x = contents.mixed(case, np.random.default_rng(0)).astype(np.float64)
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


def test_numpy_baseline_is_right() -> None:
    for case in (cases.make("tune", "fp32", 300, 256), cases.make("tune", "bf16", 5, 40000)):
        inputs = _inputs(case, "normal")
        truth = RMSNORM.reference(inputs, case)["y"]
        y = np.full(truth.shape, np.nan).astype(numpy_dtype(case.dtypes["y"]))
        assert NumpyRmsNorm().prepare(case)({**inputs, "y": y}, 0) is None
        assert _right(y, truth, case)


# --- CPU genomes, compiled and run


def _inputs(case: Case, law: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    shapes = {"x": (case.dims["M"], case.dims["N"]), "weight": (case.dims["N"],)}
    return {n: made(d, shapes[n], case.dtypes[n], rng) for n, d in RMSNORM.inputs(case, rng, law).items()}


def _right(y: np.ndarray, truth: np.ndarray, case: Case) -> bool:
    found, limit = deviation(y, truth), RMSNORM.tolerance(case)
    return found.rms <= limit.rms and found.max <= limit.max and found.row <= limit.row


def _run_cpu(path: Path, case: Case, changes: Values, law: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """(y, truth) of a CPU genome, called block by block as the runner does; y starts as NaN."""
    genome, target = Genome.read(path), CpuTarget()
    values = genome.values(changes)
    request = compile_request(genome, RMSNORM, case, values, target="cpu", arch="native")
    launch = resolve_plan(genome, RMSNORM, case, values, target.nominal()).launches[0]
    source, library = folder / "genome.cpp", folder / "genome.so"
    source.write_text(request.source)
    defines = [f"-D{name}={value}" for name, value in request.defines]
    flags = [
        "-O2",
        "-march=native",
        "-fopenmp-simd",
        "-std=c++17",
        "-Wall",
        "-Werror",
        "-Wno-psabi",
        "-shared",
        "-fPIC",
    ]
    command = ["g++", *flags, *defines, f"-I{INCLUDE / 'cpu'}", "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=60)
    entry = getattr(ctypes.CDLL(str(library)), launch.kernel)

    inputs = _inputs(case, law)
    truth = RMSNORM.reference(inputs, case)["y"]
    y, guards = _guarded(truth.shape, case.dtypes["y"])
    arrays = {**inputs, "y": y}
    arguments = [
        ctypes.c_void_p(arrays[item.name].ctypes.data)
        if item.kind == "tensor"
        else (ctypes.c_float(item.value) if item.width == "f32" else ctypes.c_long(int(item.value)))
        for item in launch.args
    ]
    for first in range(0, launch.grid[0], launch.block[0]):
        last = min(first + launch.block[0], launch.grid[0])
        entry(ctypes.c_long(first), ctypes.c_long(last), ctypes.c_int(0), *arguments)
    assert all((guard == 0xA5).all() for guard in guards)
    return y, truth


def _guarded(shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """An array of NaN that starts at a multiple of 256 bytes (streaming stores need that), and its guard bands."""
    size = int(np.prod(shape)) * numpy_dtype(dtype).itemsize
    memory = np.full(size + 1024, 0xA5, np.uint8)
    start = 512 - memory.ctypes.data % 256
    array = memory[start : start + size].view(numpy_dtype(dtype)).reshape(shape)
    array[:] = np.nan
    return array, (memory[:start], memory[start + size :])


def _one_gene_away(path: Path) -> Iterator[dict[str, Value]]:
    genome = Genome.read(path)
    for gene in genome.genes.values():
        yield {gene.name: gene.choices[-1]}


CPU_SEEDS = RMSNORM.seeds("cpu")
CPU_CASES: list[tuple[Path, Case, Values]] = [
    (path, cases.make("check", *entry), {})
    for path in (*CPU_SEEDS, *filter(None, [RMSNORM.oracle("cpu")]))
    for entry in cases.CHECK
]
CPU_CASES += [
    (path, cases.make("check", dtype, 37, columns), change)
    for path in CPU_SEEDS
    for change in _one_gene_away(path)
    for dtype, columns in (("bf16", 264), ("fp32", 256))
]


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize(
    ("path", "case", "changes"), CPU_CASES, ids=lambda v: getattr(v, "stem", getattr(v, "name", str(v)))
)
def test_cpu_genome_is_right(path: Path, case: Case, changes: Values, tmp_path: Path) -> None:
    for law in ("mixed", "rows") if case.name == "bf16-37x264" else ("mixed",):
        y, truth = _run_cpu(path, case, changes, law, tmp_path)
        assert _right(y, truth, case), deviation(y, truth)


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


@pytest.mark.parametrize("name", ["sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("seed", "dtype", "columns"),
    [
        ("block", "bf16", 264), ("block", "bf16", 16384), ("block", "fp16", 262144), ("block", "fp32", 65536),
        ("warp", "bf16", 256), ("warp", "bf16", 2048), ("warp", "fp16", 1000), ("warp", "fp32", 1024),
        ("cluster", "bf16", 33000), ("cluster", "bf16", 262144), ("cluster", "fp16", 65536), ("cluster", "fp32", 32768),
    ],
)  # fmt: skip
def test_cuda_seed_builds_without_spills(seed: str, dtype: str, columns: int, name: str, blobs: BlobStore) -> None:
    path = next(each for each in RMSNORM.seeds(name) if each.stem == seed)
    build = _build(path, cases.make("check", dtype, 37, columns), {}, CudaTarget(name), blobs)
    assert build.status is Status.OK, build.diagnosis
    (kernel,) = build.kernels
    assert (kernel.spill_bytes, kernel.stack_bytes) == (0, 0)
    assert kernel.parameters == (8, 8, 8, 4, 4)


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
    for wanted in ("UBLKCP", "UTMALDG.2D", "STAS", "SYNCS", "UCGABAR_ARV", "ACQBULK", "PREEXIT", "F2FP.BF16"):
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

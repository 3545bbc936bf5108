"""KDA: the operator's contract, its golden answers, and the genomes that come with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from evo.fitness.compare import deviation
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.cuda.target import CudaTarget
from evo.genome import Genome, compile_request
from evo.operator import Operator
from evo.operators.kda import Kda, cases, contents
from evo.operators.kda.reference import forward
from evo.records import Status
from evo.target import BlobStore, Target
from evo.testing.operators import OperatorContract

GOLDEN = Path(__file__).parent / "data" / "golden"
KDA = Kda()
Array = np.ndarray[Any, Any]


class TestContract(OperatorContract):
    target_names = ("cpu", "sm_90")

    @pytest.fixture
    def operator(self) -> Operator:
        return KDA

    @pytest.fixture(params=["cpu", "sm_90", "sm_100"])
    def target(self, request: pytest.FixtureRequest) -> Target:
        return CpuTarget() if request.param == "cpu" else CudaTarget(request.param)


# --- the truth


def widened(array: Array) -> Array:
    """float64 of an array whose bf16 values are stored as their bits."""
    return (array.view(ml_dtypes.bfloat16) if array.dtype == np.uint16 else array).astype(np.float64)


def golden(path: Path) -> tuple[dict[str, Array], Array, Array]:
    """The arrays of a golden case, and what the reference says of them."""
    data = dict(np.load(path))
    tokens = len(data["q"])
    edges = data.get("cu_seqlens", np.linspace(0, tokens, int(data.get("batch", 1)) + 1))
    q, k, v, g, beta, a_log, bias = (widened(data[name]) for name in ("q", "k", "v", "g", "beta", "A_log", "dt_bias"))
    out, final = forward(
        q, k, v, g, beta, a_log, bias,
        scale=float(data["scale"]), lower_bound=float(data["lower_bound"]),
        bounds=[(int(a), int(b)) for a, b in zip(edges, edges[1:], strict=False)],
        initial_state=widened(data["initial_state"]) if "initial_state" in data else None,
    )  # fmt: skip
    return data, out, final


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("kda_*.npz")), ids=lambda path: path.stem)
def test_reference_agrees_with_an_independent_one(path: Path) -> None:
    data, out, final = golden(path)
    assert deviation(out, data["expected_out"]).rms < 1e-8
    assert deviation(final, data["expected_final_state"]).rms < 1e-8


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("flashkda_*.npz")), ids=lambda path: path.stem)
def test_a_published_kernels_own_bits_are_within_the_tolerance(path: Path) -> None:
    data, out, final = golden(path)
    limit = KDA.tolerance(KDA.cases("cpu")[0])
    for name, truth in (("expected_out", out), ("expected_final_state", final)):
        if name in data:
            found = deviation(widened(data[name]), truth)
            assert 3e-3 < found.rms <= limit.rms


def test_a_sequence_does_not_see_its_neighbour() -> None:
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((40, 1, 128)) for _ in range(4))
    beta, a_log, bias = rng.standard_normal((40, 1)), np.zeros(1), np.zeros((1, 128))
    both, states = forward(q, k, v, g, beta, a_log, bias, scale=0.1, lower_bound=-1.0, bounds=[(0, 17), (17, 40)])
    alone, state = forward(
        q[17:], k[17:], v[17:], g[17:], beta[17:], a_log, bias, scale=0.1, lower_bound=-1.0, bounds=[(0, 23)]
    )
    assert np.array_equal(both[17:], alone)
    assert np.array_equal(states[1], state[0])


# --- the matrix


def test_matrix_is_the_published_one() -> None:
    tune = [case for case in KDA.cases("sm_90") if case.group == "tune"]
    assert [case.name for case in tune] == [
        "h96-fixed", "h96-mixed", "h96-uniform", "h64-fixed", "h64-mixed", "h64-uniform",
        "h12-fixed-8k", "h12-fixed-32k", "h16-mixed",
    ]  # fmt: skip
    assert {case.dims["T"] for case in tune} == {8192, 32768}
    assert sum(cases.MIXED) == sum(cases.UNIFORM) == 8192
    cost = KDA.cost(tune[0])
    assert (cost.bytes_read + cost.bytes_written) / 1e6 == pytest.approx(1021, rel=0.01)  # compulsory megabytes


def test_lengths_keep_their_order_where_they_are_timed_and_nowhere_else() -> None:
    case = next(case for case in KDA.cases("sm_90") if case.name == "h96-mixed")
    edges = contents.inputs(case, np.random.default_rng(1), "normal")["cu_seqlens"]
    assert isinstance(edges, np.ndarray)
    assert tuple(np.diff(edges)) == cases.MIXED
    orders = set()
    for seed in range(8):
        edges = contents.inputs(case, np.random.default_rng(seed), "mixed")["cu_seqlens"]
        assert isinstance(edges, np.ndarray)
        assert sorted(np.diff(edges)) == sorted(cases.MIXED)
        orders.add(tuple(np.diff(edges)))
    assert len(orders) > 4


# --- genomes


@pytest.mark.parametrize("name", ["chunked.cu", "recurrent.cu", "fused.cu", "solver.cu"])
@pytest.mark.parametrize("case", ["h96-fixed", "h96-mixed", "t97-bf16", "t16-none"])
def test_seed_builds_without_notices(name: str, case: str, tmp_path: Path) -> None:
    genome = Genome.read(Path(cases.__file__).parent / "seeds" / name)
    target = CudaTarget("sm_90")
    found = next(each for each in KDA.cases("sm_90") if each.name == case)
    request = compile_request(genome, KDA, found, genome.defaults(), target="sm_90", arch="sm_90a")
    build = target.build(request, BlobStore(tmp_path))
    assert build.status is Status.OK, build.diagnosis
    assert build.log == ""  # ptxas says here when it serialises wgmma
    assert all(kernel.spill_bytes <= 64 for kernel in build.kernels)

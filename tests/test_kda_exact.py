"""The bit-exact class of KDA: the emulation against FlashKDA's recorded bits, and the builds of its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kda_golden
import numpy as np
import pytest
from kda_golden import FILES, HEADED, Recording

from evo.fitness.compare import deviation
from evo.fitness.cuda.target import CudaTarget
from evo.genome import Genome, compile_request, resolve_plan
from evo.operators.kda import Kda, cases, exact
from evo.records import Status, Value
from evo.target import BlobStore

Array = np.ndarray[Any, Any]
KDA = Kda()
HERE = Path(cases.__file__).parent
EXACT, CHUNKED = HERE / "exact.cu", HERE / "seeds" / "chunked.cu"


# --- the emulation


def emulated(recording: Recording) -> dict[str, Array]:
    case, given = recording.case, recording.inputs
    q, k, v, g, beta = (given[name].reshape(-1, *given[name].shape[2:]) for name in HEADED)
    out, final = exact.forward(
        q, k, v, g, beta, given["A_log"], given["dt_bias"], scale=float(case.scalars["scale"]),
        lower_bound=float(case.scalars["lower_bound"]), bounds=cases.bounds(case),
        initial_state=given.get("initial_state"),
    )  # fmt: skip
    return {"out": out.reshape(given["v"].shape), "final_state": final}


@pytest.mark.parametrize("name", ["flashkda_saturated_t33", "flashkda_lb_small_ragged"])
def test_emulation_gives_the_recorded_bits_where_the_chips_last_bits_do_not_show(name: str) -> None:
    recording = kda_golden.read(next(path for path in FILES if path.stem == name))
    found = emulated(recording)
    assert np.array_equal(found["out"], recording.expected["out"].astype(np.float32))
    wrong = found["final_state"] != recording.expected["final_state"]
    assert wrong.sum() <= (0 if "saturated" in name else 2)  # of 32,768: the decay's own last bit


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_emulation_is_far_nearer_to_the_recorded_bits_than_to_the_truth(path: Path) -> None:
    recording = kda_golden.read(path)
    found = emulated(recording)
    for name, expected in recording.expected.items():
        assert deviation(found[name], expected.astype(np.float64)).rms < 2e-3  # the truth is at 4e-3 to 5.5e-3
        assert (found[name] != expected.astype(np.float32)).mean() < 0.12


def test_a_tensor_core_cuts_what_lies_far_below_the_largest_term() -> None:
    a, b, zero = np.zeros((1, 16), np.float32), np.ones((16, 1), np.float32), np.zeros((1, 1))
    a[0, :3] = 1.0, 2.0**-25, 2.0**-26
    assert exact.fused(a, b, zero)[0, 0] == 1.0 + 2.0**-25
    assert exact.fused(-a, b, zero)[0, 0] == -1.0 - 2.0**-25
    assert exact.fused(a, b, zero + 4.0)[0, 0] == 5.0  # c's exponent counts too
    assert exact.product(a, b)[0, 0] == 1.0  # fp32, towards zero
    a[0, 1] = 1.0 - 2.0**-8
    assert exact.product(a, b)[0, 0] == 2.0 - 2.0**-8
    assert exact.product(np.zeros((1, 16), np.float32), b)[0, 0] == 0.0


def test_three_squarings_invert() -> None:
    rng = np.random.default_rng(2)
    low = exact.fp16(np.tril(rng.uniform(-0.4, 0.4, (5, 16, 16)), -1))
    found = exact.inverse(low).astype(np.float64)
    truth = np.linalg.inv(np.eye(16) + low.astype(np.float64))
    assert np.abs(found - truth).max() < 0.01 * np.abs(truth).max()
    assert np.array_equal(np.triu(found), np.broadcast_to(np.eye(16), found.shape))


def test_a_sequence_does_not_see_its_neighbour() -> None:
    rng = np.random.default_rng(4)
    q, k, v, g = (exact.bf16(rng.standard_normal((40, 2, 128))) for _ in range(4))
    beta, a_log, bias = exact.bf16(rng.standard_normal((40, 2))), np.zeros(2), np.zeros((2, 128))

    def run(first: int, bounds: list[tuple[int, int]]) -> tuple[Array, Array]:
        rows = slice(first, None)
        return exact.forward(
            q[rows], k[rows], v[rows], g[rows], beta[rows], a_log, bias, scale=0.1, lower_bound=-1.0, bounds=bounds
        )

    (both, states), (alone, state) = run(0, [(0, 17), (17, 40)]), run(17, [(0, 23)])
    assert np.array_equal(both[17:], alone)
    assert np.array_equal(states[1], state[0])


# --- the kernels

BUILDS: list[tuple[Path, dict[str, Value], str, str]] = [
    (EXACT, {}, "h96-mixed", "sm_90"),
    (EXACT, {}, "t97-bf16", "sm_100"),
    (CHUNKED, {}, "h96-fixed", "sm_90"),
    (CHUNKED, {}, "t97-bf16", "sm_100"),
    (CHUNKED, {"THREADS": 64, "STAGES": 4, "SPLIT": 1}, "h96-mixed", "sm_90"),
    (CHUNKED, {"THREADS": 64, "SPLIT": 1, "TILES": 2, "FACTORS": "st.global.v4.b32"}, "t16-none", "sm_100"),
    (CHUNKED, {"THREADS": 256, "SPLIT": 4, "TILES": 2, "STORE": "st.global.cs.v4.b32"}, "t97-bf16", "sm_90"),
    (CHUNKED, {"THREADS": 256, "SPLIT": 4, "OVERLAP": 1, "FIRST": "given"}, "t17-in", "sm_100"),
    (CHUNKED, {"SPLIT": 1, "TILES": 2}, "t37-both", "sm_90"),
    (CHUNKED, {"FACTORS": "st.global.cg.v4.b32", "STORE": "st.global.L1::no_allocate.v4.b32"}, "t256-out", "sm_90"),
]


@pytest.mark.parametrize(("path", "genes", "name", "architecture"), BUILDS, ids=range(len(BUILDS)))
def test_kernels_build_without_spills(
    path: Path, genes: dict[str, Value], name: str, architecture: str, tmp_path: Path
) -> None:
    genome, target = Genome.read(path), CudaTarget(architecture)
    case = next(each for each in KDA.cases(architecture) if each.name == name)
    request = compile_request(genome, KDA, case, genome.values(genes), target=architecture, arch=target.arch)
    build = target.build(request, BlobStore(tmp_path))
    assert build.status is Status.OK, build.diagnosis
    assert build.log == ""
    assert [kernel.spill_bytes for kernel in build.kernels] == [0] * (1 if path == EXACT else 2)


@pytest.mark.parametrize("genes", [{}, {"STAGES": 4, "SPLIT": 1}, {"SPLIT": 4, "THREADS": 64, "OVERLAP": 1}])
def test_every_case_has_a_plan_with_room_for_its_factors(genes: dict[str, Value]) -> None:
    genome, facts = Genome.read(CHUNKED), CudaTarget("sm_90").nominal()
    for case in KDA.cases("sm_90"):
        plan = resolve_plan(genome, KDA, case, genome.values(genes), facts)
        assert [launch.kernel for launch in plan.launches] == ["kda_prepare", "kda_chain"]
        chunks = [-(-(last - first) // 16) for first, last in cases.bounds(case)]
        slots, heads, image = plan.scratch[0].shape
        assert slots >= sum(chunks)
        assert slots * heads == plan.launches[0].grid[0]
        assert image == 3 * 4096 + 512 + 2 * 512 + 32
        assert max(launch.shared for launch in plan.launches) <= facts.smem_block


def test_no_two_ragged_sequences_share_a_slot() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        edges = np.concatenate([[0], np.cumsum(rng.integers(0, 40, rng.integers(1, 12)))])
        begins = edges // 16 + np.arange(len(edges))  # as the kernels place them
        assert (begins[:-1] + -(-np.diff(edges) // 16) <= begins[1:]).all()
        assert begins[-1] == edges[-1] // 16 + len(edges) - 1  # what the scratch has room for

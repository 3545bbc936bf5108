"""CUDA seeds run without a GPU: their PTX, with warps in random order, against the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptx.launch import Outcome, compiled, run_genome, run_plan
from ptx.memory import Fault
from ptx.table import UnknownInstruction

from evo.fitness.compare import deviation
from evo.fitness.filters import excess, host_inputs
from evo.operator import Case, Operator
from evo.operators.kda import Kda, cases
from evo.operators.rmsnorm import RmsNorm
from evo.operators.rmsnorm_backward import RmsNormBackward
from evo.plan import Argument, Launch, LaunchPlan
from evo.records import BuildOptions, CompileRequest, Value

KDA, FORWARD, BACKWARD = Kda(), RmsNorm(), RmsNormBackward()
SCHEDULES = (1, 2)
SMALL_RING: dict[str, Value] = {"CONSUMERS": 128, "ROWS": 1, "STAGES": 2, "CTAS": 1}  # goes round with 37 rows
SMALL_RINGS: dict[str, Value] = {"WARPS": 4, "STAGES": 2, "TILE": 512, "CTAS": 2}


@dataclass
class Trial:
    """A seed on a case; inputs and truth are made once."""

    operator: Operator
    case: Case
    path: Path
    genes: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inputs = host_inputs(self.operator, self.case, self.case.distribution, np.random.default_rng(1))
        self.truth = self.operator.reference(self.inputs, self.case)

    def run(self, seed: int) -> Outcome:
        return run_genome(self.path, self.operator, self.case, self.genes, self.inputs, seed)

    def error(self, outcome: Outcome) -> float:
        """The largest deviation in units of what is accepted; infinite where poison is left."""
        return max(
            excess(deviation(outcome.outputs[name], truth, limit.row_floor), limit)
            for name, truth in self.truth.items()
            for limit in [self.operator.output_tolerance(self.case, name)]
        )


def seed_path(operator: Operator, name: str) -> Path:
    return next(path for path in operator.seeds("sm_90") if path.stem == name)


def check_case(operator: Operator, name: str) -> Case:
    return next(case for case in operator.cases("sm_90") if case.name == name)


# --- seeds


@pytest.mark.parametrize("name", ["fused", "solver"])
def test_kda_of_a_ragged_sequence(name: str) -> None:
    case = cases.make("ragged", "check", 2, lengths=(37,), distribution="wild")
    trial = Trial(KDA, case, seed_path(KDA, name))
    for schedule in SCHEDULES:
        assert trial.error(trial.run(schedule)) <= 1


@pytest.mark.parametrize(("name", "segment"), [("fused", 8), ("solver", 16)])
def test_kda_does_again_what_segments_got_wrong(name: str, segment: int) -> None:
    """The first head forgets nothing, so its second segment cannot start from zero; the other head's can."""
    case = cases.make("segments", "check", 2, tokens=16 * segment + 5, distribution="weak")
    trial = Trial(KDA, case, seed_path(KDA, name), {"SEGMENT": segment, "EARLY": 1})
    for schedule in SCHEDULES:
        outcome = trial.run(schedule)
        assert trial.error(outcome) <= 1
        first, again = outcome.executed
        assert len(first) == 4
        assert again[0, 0, 0] > 5 * again[1, 0, 0]


@pytest.mark.parametrize("case", ["bf16-37x264", "full-fp16-11x1000"])
@pytest.mark.parametrize(("name", "genes"), [("block", {}), ("warp", {}), ("ring", SMALL_RING)])
def test_rmsnorm(name: str, case: str, genes: dict[str, Value]) -> None:
    trial = Trial(FORWARD, check_case(FORWARD, case), seed_path(FORWARD, name), genes)
    for schedule in SCHEDULES:
        assert trial.error(trial.run(schedule)) <= 1


@pytest.mark.parametrize("case", ["fp16-5x1000", "full-bf16-37x264"])
@pytest.mark.parametrize(("name", "genes"), [("warp", {}), ("ring", {}), ("ring", SMALL_RINGS)])
def test_rmsnorm_backward(name: str, case: str, genes: dict[str, Value]) -> None:
    trial = Trial(BACKWARD, check_case(BACKWARD, case), seed_path(BACKWARD, name), genes)
    for schedule in SCHEDULES:
        assert trial.error(trial.run(schedule)) <= 1


# --- what the emulator sees: seeds and small kernels with a fault


RAGGED = cases.make("ragged", "check", 1, lengths=(37,), distribution="wild")
LONGER = cases.make("longer", "check", 1, lengths=(101,), distribution="wild")  # a ring of four chunks goes round
ROWS = check_case(FORWARD, "bf16-37x264")


@pytest.mark.parametrize(
    ("operator", "name", "case", "genes", "text"),
    [
        (KDA, "fused", RAGGED, {}, "evo_wgmma_wait<0>();"),
        (KDA, "fused", RAGGED, {}, "evo_async_wait<STAGES - 1>();"),
        (KDA, "solver", RAGGED, {}, "evo_sync(1 + turn, 128);"),
        (KDA, "solver", RAGGED, {}, "evo_barrier_wait(shared + READY + bar, turns / 2 % 2);"),
        (KDA, "solver", RAGGED, {}, "evo_barrier_wait(shared + FULL + 16 * turn + turns % 2 * 8, turns / 2 % 2);"),
        (KDA, "solver", LONGER, {}, "if (turns >= 2) evo_barrier_wait(empty + turns % 2 * 8, (turns / 2 - 1) % 2);"),
        (FORWARD, "ring", ROWS, SMALL_RING, "evo_barrier_wait(ring.empty(ring.stage), ring.parity ^ 1);"),
        (FORWARD, "ring", ROWS, SMALL_RING, "evo_barrier_wait(ring.full(ring.stage), ring.parity);"),
    ],
)
def test_a_wait_less_in_a_seed_is_seen(
    operator: Operator, name: str, case: Case, genes: dict[str, Value], text: str, tmp_path: Path
) -> None:
    source = seed_path(operator, name).read_text(encoding="utf-8")
    assert text in source
    broken = tmp_path / f"{name}.cu"
    broken.write_text(source.replace(text, ";"), encoding="utf-8")
    trial = Trial(operator, case, broken, genes)
    assert any(went_wrong(trial, schedule) for schedule in (*SCHEDULES, 3, 4))


def test_rows_that_are_fetched_too_early_are_seen(tmp_path: Path) -> None:
    """What the first proposals of `solver` did: copies land on rows that a slower warp of the warpgroup still reads."""
    source = seed_path(KDA, "solver").read_text(encoding="utf-8")
    fetch, wait = "        fetch(chunk + PREP, turns + 1);", "        evo_async_wait<0>();\n        if (valid"
    assert source.count(fetch) == source.count(wait) == 1
    early = source.replace(fetch, "").replace(wait, f"{fetch}\n{wait.replace('0', '1')}")
    broken = tmp_path / "solver.cu"
    broken.write_text(early, encoding="utf-8")
    trial = Trial(KDA, LONGER, broken)
    assert any(went_wrong(trial, schedule) for schedule in range(5, 13))


def went_wrong(trial: Trial, schedule: int) -> bool:
    try:
        return trial.error(trial.run(schedule)) > 1
    except UnknownInstruction:
        raise
    except Fault:
        return True


REVERSE = """
extern "C" __global__ void kernel(const int* x, int* y, int count) {
    __shared__ int held[256];
    held[threadIdx.x] = x[threadIdx.x];
    BARRIER
    if (threadIdx.x < count) y[(int)threadIdx.x SHIFT] = held[255 - threadIdx.x];
}
"""
X = np.arange(256, dtype=np.int32)


def run_small(source: str, seed: int, count: int = 256, **macros: str) -> np.ndarray[Any, Any]:
    """y of a kernel(x, y, count) in one block of 256 threads."""
    wanted = CompileRequest("sm_90", "sm_90a", ".cu", source, tuple(macros.items()), BuildOptions(), ("kernel",))
    args = (Argument("tensor", "x"), Argument("tensor", "y"), Argument("scalar", "count", "i32", count))
    plan = LaunchPlan((Launch("kernel", (1, 1, 1), (256, 1, 1), args),))
    return run_plan(plan, compiled(wanted), {"x": X}, {"y": np.empty_like(X)}, seed).outputs["y"]


def test_a_race_is_seen() -> None:
    right = [run_small(REVERSE, seed, BARRIER="__syncthreads();", SHIFT="") for seed in range(8)]
    assert all(np.array_equal(each, X[::-1]) for each in right)
    racing = [run_small(REVERSE, seed, BARRIER="", SHIFT="") for seed in range(8)]
    assert not all(np.array_equal(each, X[::-1]) for each in racing)


def test_a_race_between_lanes_of_a_warp_is_seen() -> None:
    swapped = REVERSE.replace("255 - threadIdx.x", "threadIdx.x ^ 1")
    right = [run_small(swapped, seed, BARRIER="__syncwarp();", SHIFT="") for seed in range(16)]
    assert all(np.array_equal(each, X ^ 1) for each in right)
    racing = [run_small(swapped, seed, BARRIER="", SHIFT="") for seed in range(16)]
    assert not all(np.array_equal(each, X ^ 1) for each in racing)


def test_what_is_not_written_stays_poison() -> None:
    found = run_small(REVERSE, 1, count=200, BARRIER="__syncthreads();", SHIFT="")
    assert np.array_equal(found[:200], X[:55:-1])
    assert (found[200:] == -1).all()


@pytest.mark.parametrize(("shift", "place"), [("+ 1", "byte 1024"), ("- 1", "byte -4")])
def test_a_store_out_of_bounds_is_a_fault_with_its_line(shift: str, place: str) -> None:
    with pytest.raises(Fault, match=rf"4 bytes are written at {place} of 'y', which has 1024; warp \d .*'st\.global"):
        run_small(REVERSE, 1, BARRIER="__syncthreads();", SHIFT=shift)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("const_cast<int*>(x)[threadIdx.x] = 1;", "'x', an input, is written"),
        ("y[0] = *(const int*)(long long)count;", "4 bytes are read at byte -"),
        ("y[0] = *(const long long*)(x + 1);", "8 bytes are read at byte 4 of 'x': misaligned"),
        ("if (threadIdx.x < 32) __syncthreads(); else return;", "deadlock: .*bar.sync"),
        ('asm volatile("bar.sync 1, 48;");', "64 threads arrive at a barrier for 48"),
    ],
)
def test_faults(statement: str, message: str) -> None:
    source = 'extern "C" __global__ void kernel(const int* x, int* y, int count) { STATEMENT }'
    with pytest.raises(Fault, match=message):
        run_small(source.replace("STATEMENT", statement), 1)


def test_a_memory_barrier_that_never_opens_is_a_deadlock() -> None:
    source = """
#include "evo.h"
extern "C" __global__ void kernel(const int* x, int* y, int count) {
    __shared__ unsigned long long barrier;
    if (threadIdx.x == 0) evo_barrier_init(evo_shared(&barrier), 2);
    __syncthreads();
    if (threadIdx.x == 0) evo_barrier_expect(evo_shared(&barrier), 0);
    evo_barrier_wait(evo_shared(&barrier), 0);
}
"""
    with pytest.raises(Fault, match=r"deadlock: .*mbarrier\.try_wait"):
        run_small(source, 1)


def test_an_unknown_instruction_is_named_with_its_line() -> None:
    source = 'extern "C" __global__ void kernel(const int* x, int* y, int count) { asm volatile("brkpt;"); }'
    with pytest.raises(
        UnknownInstruction, match=r"does not know brkpt; warp \d of block \(0, 0, 0\) of kernel, at 'brkpt'"
    ):
        run_small(source, 1)

"""Launches and faults on a real CUDA device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from device_code import (
    ACCUMULATE,
    CLUSTER,
    COOPERATIVE,
    FAULTS,
    ONE,
    PDL,
    SAXPY,
    SHARED,
    TMA,
    allocate,
    given,
    i32,
    load,
    output,
    scratch,
    tensors,
)  # fmt: skip

from evo.fitness.cuda.machine import CudaMachine
from evo.operator import Fill
from evo.plan import Argument, Launch, LaunchPlan, Scratch, TensorMap
from evo.records import Build, Status
from evo.target import Buffer, Rejected

pytestmark = pytest.mark.gpu


def launch_once(
    machine: CudaMachine, source: str, plan: LaunchPlan, buffers: Mapping[str, Buffer], times: int = 1
) -> None:
    program = load(machine, source, plan)
    try:
        bound = machine.bind(program, buffers)
        for _ in range(times):
            machine.run(bound)
    finally:
        program.close()


def rejection(machine: CudaMachine, source: str, launch: Launch) -> Rejected:
    """What loading a plan of one launch is refused with."""
    with pytest.raises(Rejected) as caught:
        load(machine, source, LaunchPlan((launch,)))
    assert not caught.value.fatal
    return caught.value


# --- facts


def test_facts_are_the_device_s_own(machine: CudaMachine) -> None:
    facts = machine.facts
    assert facts.id == "cuda:0"
    assert facts.target.startswith("sm_")
    assert facts.sms >= 16
    assert 48 << 10 <= facts.smem_block <= facts.smem_sm
    assert facts.memory_bytes > 4 << 30
    assert facts.versions["driver"].split(".")[0].isdigit(), facts.versions
    if "H200" in facts.name:
        assert (facts.target, facts.sms, facts.smem_block) == ("sm_90", 132, 227 << 10)
        assert facts.peak_bytes_per_s == 4.8e12


def test_clocks_are_read(machine: CudaMachine) -> None:
    clocks = machine.clocks()
    assert set(clocks) == {"sm_mhz", "memory_mhz", "temperature_c", "power_w", "event_reasons"}
    assert 100 < clocks["sm_mhz"] < 5000
    assert 10 < clocks["temperature_c"] < 110
    assert 10 < clocks["power_w"] < 2000


# --- launches


@pytest.mark.parametrize("biased", [True, False])
def test_scalars_tensors_and_null(machine: CudaMachine, biased: bool) -> None:
    n = 100003
    buffers = allocate(machine, given("x", "fp32", n), output("bias", "fp32", n), output("y", "fp32", n))
    machine.fill(buffers["x"], Fill(), 1)
    machine.fill(buffers["bias"], Fill(), 2)
    machine.poison(buffers["y"], 3)
    machine.guard(list(buffers.values()), 4)
    bias = Argument("tensor", "bias") if biased else Argument("null", "bias")
    arguments = (*tensors("x"), bias, *tensors("y"), Argument("scalar", "a", "f32", 2.5), i32(n))
    plan = LaunchPlan((Launch("saxpy", (-(-n // 256), 1, 1), (256, 1, 1), arguments),))
    launch_once(machine, SAXPY, plan, buffers)
    x, offset = machine.read(buffers["x"]), machine.read(buffers["bias"]) if biased else 0
    np.testing.assert_allclose(machine.read(buffers["y"]), 2.5 * x + offset, rtol=1e-6, atol=1e-6)
    assert machine.breach(list(buffers.values()), 4) == ""


def test_one_element_past_the_end_is_a_breach(machine: CudaMachine) -> None:
    n = 1000
    buffers = allocate(machine, given("x", "fp32", n + 1), output("y", "fp32", n))
    machine.fill(buffers["x"], Fill(), 1)
    machine.guard(list(buffers.values()), 4)
    arguments = (
        *tensors("x"),
        Argument("null", "bias"),
        *tensors("y"),
        Argument("scalar", "a", "f32", 1.0),
        i32(n + 1),
    )
    launch_once(machine, SAXPY, LaunchPlan((Launch("saxpy", (4, 1, 1), (256, 1, 1), arguments),)), buffers)
    message = machine.breach(list(buffers.values()), 4)
    assert "'y'" in message, message
    assert "byte 1 past its end" in message, message


@pytest.mark.parametrize("size", [2, 8, 16])
def test_clusters_share_memory(machine: CudaMachine, size: int) -> None:
    blocks = 3 * size
    buffers = allocate(machine, output("out", "i32", blocks))
    launch_once(
        machine,
        CLUSTER,
        LaunchPlan((Launch("neighbours", (blocks, 1, 1), (64, 1, 1), tensors("out"), cluster=(size, 1, 1)),)),
        buffers,
    )
    want = 1000 * size + (np.arange(blocks) % size + 1) % size
    np.testing.assert_array_equal(machine.read(buffers["out"]), want)


def test_tensor_map_loads_a_box(machine: CudaMachine) -> None:
    rows, columns, box = 12, 40, (4, 16)
    buffers = allocate(machine, given("x", "fp32", rows, columns), output("out", "fp32", *box))
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    machine.fill(buffers["x"], x, 0)
    # A view from row 2, column 4 on: 8 rows of 32 columns.
    entry = TensorMap("box", "x", "fp32", (8, 32), (columns, 1), 2 * columns + 4, box, (1, 1))
    for row, column in ((0, 0), (4, 16), (6, 24)):  # the last reaches past the view on both sides
        arguments = (Argument("map", "box"), *tensors("out"), i32(row), i32(column))
        plan = LaunchPlan((Launch("load_box", ONE, (128, 1, 1), arguments),), tensor_maps=(entry,))
        machine.poison(buffers["out"], row)
        launch_once(machine, TMA, plan, buffers)
        want = np.zeros(box, np.float32)
        part = x[2:10, 4:36][row : row + box[0], column : column + box[1]]
        want[: part.shape[0], : part.shape[1]] = part
        np.testing.assert_array_equal(machine.read(buffers["out"]), want)


def test_swizzled_bf16_tensor_maps_encode(machine: CudaMachine) -> None:
    buffers = allocate(machine, given("x", "bf16", 3, 128, 256), output("out", "fp32", 64))
    entry = TensorMap(
        "box", "x", "bf16", (3, 128, 256), (128 * 256, 256, 1), 0, (1, 64, 64), (1, 1, 1), "128B", "none", "256B", "nan"
    )
    arguments = (Argument("map", "box"), *tensors("out"), i32(0), i32(0))
    plan = LaunchPlan((Launch("load_box", ONE, (128, 1, 1), arguments),), tensor_maps=(entry,))
    program = load(machine, TMA, plan)
    machine.bind(program, buffers)
    program.close()


def test_dependent_launches_see_their_predecessor(machine: CudaMachine) -> None:
    n = 1 << 20
    buffers = allocate(
        machine, given("x", "fp32", n), output("y", "fp32", n),
        scratch("middle", "fp32", n),
    )  # fmt: skip
    grid, block = (n // 256, 1, 1), (256, 1, 1)
    middle = Argument("scratch", "middle")
    plan = LaunchPlan(
        (
            Launch("produce", grid, block, (*tensors("x"), middle, i32(n))),
            Launch("consume", grid, block, (middle, *tensors("y"), i32(n)), pdl=True),
        ),
        scratch=(Scratch("middle", "fp32", (n,)),),
    )
    program = load(machine, PDL, plan)
    bound = machine.bind(program, buffers)
    for seed in range(5):
        machine.fill(buffers["x"], Fill(), seed)
        machine.poison(buffers["middle"], seed)
        machine.poison(buffers["y"], seed)
        machine.run(bound)
        x = machine.read(buffers["x"])
        np.testing.assert_allclose(machine.read(buffers["y"]), 2 * (x + np.float32(1)), rtol=1e-6, atol=1e-6)
    watch = machine.stopwatch([bound], 10.0)  # programmatic launches are captured too
    machine.poison(buffers["middle"], 9)
    machine.poison(buffers["y"], 9)
    assert watch.sample() > 5
    watch.close()
    np.testing.assert_allclose(machine.read(buffers["y"]), 2 * (x + np.float32(1)), rtol=1e-6, atol=1e-6)
    program.close()


def test_cooperative_grids_and_scratch_zeroed_each_call(machine: CudaMachine) -> None:
    blocks = machine.facts.sms
    buffers = allocate(machine, output("out", "i32", blocks), scratch("arrived", "u32", 1))
    arguments = (Argument("scratch", "arrived"), *tensors("out"))
    launch = Launch("meet", (blocks, 1, 1), (32, 1, 1), arguments, cooperative=True)
    machine.poison(buffers["arrived"], 3)
    plan = LaunchPlan((launch,), scratch=(Scratch("arrived", "u32", (1,), zero="each"),))
    launch_once(machine, COOPERATIVE, plan, buffers, times=3)
    np.testing.assert_array_equal(machine.read(buffers["out"]), np.full(blocks, blocks))


def test_cooperative_grids_that_cannot_be_resident_are_refused(machine: CudaMachine) -> None:
    arguments = (Argument("scratch", "arrived"), *tensors("out"))
    grid = (machine.facts.sms * 64 + 1, 1, 1)
    error = rejection(machine, COOPERATIVE, Launch("meet", grid, (1024, 1, 1), arguments, cooperative=True))
    assert error.status is Status.RESOURCE_LIMIT
    assert "cooperative grid" in error.message


def test_zeroed_scratch_starts_every_timed_call_at_zero(machine: CudaMachine) -> None:
    n = 5000
    buffers = allocate(
        machine,
        given("x", "i32", n),
        output("out", "i32", 1),
        scratch("total", "i32", 1),
    )
    data = np.random.default_rng(1).integers(-50, 50, n).astype(np.int32)
    machine.fill(buffers["x"], data, 0)
    total = Argument("scratch", "total")
    plan = LaunchPlan(
        (
            Launch("add", (-(-n // 256), 1, 1), (256, 1, 1), (*tensors("x"), total, i32(n))),
            Launch("report", ONE, ONE, (total, *tensors("out"))),
        ),
        scratch=(Scratch("total", "i32", (1,), zero="each"),),
    )
    program = load(machine, ACCUMULATE, plan)
    bound = machine.bind(program, buffers)
    for _ in range(3):
        machine.run(bound)
        assert machine.read(buffers["out"])[0] == data.sum()
    watch = machine.stopwatch([bound], 5.0)
    watch.sample()
    watch.close()
    assert machine.read(buffers["out"])[0] == data.sum()
    program.close()


def test_two_hundred_kilobytes_of_shared_memory(machine: CudaMachine) -> None:
    n = 200 * 1024 // 4
    buffers = allocate(machine, output("out", "i32", n))
    launch = Launch("reverse", ONE, (512, 1, 1), (*tensors("out"), i32(n)), shared=4 * n)
    launch_once(machine, SHARED, LaunchPlan((launch,)), buffers)
    np.testing.assert_array_equal(machine.read(buffers["out"]), 3 * np.arange(n)[::-1])


# --- plans that do not fit


def test_plans_that_do_not_fit_the_code_or_the_device(machine: CudaMachine) -> None:
    out, block = tensors("out"), (64, 1, 1)
    cases = [
        (
            SHARED,
            Launch("reverse", ONE, block, (*out, i32(1)), shared=300 << 10),
            Status.RESOURCE_LIMIT,
            "shared memory",
        ),
        (SHARED, Launch("forward", ONE, block, (*out, i32(1))), Status.INVALID_GENOME, "no kernel 'forward'"),
        (SHARED, Launch("reverse", ONE, block, out), Status.INVALID_GENOME, "takes 2 arguments"),
        (
            SHARED,
            Launch("reverse", ONE, block, (*out, Argument("scalar", "n", "i64", 1))),
            Status.INVALID_GENOME,
            "argument 1 (n) of reverse has 4 bytes, the launch plan passes 8",
        ),
        (SHARED, Launch("reverse", (1, 65536, 1), block, (*out, i32(1))), Status.INVALID_GENOME, "grid"),
        (SHARED, Launch("reverse", ONE, (1024, 2, 1), (*out, i32(1))), Status.RESOURCE_LIMIT, "threads"),
        (CLUSTER, Launch("neighbours", (9, 1, 1), block, out, cluster=(8, 1, 1)), Status.INVALID_GENOME, "multiple"),
        (CLUSTER, Launch("neighbours", (32, 1, 1), block, out, cluster=(32, 1, 1)), Status.RESOURCE_LIMIT, ""),
    ]
    for source, launch, status, words in cases:
        error = rejection(machine, source, launch)
        assert (error.status, words in error.message) == (status, True), f"{launch}: {error.status}: {error.message}"
    test_clusters_share_memory(machine, 8)  # and the context lives on


def test_code_for_nothing_is_refused(machine: CudaMachine) -> None:
    with pytest.raises(Rejected) as caught:
        machine.load(Build("k", Status.OK, "t", 0.0), b"no machine code", LaunchPlan(()))
    assert caught.value.status is Status.LAUNCH_ERROR, caught.value.message


# --- faults, each in a process of its own


@pytest.mark.parametrize(
    ("fault", "status"),
    [("illegal_address", "crash"), ("misaligned", "crash"), ("trap", "crash"), ("endless", "timeout")],
)
def test_faults_are_named_and_end_their_process_only(machine: CudaMachine, fault: str, status: str) -> None:
    assert fault in FAULTS
    script = Path(__file__).with_name("faulty.py")
    paths = [str(script.parents[2]), os.environ.get("PYTHONPATH", "")]  # the script's own folder replaces ours
    done = subprocess.run(
        [sys.executable, str(script), fault], capture_output=True, text=True, timeout=90, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    verdict = json.loads(done.stdout.strip().splitlines()[-1])
    assert (verdict["status"], verdict.get("fatal")) == (status, True), verdict
    buffers = allocate(machine, output("y", "fp32", 100))
    machine.zero(buffers["y"])
    assert machine.is_zero(buffers["y"]), "the fault reached this process"

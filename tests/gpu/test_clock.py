"""Baselines as calls, and the clock, on a real CUDA device."""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from device_code import ONE, SCALE, allocate, given, i32, load, output, tensors

from evo.fitness.cuda.driver import call
from evo.fitness.cuda.machine import CudaMachine
from evo.fitness.cuda.protocols.rotation import Rotation
from evo.operator import Fill
from evo.plan import Launch, LaunchPlan
from evo.records import Status
from evo.target import Call, Rejected

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

# --- baselines


def copy_in_place(tensors: Mapping[str, Any], stream: int) -> None:
    source, target = tensors["x"], tensors["y"]
    call(driver.cuMemcpyDtoDAsync, target.data_ptr(), source.data_ptr(), 4 * math.prod(source.shape), stream)


def test_adopted_callables_write_or_return(machine: CudaMachine) -> None:
    buffers = allocate(machine, given("x", "fp32", 64, 33), output("y", "fp32", 64, 33))
    machine.fill(buffers["x"], Fill(), 1)
    x = machine.read(buffers["x"])
    for run in (copy_in_place, lambda tensors, stream: {"y": tensors["x"]}):
        machine.poison(buffers["y"], 2)
        machine.run(machine.adopt(run, buffers))
        np.testing.assert_array_equal(machine.read(buffers["y"]), x)


def test_adopted_callables_that_fail(machine: CudaMachine) -> None:
    buffers = allocate(machine, given("x", "bf16", 8, 4), output("y", "bf16", 8, 5))

    def raises(tensors: Mapping[str, Any], stream: int) -> None:
        raise ValueError("no such shape")

    for run, words in (
        (raises, "ValueError: no such shape"),
        (lambda tensors, stream: {"y": tensors["x"]}, "is bf16 [8, 4]; wanted bf16 [8, 5]"),
        (lambda tensors, stream: {"z": tensors["x"]}, "'z' is not one of"),
        (lambda tensors, stream: {"y": 3}, "cannot be read"),
    ):
        with pytest.raises(Rejected) as caught:
            machine.run(machine.adopt(run, buffers))
        assert caught.value.status is Status.LAUNCH_ERROR
        assert words in caught.value.message


def test_stopwatch_captures_baselines_where_it_can(machine: CudaMachine) -> None:
    buffers = allocate(machine, given("x", "fp32", 1 << 20), output("y", "fp32", 1 << 20))
    machine.fill(buffers["x"], Fill(), 1)

    def waits(tensors: Mapping[str, Any], stream: int) -> None:
        copy_in_place(tensors, stream)
        call(driver.cuStreamSynchronize, stream)

    for run, method in ((copy_in_place, "graph"), (waits, "stream")):
        watch = machine.stopwatch([machine.adopt(run, buffers)], 5.0)
        assert isinstance(watch, Rotation)
        assert watch.method == method
        assert 0.5 < watch.sample() < 500
        watch.close()
    machine.run(machine.adopt(copy_in_place, buffers))  # a capture that failed leaves the stream usable
    np.testing.assert_array_equal(machine.read(buffers["y"]), machine.read(buffers["x"]))


@pytest.mark.parametrize("protocol", ["isolated-cold", "triton", "flashkda"])
def test_what_a_library_takes_the_host_is_not_timed(machine: CudaMachine, protocol: str) -> None:
    """Longer than the flush: torch read 20 % too slow once, where the device had to wait for it in the bracket. Longer
    than the kernel: cuDNN at 12 heads read 614 us, and stands recorded with 155."""
    buffers = allocate(machine, given("x", "fp32", 1 << 24), output("y", "fp32", 1 << 24))
    machine.fill(buffers["x"], Fill(), 1)

    def slow(tensors: Mapping[str, Any], stream: int) -> None:
        time.sleep(0.001)
        copy_in_place(tensors, stream)

    times = []
    for run in (copy_in_place, slow):
        watch = machine.stopwatch([machine.adopt(run, buffers) for _ in range(3)], 50.0, protocol)
        times.append(watch.sample())
        watch.close()
    assert times[1] < 1.2 * times[0], times


if importlib.util.find_spec("torch") is not None:  # where the library is not installed there is nothing to test

    def test_torch_works_on_our_buffers(machine: CudaMachine) -> None:
        import torch

        buffers = allocate(machine, given("x", "bf16", 37, 264), output("y", "bf16", 37, 264))
        machine.fill(buffers["x"], Fill(), 1)
        x = machine.read(buffers["x"]).astype(np.float32)

        def doubled(tensors: Mapping[str, Any], stream: int) -> Mapping[str, Any]:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                taken = torch.from_dlpack(tensors["x"])
                assert taken.dtype is torch.bfloat16
                return {"y": taken * 2}

        def in_place(tensors: Mapping[str, Any], stream: int) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                torch.mul(torch.from_dlpack(tensors["x"]), 2, out=torch.from_dlpack(tensors["y"]))

        for run in (doubled, in_place):
            machine.poison(buffers["y"], 2)
            bound = machine.adopt(run, buffers)
            machine.run(bound)
            np.testing.assert_array_equal(machine.read(buffers["y"]).astype(np.float32), 2 * x)
            watch = machine.stopwatch([bound], 5.0)
            assert isinstance(watch, Rotation)
            assert watch.method == "graph", run.__name__
            assert 0.5 < watch.sample() < 1000
            watch.close()


# --- the clock


def calls_of_scale(machine: CudaMachine, nbytes: int) -> list[list[Call]]:
    """Calls of two separately loaded twins over the same slots; each call moves `nbytes`, half read, half written."""
    n = nbytes // 32
    count = max(3, -(-(192 << 20) // nbytes))
    specs = [spec for _ in range(count) for spec in (given("x", "fp32", 4 * n), output("y", "fp32", 4 * n))]
    buffers = machine.allocate(specs)
    slots = [{"x": buffers[2 * i], "y": buffers[2 * i + 1]} for i in range(count)]
    for slot in slots:
        machine.fill(slot["x"], Fill(), 1)
        machine.poison(slot["y"], 1)
    plan = LaunchPlan((Launch("scale", (-(-n // 256), 1, 1), (256, 1, 1), (*tensors("x", "y"), i32(n))),))
    twins = [load(machine, SCALE, plan) for _ in range(2)]
    return [[machine.bind(twin, slot) for slot in slots] for twin in twins]


@pytest.mark.parametrize("nbytes", [1 << 20, 16 << 20, 256 << 20, 3 << 30])
def test_twins_take_the_same_time(machine: CudaMachine, nbytes: int) -> None:
    one, two = calls_of_scale(machine, nbytes)
    light_us = nbytes / machine.copy_rate(nbytes) * 1e6
    watches = [machine.stopwatch(calls, light_us) for calls in (one, two)]
    for watch in watches:
        watch.sample()
    times: list[list[float]] = [[], []]
    for order in ((0, 1, 1, 0), (1, 0, 0, 1)) * 8:
        for which in order:
            times[which].append(watches[which].sample())
    a, b = (statistics.median(each) for each in times)
    told = f"{nbytes >> 20} MiB: {a:.2f} and {b:.2f} us, copy {light_us:.2f} us"
    assert abs(a / b - 1) < 0.01, told
    assert 0.6 < a / light_us < 1.5, told
    for watch in watches:
        watch.close()


def test_every_slot_is_run_in_every_sample(machine: CudaMachine) -> None:
    n, count = 512, 130
    specs = [spec for _ in range(count) for spec in (given("x", "fp32", n), output("y", "fp32", n))]
    buffers = machine.allocate(specs)
    plan = LaunchPlan((Launch("scale", ONE, (256, 1, 1), (*tensors("x", "y"), i32(n // 4))),))
    program = load(machine, SCALE, plan)
    calls = [machine.bind(program, {"x": buffers[2 * i], "y": buffers[2 * i + 1]}) for i in range(count)]
    for buffer in buffers[::2]:
        machine.fill(buffer, Fill(), 1)
    machine.run(calls[0])
    want = machine.digest(buffers[1], 1)
    for estimate_us in (5.0, 100.0, 1000.0):
        watch = machine.stopwatch(calls, estimate_us)
        for sample in range(3):
            for buffer in buffers[1::2]:
                machine.poison(buffer, sample)
            assert watch.sample() > 0
            missed = [i for i, buffer in enumerate(buffers[1::2]) if machine.digest(buffer, 1) != want]
            assert not missed, f"slots {missed} were not run (estimate {estimate_us} us, sample {sample})"
        watch.close()
    program.close()


def test_copy_rate_is_plausible(machine: CudaMachine) -> None:
    rate, peak = machine.copy_rate(512 << 20), machine.facts.peak_bytes_per_s
    assert rate == machine.copy_rate(512 << 20)
    assert 0.73 * peak < rate < peak or not peak, f"{rate / 1e12:.2f} TB/s of {peak / 1e12:.2f}"
    assert machine.copy_rate(1 << 20) < rate, "a small copy is launch bound"

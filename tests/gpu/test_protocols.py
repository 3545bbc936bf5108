"""Every protocol of the CUDA clock on a real device: twins agree, stale outputs are seen, the clock can be read."""

from __future__ import annotations

import statistics

import pytest
from device_code import SCALE, given, i32, load, output, tensors

from evo.errors import UsageError
from evo.fitness.cuda.machine import CudaMachine
from evo.operator import Fill
from evo.plan import Launch, LaunchPlan
from evo.target import Buffer, Call

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

NAMES = ("rotation", "isolated-cold", "warm", "sustained", "triton", "flashkda")
ONE_SLOT = {"warm", "flashkda"}
NBYTES = 32 << 20  # 16 MiB each way: about 10 us cold, and it fits an L2
N = NBYTES // 32

# Takes a block's work for done when its first word is: what a repeating protocol would reward.
LAZY = r"""
extern "C" __global__ void scale(const float4* x, float4* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.x * blockDim.x;
    if (first >= n || y[first].x == 2 * x[first].x) return;
    __syncthreads();
    if (i < n) { float4 v = x[i]; y[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w); }
}
"""


def slots_of(machine: CudaMachine, count: int) -> list[dict[str, Buffer]]:
    specs = [spec for _ in range(count) for spec in (given("x", "fp32", 4 * N), output("y", "fp32", 4 * N))]
    buffers = machine.allocate(specs)
    slots = [{"x": buffers[2 * i], "y": buffers[2 * i + 1]} for i in range(count)]
    for number, slot in enumerate(slots):
        machine.fill(slot["x"], Fill("uniform", 1.0, 2.0), number)
        machine.poison(slot["y"], number)
    return slots


def bound(machine: CudaMachine, source: str, slots: list[dict[str, Buffer]]) -> list[Call]:
    plan = LaunchPlan((Launch("scale", (-(-N // 256), 1, 1), (256, 1, 1), (*tensors("x", "y"), i32(N))),))
    program = load(machine, source, plan)
    return [machine.bind(program, slot) for slot in slots]


def count_for(name: str) -> int:
    return 1 if name in ONE_SLOT else 7


@pytest.mark.parametrize("name", NAMES)
def test_twins_take_the_same_time(machine: CudaMachine, name: str) -> None:
    slots = slots_of(machine, count_for(name))
    watches = [machine.stopwatch(bound(machine, SCALE, slots), 10.0, name) for _ in range(2)]
    assert [watch.protocol for watch in watches] == [name, name]
    rounds = {"sustained": 1, "triton": 2}.get(name, 12)
    times: list[list[float]] = [[], []]
    for which in (0, 1, 1, 0) * rounds:
        times[which].append(watches[which].sample())
    a, b = (statistics.median(each) for each in times)
    for watch in watches:
        watch.close()
    assert abs(a / b - 1) < 0.02, f"{name}: {a:.2f} and {b:.2f} us"
    assert 2.0 < a < 60.0, f"{name}: {a:.2f} us for {NBYTES >> 20} MiB"


def test_a_hot_cache_is_faster_than_a_cold_one(machine: CudaMachine) -> None:
    slots = slots_of(machine, 7)
    times = {}
    for name in ("rotation", "warm"):
        watch = machine.stopwatch(bound(machine, SCALE, slots[: count_for(name)]), 10.0, name)
        times[name] = statistics.median(watch.sample() for _ in range(9))
        watch.close()
    assert times["warm"] < times["rotation"], times


@pytest.mark.parametrize("name", NAMES)
def test_every_slot_holds_its_result_afterwards(machine: CudaMachine, name: str) -> None:
    slots = slots_of(machine, count_for(name))
    calls = bound(machine, SCALE, slots)
    for each in calls:
        machine.run(each)
    want = [machine.digest(slot["y"], 1) for slot in slots]
    watch = machine.stopwatch(calls, 10.0, name)
    for number, slot in enumerate(slots):
        machine.poison(slot["y"], 100 + number)
    assert watch.sample() > 0
    assert [machine.digest(slot["y"], 1) for slot in slots] == want
    watch.close()


@pytest.mark.parametrize("name", ["warm", "sustained", "triton", "flashkda"])
def test_work_taken_for_done_is_seen(machine: CudaMachine, name: str) -> None:
    slots = slots_of(machine, count_for(name))
    honest = bound(machine, SCALE, slots)
    for each in honest:
        machine.run(each)
    want = [machine.digest(slot["y"], 1) for slot in slots]
    watch = machine.stopwatch(bound(machine, LAZY, slots), 10.0, name)
    watch.sample()
    watch.close()
    assert [machine.digest(slot["y"], 1) for slot in slots] != want


def test_readings(machine: CudaMachine) -> None:
    slots = slots_of(machine, 3)
    calls = bound(machine, SCALE, slots)
    watch = machine.stopwatch(calls, 10.0, "isolated-cold")
    assert 0.5 < watch.readings["bracket_us"] < 15.0
    watch.close()
    watch = machine.stopwatch(calls, 10.0, "sustained")
    elapsed = watch.sample()
    if watch.readings:  # not every GPU and driver counts energy
        assert 20 < watch.readings["power_w"] < 2000
        assert watch.readings["energy_uj"] == pytest.approx(watch.readings["power_w"] * elapsed, rel=0.01)
    watch.close()


def test_an_unknown_protocol_is_refused(machine: CudaMachine) -> None:
    (call,) = bound(machine, SCALE, slots_of(machine, 1))
    with pytest.raises(UsageError, match="has no protocol 'cold'"):
        machine.stopwatch([call], 10.0, "cold")


def test_tempo_is_the_processors_clock(machine: CudaMachine) -> None:
    slots = slots_of(machine, 3)
    watch = machine.stopwatch(bound(machine, SCALE, slots), 10.0)
    for _ in range(30):  # out of any idle clock
        watch.sample()
    looks = [machine.tempo() for _ in range(20)]
    watch.close()
    middle = statistics.median(looks)
    assert 200 < middle < 3500
    assert statistics.median(abs(look / middle - 1) for look in looks) < 0.002, looks
    told = machine.clocks().get("sm_mhz")
    assert told is None or abs(middle / told - 1) < 0.05, f"{middle:.0f} MHz counted, {told} MHz told"

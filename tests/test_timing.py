"""When a race stops, which quads count, what is too fast, and which protocols there are."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from evo.errors import UsageError
from evo.fitness.check import Gate
from evo.fitness.clock import Rules, Side, floor, race, seeded
from evo.fitness.cpu.machine import CpuMachine
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.cuda.protocols import STOPWATCHES, flashkda, lanes_for
from evo.fitness.cuda.target import CudaTarget
from evo.fitness.layout import lay_out, refill, slots_for
from evo.fitness.player import NOTHING
from evo.fitness.protocols import PROTOCOLS, must_not_repeat, offered, promises
from evo.fitness.statistics import Interval
from evo.fitness.steadiness import Steadiness, settle
from evo.operator import Case, Operator
from evo.operators.rmsnorm import RmsNorm
from evo.records import Status
from evo.target import Machine, Rejected

OPERATOR = RmsNorm()
CASE = next(case for case in OPERATOR.cases("cpu") if case.group == "tune")
H200 = cast(Machine, SimpleNamespace(facts=CudaTarget("sm_90").nominal()))


def wide(columns: int) -> Case:
    return next(case for case in OPERATOR.cases("sm_90") if case.name == f"bf16-32768x{columns}")


# --- stopping


def test_nobody_is_behind_before_eight_pairs() -> None:
    rules, slow = Rules(rival=1.5), Interval(1.0, 0.9, 1.1)
    assert rules.verdict(6, slow, 0.004) == ""
    assert rules.verdict(8, slow, 0.004) == "behind"
    assert rules.verdict(8, Interval(1.0, 0.999, 1.001), 0.004) == "behind"
    assert Rules().verdict(8, Interval(1.0, 0.999, 1.001), 0.004) == "resolved"
    assert Rules(pairs_max=10).verdict(10, slow, 0.004) == "budget"
    assert Rules(pairs_max=10, fixed=True, rival=1.5).verdict(8, slow, 0.004) == ""
    timely = Rules(seconds_max=2.0)
    assert [timely.verdict(pairs, slow, 0.004, 2.5) for pairs in (6, 8)] == ["", "budget"]
    assert timely.verdict(8, slow, 0.004, 1.5) == ""
    assert Rules(pairs_max=10, fixed=True, seconds_max=2.0).verdict(8, slow, 0.004, 2.5) == "", "a result has its size"


# --- steadiness


def test_a_quad_is_void_when_a_sides_clock_moved() -> None:
    steadiness = Steadiness(judged=True)
    assert steadiness.counts([1980.0, 1979.0], [1980.0, 1981.0])
    assert not steadiness.counts([1980.0, 1935.0], [1980.0, 1980.0])
    readings = steadiness.readings()
    assert readings["quads_void"] == 1
    assert (readings["tempo_mhz_min"], readings["tempo_mhz_max"]) == (1935.0, 1981.0)


def test_a_clock_that_hovers_between_neighbouring_steps_is_steady() -> None:
    """Seen on an H200 under tensor-core load: 1950, 1965 and 1980 MHz in turn; every third quad was refused once."""
    steadiness = Steadiness(judged=True)
    assert all(steadiness.counts([1980.0, 1965.0], [1950.0, 1980.0]) for _ in range(20))
    assert steadiness.readings()["quads_void"] == 0


def test_a_candidate_that_slows_the_chip_down_is_not_excused() -> None:
    steadiness = Steadiness(judged=True)
    assert all(steadiness.counts([1500.0, 1502.0], [1980.0, 1980.0]) for _ in range(20))
    assert steadiness.readings()["candidate_sm_mhz"] == 1501.0
    assert steadiness.readings()["opponent_sm_mhz"] == 1980.0


def test_void_quads_are_replaced_unless_most_are() -> None:
    steadiness, moved, still = Steadiness(judged=True), [1980.0, 1755.0], [1980.0, 1980.0]
    for _ in range(10):
        assert steadiness.counts(still, still)
        assert not steadiness.counts(moved, still)
    with pytest.raises(Rejected, match=r"more than 2% in 11 of 21 quads, from 1755 to 1980 MHz within one") as caught:
        steadiness.counts([1980.0, 1935.0], still)
    assert caught.value.status is Status.UNSTABLE_TIMING


def test_a_chip_at_its_power_limit_is_given_longer_and_longer_rests() -> None:
    """Seen on an H200 with KDA kernels: 12 of 18 candidates were refused, their quads at 1785 to 1965 MHz."""
    steadiness, rests = Steadiness(judged=True), []
    for _ in range(6):
        rests.append(steadiness.rest)
        steadiness.counts([1965.0, 1785.0], [1965.0, 1965.0])
    assert rests == [0.0, 0.5, 1.0, 2.0, 4.0, 4.0]
    assert steadiness.counts([1965.0, 1965.0], [1965.0, 1965.0])
    assert steadiness.rest == steadiness.readings()["rest"] == 4.0, "it stays: it would be at its limit again"


def test_where_nothing_is_judged_or_known_every_quad_counts() -> None:
    sustained, unknown = Steadiness(judged=False), Steadiness(judged=True)
    assert all(sustained.counts([1980.0, 1400.0], [1980.0, 1980.0]) for _ in range(5))
    assert unknown.counts([0.0, 0.0], [0.0, 0.0])
    assert unknown.readings() == {}


def test_settling_ends_when_two_looks_agree() -> None:
    looks = iter([345.0, 1200.0, 1980.0, 1981.0, 0.0])
    samples: list[int] = []
    settle(cast(Machine, SimpleNamespace(tempo=lambda: next(looks))), lambda: samples.append(1), 0.0)
    assert len(samples) == 3
    settle(cast(Machine, SimpleNamespace(tempo=lambda: 0.0)), lambda: samples.append(1), 1.0)
    assert len(samples) == 3, "nothing to wait for where the clock cannot be seen"


@pytest.fixture
def machine() -> Iterator[CpuMachine]:
    opened = CpuTarget().open("cpu:0")
    yield opened
    opened.close()


def test_a_void_quad_is_replaced(machine: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two library calls raced on real buffers; the clock seems to move in the second and third quad."""
    layout = lay_out(machine, OPERATOR, CASE, {}, count=2)
    gate = Gate(machine, OPERATOR, CASE, layout, None, seeded(1, "clock"))
    for slot in layout.slots:
        refill(machine, OPERATOR, CASE, slot, gate.rng, "normal")

    def work(tensors: Any, stream: int) -> None:
        tensors["y"][...] = np.asarray(tensors["x"])

    sides = [
        Side(o, NOTHING, [machine.adopt(work, s.buffers) for s in layout.lanes]) for o in ("candidate", "opponent")
    ]
    settling, steady, moved = [2000.0] * 4, [2000.0] * 4, [2000.0, 2000.0, 2000.0, 1000.0]
    looks = iter([*settling, *steady, *moved, *moved])
    monkeypatch.setattr("evo.fitness.clock.UNSTABLE", math.inf)  # a busy test machine is none of this test's business
    monkeypatch.setattr(CpuMachine, "tempo", lambda self: next(looks, 2000.0))
    rests: list[float] = []
    watch = SimpleNamespace(sleep=rests.append, perf_counter=time.perf_counter, monotonic=time.monotonic)
    monkeypatch.setattr("evo.fitness.clock.time", watch)
    timing = race(gate, sides[0], sides[1], "itself", Rules(pairs_max=8, fixed=True))
    assert [rest > 0 for rest in rests] == [False] * 8 + [True] * 16, "rests begin after the first void quad"
    assert timing.pairs == len(timing.samples) == 8
    assert timing.clocks["quads_void"] == 2
    assert timing.clocks["tempo_mhz_min"] == 1000.0
    assert 0 < timing.low <= timing.ratio <= timing.high


# --- too fast


def test_cold_reads_are_bound_by_memory_and_hot_ones_by_the_ports() -> None:
    case = wide(512)  # 32 MiB each way: both fit the L2
    assert 32 * 2**20 < OPERATOR.cost(case).bytes_read < 34 * 2**20
    cold = [floor(H200, OPERATOR, case, name) for name in ("rotation", "isolated-cold", "triton", "sustained")]
    assert cold == [pytest.approx(7.0, abs=0.1)] * 4
    assert floor(H200, OPERATOR, case, "warm") == floor(H200, OPERATOR, case, "flashkda")
    assert 1.0 < floor(H200, OPERATOR, case, "warm") < 2.0, "an honest warm time is about 10 us"


def test_what_does_not_fit_the_cache_is_cold_under_every_protocol() -> None:
    case = wide(16384)  # 1 GiB each way
    ratio = floor(H200, OPERATOR, case, "warm") / floor(H200, OPERATOR, case, "rotation")
    assert 0.9 < ratio < 1.0
    unknown = cast(Machine, SimpleNamespace(facts=replace(H200.facts, peak_bytes_per_s=0.0)))
    assert floor(unknown, OPERATOR, case, "rotation") == 0.0


# --- protocols by name


def test_targets_offer_what_their_machines_do() -> None:
    assert CudaTarget("sm_90").protocols == tuple(STOPWATCHES) == tuple(PROTOCOLS)
    assert CpuTarget().protocols == CpuMachine.protocols == ("warm",)


def test_an_unknown_protocol_names_those_that_there_are(machine: CpuMachine) -> None:
    assert offered("", CudaTarget("sm_90").protocols, "it") == "rotation"
    with pytest.raises(UsageError, match="target 'sm_90' has no protocol 'cold'") as caught:
        offered("cold", CudaTarget("sm_90").protocols, "target 'sm_90'")
    assert "rotation, isolated-cold, warm, sustained, triton, flashkda" in caught.value.fix
    with pytest.raises(UsageError, match="the CPU has no protocol 'rotation'"):
        machine.stopwatch([], 1.0, "rotation")
    assert promises("a third party's").repeats, "nothing is assumed of it"


def test_operators_that_change_their_inputs_are_not_timed_by_repeating() -> None:
    y = next(tensor for tensor in OPERATOR.tensors if tensor.name == "y")
    changing = cast(Operator, SimpleNamespace(name="add", tensors=(replace(y, role="inout"),)))
    with pytest.raises(UsageError, match=r"'warm' repeats calls .* changes its y") as caught:
        must_not_repeat("warm", CudaTarget("sm_90"), changing)
    assert caught.value.fix == "use rotation or isolated-cold"
    must_not_repeat("rotation", CudaTarget("sm_90"), changing)
    must_not_repeat("warm", CudaTarget("sm_90"), OPERATOR)


def test_slots_and_lanes_are_what_the_protocol_wants() -> None:
    case = wide(256)  # 32 MiB a call
    slots = {name: slots_for(H200, OPERATOR, case, name) for name in PROTOCOLS}
    assert slots == {
        "rotation": 6, "sustained": 6, "isolated-cold": 3, "triton": 3, "warm": 1, "flashkda": 1,
    }  # fmt: skip
    assert [lanes_for(name, 20.0) for name in PROTOCOLS] == [96, 9, 0, 96, 0, 0]


@pytest.mark.parametrize(("host_ms", "groups"), [(0.0, []), (1.0, [25] * 8), (9.0, [2] * 100)])
def test_a_library_that_is_slow_on_the_host_is_queued_behind_the_gate(
    monkeypatch: pytest.MonkeyPatch, host_ms: float, groups: list[int]
) -> None:
    """200 calls, each 50 us of device time: at most half of the 50 ms that a gate waits are spent on queueing."""
    held: list[int] = []

    class Queue:
        """Brackets and clockwork at once: counts what is queued while the gate is closed."""

        stream = SimpleNamespace(wait=lambda: None)
        closed = False

        def call(self, each: Any) -> None:
            if self.closed:
                held[-1] += 1

        def hold(self) -> None:
            self.closed = True
            held.append(0)

        def release(self) -> None:
            self.closed = False

        def times(self) -> list[float]:
            assert not self.closed, "nothing may wait for a closed gate"
            return [50.0]

        def spoil(self, each: Any) -> None: ...

    queue, now = Queue(), [0.0]

    def later() -> None:
        now[0] += host_ms / 1e3

    monkeypatch.setattr(flashkda, "Brackets", lambda clockwork, estimate: clockwork)
    monkeypatch.setattr(flashkda, "rough_us", lambda *_: 50.0)
    monkeypatch.setattr(flashkda, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    call = SimpleNamespace(enqueue=later)
    bench = flashkda.FlashKdaBench(cast(Any, queue), cast(Any, [call]), 50.0)
    assert bench.sample() == 50.0
    assert held == groups

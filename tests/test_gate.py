"""What the gate sees after calls that were not checked one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from evo.fitness.check import Gate
from evo.fitness.clock import seeded
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.layout import lay_out, refill
from evo.operators.rmsnorm import RmsNorm
from evo.records import Status
from evo.target import Machine, Rejected

OPERATOR = RmsNorm()
CASE = next(case for case in OPERATOR.cases("cpu") if case.group == "tune")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    opened = CpuTarget().open("cpu:0")
    yield opened
    opened.close()


@pytest.fixture
def gate(machine: Machine) -> Gate:
    layout = lay_out(machine, OPERATOR, CASE, {}, count=2, lanes=5)
    made = Gate(machine, OPERATOR, CASE, layout, None, seeded(1, "gate"))
    for slot in layout.slots:
        refill(machine, OPERATOR, CASE, slot, made.rng, "normal")
    return made


def test_outputs_may_change(gate: Gate) -> None:
    seal = gate.seal()
    for lane in gate.layout.lanes:
        gate.machine.poison(lane.buffers["y"], 3)
    gate.unbroken(seal)


def test_a_changed_input_is_seen(gate: Gate) -> None:
    seal = gate.seal()
    buffer = gate.layout.slots[1].buffers["x"]
    data = gate.machine.read(buffer)
    data[-1, -1] += np.float32(1)
    gate.machine.fill(buffer, data, 0)
    with pytest.raises(Rejected) as caught:
        gate.unbroken(seal)
    assert caught.value.status is Status.INPUT_MUTATED


def test_a_broken_guard_band_is_seen(gate: Gate) -> None:
    seal = gate.seal()
    gate.machine.guard([gate.layout.slots[0].buffers["y"]], seal[0] + 1)  # as a stray write would
    with pytest.raises(Rejected) as caught:
        gate.unbroken(seal)
    assert caught.value.status is Status.OUT_OF_BOUNDS
    assert "output y" in caught.value.message.replace("'", "")


def test_lanes_have_outputs_of_their_own_and_inputs_in_turn(gate: Gate) -> None:
    lanes, slots = gate.layout.lanes, gate.layout.slots
    assert len(lanes) == 5
    assert lanes[:2] == slots
    assert len({id(lane.buffers["y"]) for lane in lanes}) == 5
    assert [lane.buffers["x"] is slots[i % 2].buffers["x"] for i, lane in enumerate(lanes)] == [True] * 5

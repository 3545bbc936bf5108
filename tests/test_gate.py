"""What the gate sees: on a real machine, with calls that are right, wrong or sly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evo.fitness.check import Gate
from evo.fitness.clock import Side, seeded
from evo.fitness.cpu.machine import CpuMachine
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.layout import SCRATCH_BYTES, lay_out, refill, scratch_copies
from evo.fitness.renewal import Renewal
from evo.genome import Genome, compile_request, resolve_plan
from evo.operators.rmsnorm import RmsNorm
from evo.plan import Launch, LaunchPlan, Scratch
from evo.records import Status
from evo.target import BlobStore, Program, Rejected

OPERATOR = RmsNorm()
TARGET = CpuTarget()
CASE = next(case for case in OPERATOR.cases("cpu") if case.group == "tune")
PLAN = LaunchPlan((Launch("k", (1, 1, 1), (1, 1, 1), ()),))
SEED = 0x1234_5678_9ABC_DEF1

pytestmark = pytest.mark.skipif(bool(TARGET.missing()), reason=f"needs {TARGET.missing()}")
Tensors = Mapping[str, Any]


@pytest.fixture(scope="module")
def machine() -> Iterator[CpuMachine]:
    opened = TARGET.open("cpu:0")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def oracle(machine: CpuMachine, tmp_path_factory: pytest.TempPathFactory) -> Program:
    path, blobs = OPERATOR.oracle("cpu"), BlobStore(tmp_path_factory.mktemp("blobs"))
    assert path
    genome = Genome.read(path)
    values = genome.values({})
    build = TARGET.build(compile_request(genome, OPERATOR, CASE, values, target="cpu", arch="native"), blobs)
    plan = resolve_plan(genome, OPERATOR, CASE, values, machine.facts)
    return machine.load(build, blobs.get(build.blob), plan)


def make(machine: CpuMachine, plan: LaunchPlan = PLAN, oracle: Program | None = None) -> Gate:
    plans = {"candidate": plan} | ({"oracle": oracle.plan} if oracle else {})
    layout = lay_out(machine, OPERATOR, CASE, plans, count=2, lanes=5)
    made = Gate(machine, OPERATOR, CASE, layout, oracle, seeded(SEED, "gate"))
    for slot in layout.slots:
        refill(machine, OPERATOR, CASE, slot, made.rng, "normal")
    return made


@pytest.fixture
def gate(machine: CpuMachine) -> Gate:
    return make(machine)


def norm(tensors: Tensors) -> np.ndarray:
    x, weight = tensors["x"].astype(np.float64), tensors["weight"].astype(np.float64)
    y = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-6) * weight
    return np.asarray(y.astype(tensors["x"].dtype))


def honest(tensors: Tensors, stream: int) -> None:
    tensors["y"][...] = norm(tensors)


def calls(gate: Gate, function: Callable[[Tensors, int], None]) -> list[Any]:
    return [gate.machine.adopt(function, lane.buffers) for lane in gate.layout.lanes]


def refused(gate: Gate, function: Callable[[Tensors, int], None]) -> Rejected:
    first, second = calls(gate, function)[:2]
    with pytest.raises(Rejected) as caught:
        gate.check(first, PLAN, gate.layout.slots[0], again=(second, gate.layout.slots[1]))
    return caught.value


# --- calls that were not checked one by one


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
    gate.unbroken(gate.seal(seal, 1))


@pytest.mark.parametrize("lane", [0, 4])
def test_a_broken_guard_band_is_seen_round_every_lane(gate: Gate, lane: int) -> None:
    seal = gate.seal()
    gate.machine.guard([gate.layout.lanes[lane].buffers["y"]], seal[0] + 1)  # as a stray write would
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


def test_scratch_is_each_lanes_own(machine: CpuMachine) -> None:
    gate = make(machine, LaunchPlan((), (Scratch("notes", "u8", (1000,)),)))
    bound = [gate.layout.bound(lane, "candidate")["notes"] for lane in gate.layout.lanes]
    assert len({id(buffer) for buffer in bound}) == 5 == len(gate.layout.scratches("candidate"))


def test_large_scratch_is_shared_by_lanes_of_other_inputs() -> None:
    assert scratch_copies(SCRATCH_BYTES // 16, 3, 16) == 16
    assert scratch_copies(SCRATCH_BYTES // 16 + 1, 3, 16) == 14  # not 15: lanes 0 and 15 have the inputs of one slot
    assert scratch_copies(SCRATCH_BYTES // 3, 3, 16) == 2
    assert [scratch_copies(nbytes, 3, 16) for nbytes in (0, SCRATCH_BYTES, 4 * SCRATCH_BYTES)] == [16, 1, 1]


def test_kept_scratch_must_be_left_zero_by_every_lane(machine: CpuMachine) -> None:
    plan = LaunchPlan((), (Scratch("done", "i32", (3,), zero="kept"),))
    gate = make(machine, plan)
    gate.prepare_lanes(plan, "candidate")
    scratches = gate.layout.scratches("candidate")
    assert gate.left_dirty(plan, *scratches) == ""
    gate.machine.fill(scratches[4]["done"], np.array([0, 0, 1], np.int32), 0)
    assert gate.left_dirty(plan, *scratches) == "done"


# --- a checked call


def test_honest_call_passes_with_either_truth(machine: CpuMachine, oracle: Program) -> None:
    for program in (None, oracle):
        gate = make(machine, oracle=program)
        first, second = calls(gate, honest)[:2]
        found = gate.check(first, PLAN, gate.layout.slots[0], again=(second, gate.layout.slots[1]))
        assert found.rms < 1e-7
        assert 0.9 < found.scale < 1.2
        assert gate.scales == {"y": found.scale}


def test_a_result_that_depends_on_its_place_is_refused(gate: Gate) -> None:
    """The same bits on every call in one place: a repeat there would not notice."""
    first = gate.layout.slots[0].buffers["y"]

    def sly(tensors: Tensors, stream: int) -> None:
        honest(tensors, stream)
        if tensors["y"].ctypes.data != first.view.ctypes.data:  # type: ignore[attr-defined]
            tensors["y"][0, 0] = np.nextafter(tensors["y"][0, 0], np.float32(9))

    assert refused(gate, sly).status is Status.NONDETERMINISTIC


@pytest.mark.parametrize(
    ("readonly", "status"), [(1, Status.INPUT_MUTATED), (0, Status.CRASH)], ids=["only reads", "writes too"]
)
def test_a_fault_on_inputs_that_only_read_is_a_write(machine: CpuMachine, readonly: int, status: Status) -> None:
    """Said of the second call alone, after one that passed; a fault on ordinary memory stays a crash."""
    layout = lay_out(machine, OPERATOR, CASE, {"candidate": PLAN}, count=2, readonly=readonly)
    gate = Gate(machine, OPERATOR, CASE, layout, None, seeded(SEED, "gate"))
    for slot in layout.slots:
        refill(machine, OPERATOR, CASE, slot, gate.rng, "normal")
    runs: list[int] = []

    def restoring(tensors: Tensors, stream: int) -> None:
        runs.append(1)
        if len(runs) == 2:
            raise Rejected(Status.CRASH, "running: ILLEGAL_ADDRESS", fatal=True)
        honest(tensors, stream)

    found = refused(gate, restoring)
    assert (found.status, found.fatal) == (status, True)
    assert "ILLEGAL_ADDRESS" in found.message + found.detail


def test_the_truth_is_nowhere_while_a_call_runs(machine: CpuMachine, oracle: Program) -> None:
    gate = make(machine, oracle=oracle)
    slot = gate.layout.slots[0]
    seen: list[float] = []

    def look(tensors: Tensors, stream: int) -> None:
        for buffer in gate.layout.expected.values():
            seen.append(float(np.mean(gate.machine.read(buffer) == norm(tensors))))
        honest(tensors, stream)

    call = gate.machine.adopt(look, slot.buffers)
    for _ in range(3):  # after the first the expected outputs did hold the truth
        gate.check(call, PLAN, slot)
    assert np.mean(gate.machine.read(gate.layout.expected["y"]) == norm({"x": slot.buffers["x"].view,  # type: ignore[attr-defined]
                   "weight": slot.buffers["weight"].view})) > 0.9  # type: ignore[attr-defined]  # fmt: skip
    assert max(seen) < 0.01


def test_poison_cannot_be_told_from_a_result(gate: Gate) -> None:
    """Sometimes all of an output looks written: finite and as large as results are."""
    slot = gate.layout.slots[0]
    gate.check(calls(gate, honest)[0], PLAN, slot)
    right = gate.machine.read(slot.buffers["y"])
    like, unlike = 0, 0
    for _ in range(40):
        gate.prepare(slot, PLAN, "candidate")
        y = gate.machine.read(slot.buffers["y"])
        assert np.mean(y == right) < 0.01
        like += bool(np.isfinite(y).all() and 0.4 < np.sqrt(np.mean(y.astype(np.float64) ** 2)) / right.std() < 2.5)
        unlike += bool(np.isnan(y).any())
    assert min(like, unlike) > 8


@pytest.mark.parametrize(
    ("skip", "status"),
    [
        (lambda y: np.isfinite(y), Status.WRONG_RESULT),  # does only what does not look done
        (lambda y: np.isfinite(y).all(axis=1, keepdims=True) & (np.abs(y) < 10), Status.WRONG_RESULT),
    ],
)
def test_work_that_looks_done_is_not_skipped(gate: Gate, skip: Callable[[Any], Any], status: Status) -> None:
    def lazy(tensors: Tensors, stream: int) -> None:
        np.copyto(tensors["y"], norm(tensors), where=~skip(tensors["y"]))

    def often() -> None:
        call = calls(gate, lazy)[0]
        for _ in range(20):
            gate.check(call, PLAN, gate.layout.slots[0])

    with pytest.raises(Rejected) as caught:
        often()
    assert caught.value.status is status


def test_an_error_twice_the_opponents_own_is_refused_beyond_rounding(gate: Gate) -> None:
    assert CASE.dtypes["y"] == "fp32"
    gate.as_exact_as(1e-9, 2.3e-7)  # what four roundings leave
    gate.as_exact_as(4e-7, 7.9e-7)
    gate.as_exact_as(4e-7, 1e-9)
    for opponent, own in ((4e-7, 8.1e-7), (1e-9, 2.5e-7)):
        with pytest.raises(Rejected, match="times the opponent's own") as caught:
            gate.as_exact_as(opponent, own)
        assert caught.value.status is Status.WRONG_RESULT


# --- secrets


def test_digests_are_keyed_by_each_gate(machine: CpuMachine) -> None:
    gate = make(machine)
    other = replace(gate, secret=Gate(machine, OPERATOR, CASE, gate.layout, None, gate.rng).secret)
    assert other.secret != gate.secret
    assert gate.digests(*gate.layout.slots) == gate.digests(*gate.layout.slots)
    assert gate.digests(gate.layout.slots[0]) != other.digests(gate.layout.slots[0])
    assert gate.seal()[1] != other.seal()[1]
    assert str(gate.secret) not in repr(gate)


def test_a_candidates_process_holds_no_secret(machine: CpuMachine, oracle: Program) -> None:
    """Nothing of the runner's memory, command line or environment tells the seed or the digests' key."""
    gate = make(machine, oracle=oracle)
    slot = gate.layout.slots[0]
    gate.check(machine.bind(oracle, slot.buffers), PLAN, slot)
    process = machine._runner._process
    assert process is not None
    home = Path(f"/proc/{process.pid}")
    places = [(home / "environ").read_bytes(), (home / "cmdline").read_bytes(), *memory(home)]
    assert sum(map(len, places)) > 1 << 20
    for secret in (SEED, gate.secret):
        for written in (secret.to_bytes(8, "little"), secret.to_bytes(8, "big"), str(secret).encode()):
            assert not any(written in place for place in places)
    assert (home / "environ").read_bytes() == b""


def memory(home: Path) -> Iterator[bytes]:
    """What the process can read, in pieces."""
    with (home / "mem").open("rb", buffering=0) as file:
        for line in (home / "maps").read_text().splitlines():
            span, access, *_, name = (*line.split(), "")
            if "r" not in access or "[v" in name:
                continue
            low, high = (int(end, 16) for end in span.split("-"))
            file.seek(low)
            with contextlib.suppress(OSError):  # mapped, but beyond the end of its file
                yield file.read(high - low)


# --- new contents during timing


class Replay:
    """Computes once for every fingerprint of its inputs, then replays."""

    def __init__(self, fingerprint: Callable[[Tensors], object]) -> None:
        self.fingerprint, self.known = fingerprint, {}  # type: ignore[var-annotated]

    def __call__(self, tensors: Tensors, stream: int) -> None:
        tensors["y"][...] = self.known.setdefault(self.fingerprint(tensors), norm(tensors))


def race(gate: Gate, function: Callable[[Tensors, int], None], quads: int = 30) -> tuple[list[Side], Renewal]:
    """The calls of some quads without a clock: every lane runs, and its digest must be what its side says."""
    bound = calls(gate, function)
    digests = []
    for call, slot in zip(bound, gate.layout.slots, strict=False):
        gate.check(call, PLAN, slot)
        digests += gate.digests(slot)
    sides, renewal = [Side("candidate", PLAN, bound, tuple(digests))], Renewal(gate)
    for _ in range(quads):
        gate.prepare_lanes(PLAN, "candidate")
        for call in bound:
            gate.machine.run(call)
        for number, found in enumerate(gate.digests(*gate.layout.lanes)):
            assert found == sides[0].digests[number % 2]
        sides = renewal.after_quad(sides)
    renewal.finish(sides)
    return sides, renewal


def test_honest_calls_live_through_renewals(gate: Gate) -> None:
    before = [gate.machine.read(slot.buffers["x"]) for slot in gate.layout.slots]
    _, renewal = race(gate, honest)
    assert 5 <= renewal.done <= 10
    after = [gate.machine.read(slot.buffers["x"]) for slot in gate.layout.slots]
    assert any(np.mean(a != b) > 0.9 for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize(
    "fingerprint",
    [
        lambda tensors: tensors["x"].ctypes.data,
        lambda tensors: tensors["x"].reshape(-1)[::97].tobytes(),
        lambda tensors: tensors["x"].tobytes(),
    ],
    ids=["the address", "a few elements", "all but the weight"],
)
def test_replayed_results_meet_new_contents(gate: Gate, fingerprint: Callable[[Tensors], object]) -> None:
    with pytest.raises(Rejected, match="inputs that changed while it was timed") as caught:
        race(gate, Replay(fingerprint), quads=300)
    assert caught.value.status is Status.WRONG_RESULT


class Notes:
    """Keeps a note of each row's root for each place, and believes it where the output still has what it made of it:
    in every 64th column."""

    def __init__(self) -> None:
        self.roots: dict[int, np.ndarray] = {}

    def __call__(self, tensors: Tensors, stream: int) -> None:
        x, weight, y = tensors["x"].astype(np.float64), tensors["weight"].astype(np.float64), tensors["y"]
        root = self.roots.get(y.ctypes.data)
        made = None if root is None else (x / root * weight).astype(y.dtype)
        if made is None or np.any(made[:, ::64] != y[:, ::64]):
            root = self.roots[y.ctypes.data] = np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-6)
            made = (x / root * weight).astype(y.dtype)
        y[...] = made


def test_notes_that_outlive_a_call_are_out_of_date(gate: Gate) -> None:
    """Where outputs were poisoned before every check, such a note was never believed in one."""
    with pytest.raises(Rejected, match="what earlier calls left behind") as caught:
        race(gate, Notes(), quads=300)
    assert caught.value.status is Status.WRONG_RESULT


def test_every_race_has_a_renewal(gate: Gate) -> None:
    for quads in (0, 1, 4):
        assert race(gate, honest, quads)[1].done >= 1


def test_libraries_are_not_run_between_quads(gate: Gate) -> None:
    library = Side("opponent", LaunchPlan(()), [])
    assert Renewal(gate)._renew([library]) == [library]


def test_an_opponent_that_fails_is_evos_fault(gate: Gate) -> None:
    side = Side("opponent", PLAN, calls(gate, lambda tensors, stream: None))
    with pytest.raises(Rejected) as caught:
        Renewal(gate)._renew([side])
    assert caught.value.status is Status.EVALUATOR_ERROR

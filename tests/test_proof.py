"""A device is proved before it is used; one that fails is lost, and the run pauses."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from evo import ids
from evo.errors import DeviceLostError
from evo.fitness import executor as executors
from evo.fitness.cpu.machine import CpuMachine
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.executor import PROOFS, LocalExecutor
from evo.fitness.proof import prove
from evo.fitness.tasks import CalibrateTask, CheckTask, Outcome, Subject, Task
from evo.records import Diagnosis, Stage, Status
from evo.target import Rejected

TARGET = CpuTarget()
pytestmark = pytest.mark.skipif(bool(TARGET.missing()), reason=f"needs {TARGET.missing()}")


@pytest.fixture(scope="module")
def machine() -> Iterator[CpuMachine]:
    opened = TARGET.open("cpu:0")
    yield opened
    opened.close()


def failure(machine: CpuMachine, **options: Any) -> str:
    with pytest.raises(Rejected) as caught:
        prove(machine, **options)
    assert caught.value.status is Status.EVALUATOR_ERROR
    assert caught.value.fatal
    return caught.value.message


def test_a_good_device_passes(machine: CpuMachine) -> None:
    assert prove(machine) == 0  # the CPU has no memory of its own
    began = time.perf_counter()
    prove(machine)
    assert time.perf_counter() - began < 2.0


@pytest.mark.parametrize(
    ("method", "lie", "says"),
    [
        ("read", lambda honest: lambda buffer: honest(buffer) * np.float32(1.0001), "copy comes back changed"),
        ("digest", lambda honest: lambda buffer, key: 7, "no difference to a digest"),
        ("is_zero", lambda honest: lambda buffer: True, "zeroed memory is not zero"),
        ("breach", lambda honest: lambda buffers, key: "y", "guard bands"),
        ("fill", lambda honest: lambda buffer, data, seed: None, "copy comes back changed"),
    ],
)
def test_a_device_that_gives_wrong_answers(
    machine: CpuMachine, monkeypatch: pytest.MonkeyPatch, method: str, lie: Any, says: str
) -> None:
    monkeypatch.setattr(machine, method, lie(getattr(machine, method)))
    assert says in failure(machine)


def test_a_fault_while_proving_is_the_devices(machine: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(specs: object) -> None:
        raise Rejected(Status.RESOURCE_LIMIT, "no memory is left")

    monkeypatch.setattr(machine, "allocate", allocate)
    assert "resource_limit: no memory is left" in failure(machine)


def test_memory_must_be_free_again(machine: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [1 << 30, 1 << 30, 9 << 30]
    monkeypatch.setattr(CpuMachine, "free_bytes", lambda self: free.pop(0) if len(free) > 1 else free[0], raising=False)
    assert prove(machine, 10 << 30, sleep=lambda s: None) == 9 << 30  # it came back after a while
    free[:] = [1 << 30]
    monkeypatch.setattr("evo.fitness.proof.FREE_WAIT_S", 0.0)
    assert "1.0 GiB of its memory are free, 10.0 GiB were" in failure(machine, free_bytes=10 << 30)


class ScriptedWorker:
    """Answers at once, without a process: calibrations from `proofs`, all else well or by dying."""

    proofs: list[Status] = []
    dies: set[str] = set()
    given: list[Task] = []

    def __init__(self, *, builder: bool = False, run: str = "", folder: int = 0) -> None:
        self.folder = folder
        self.task: Task | None = None
        self.begun: list[str] = []
        self.news: list[str] = []
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._read

    @property
    def idle(self) -> bool:
        return self.task is None

    def give(self, task: Task) -> None:
        self.task = task
        self.given.append(task)
        os.write(self._write, b"x")

    def read(self) -> tuple[list[Outcome], bool]:
        os.read(self._read, 1)
        task = self.task
        assert task is not None
        if task.id in self.dies:
            return [], False
        self.task = None
        status = self.proofs.pop(0) if isinstance(task, CalibrateTask) else Status.OK
        bad = status is not Status.OK
        why = Diagnosis(Stage.CHECK, "the device failed its proof: Xid 79") if bad else None
        return [Outcome(task.id, status, 0.0, diagnosis=why, last=bad, free_bytes=100)], True

    def late(self) -> bool:
        return False

    def lost(self, *, timed_out: bool) -> Outcome | None:
        assert self.task is not None
        return Outcome(self.task.id, Status.CRASH, 0.0)

    def kill(self) -> None:
        self.task = None

    def close(self, *, wait_s: float = 0.0) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalExecutor]:
    monkeypatch.setattr(executors, "WorkerProcess", ScriptedWorker)
    monkeypatch.setattr(executors, "PAUSE_S", 0.05)
    ScriptedWorker.proofs, ScriptedWorker.dies, ScriptedWorker.given = [], set(), []
    made = LocalExecutor(TARGET.devices())
    yield made
    made.close()


def check() -> CheckTask:
    return CheckTask(ids.new_id(), Subject("rmsnorm", "cpu", ".cpp", "", {}, {}, {}), (), 1)


def outcomes(executor: LocalExecutor, *tasks: Task) -> dict[str, Status]:
    for task in tasks:
        executor.submit(task)
    found: dict[str, Status] = {}
    until = time.monotonic() + 10
    while len(found) < len(tasks):
        assert time.monotonic() < until
        found |= {outcome.task: outcome.status for outcome in executor.poll(0.2)}
    return found


def start(executor: LocalExecutor) -> None:
    ScriptedWorker.proofs.insert(0, Status.OK)
    calibration = CalibrateTask(ids.new_id(), "rmsnorm", "cpu", "cpu:0", (), None, {}, 7)
    assert outcomes(executor, calibration) == {calibration.id: Status.OK}


def test_only_the_killer_pays(executor: LocalExecutor) -> None:
    """After a crash the next worker proves the device first, with the memory that was free at the start."""
    start(executor)
    killer, good = check(), check()
    ScriptedWorker.dies, ScriptedWorker.proofs = {killer.id}, [Status.OK]
    assert outcomes(executor, killer, good) == {killer.id: Status.CRASH, good.id: Status.OK}
    (proof,) = [task for task in ScriptedWorker.given[1:] if isinstance(task, CalibrateTask)]
    assert proof.free_bytes == 100
    assert not proof.measure


def test_a_device_that_comes_back_costs_nobody_anything(executor: LocalExecutor) -> None:
    start(executor)
    killer, good = check(), check()
    ScriptedWorker.dies = {killer.id}
    ScriptedWorker.proofs = [*[Status.EVALUATOR_ERROR] * (PROOFS - 1), Status.OK]
    assert outcomes(executor, killer, good) == {killer.id: Status.CRASH, good.id: Status.OK}


def test_a_device_that_stays_away_is_lost(executor: LocalExecutor) -> None:
    start(executor)
    killer, waiting = check(), check()
    ScriptedWorker.dies = {killer.id}
    ScriptedWorker.proofs = [Status.EVALUATOR_ERROR] * PROOFS
    assert outcomes(executor, killer) == {killer.id: Status.CRASH}
    executor.submit(waiting)
    until = time.monotonic() + 10
    while len(executor._failed) < PROOFS - 1:
        assert executor.poll(0.0) == []
        assert time.monotonic() < until
    with pytest.raises(DeviceLostError, match="Xid 79") as caught:
        executor.poll(5.0)
    assert "dmesg" in caught.value.fix
    assert caught.value.exit_code == 1
    assert len(proofs()) == PROOFS


def proofs() -> list[Task]:
    """Calibrations of workers that replaced another one."""
    return [task for task in ScriptedWorker.given if isinstance(task, CalibrateTask) and not task.measure]

"""Worker processes: what is asked is answered, whatever becomes of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from evo import ids
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.executor import LocalExecutor
from evo.fitness.process import children_of
from evo.fitness.tasks import BuildTask, CalibrateTask, CheckTask, Outcome, Subject, Task
from evo.records import BuildOptions, CompileRequest, Status

SOURCE = '#include "evo.h"\nextern "C" void k(long, long, int, float* y) { y[0] = %s; }\n'


def request(value: str) -> CompileRequest:
    return CompileRequest("cpu", "native", ".cpp", SOURCE % value, (), BuildOptions(), ("k",))


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    made = LocalExecutor(CpuTarget().devices(), builders=2)
    yield made
    made.close()


def wait(executor: LocalExecutor, count: int, limit_s: float = 60) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    until = time.monotonic() + limit_s
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} outcomes"
        found |= {outcome.task: outcome for outcome in executor.poll(0.5)}
    return found


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def build(value: str, limit_s: float = 60.0) -> BuildTask:
    return BuildTask(ids.new_id(), "cpu", request(value), limit_s=limit_s)


def test_builds_in_parallel_and_remembers(executor: LocalExecutor) -> None:
    tasks = [build(f"{i}.f") for i in range(5)]
    found = wait(executor, len(list(map(executor.submit, tasks))))
    assert {found[task.id].status for task in tasks} == {Status.OK}
    keys = {outcome.build.key for outcome in found.values() if outcome.build}
    assert len(keys) == 5
    again = build("0.f")
    executor.submit(again)
    outcome = wait(executor, 1)[again.id]
    assert outcome.build is not None
    assert outcome.build.key in keys
    assert outcome.seconds < 0.05  # from the cache


def test_a_builder_that_is_killed_is_an_outcome(executor: LocalExecutor) -> None:
    warm = build("1.5f")
    executor.submit(warm)
    wait(executor, 1)
    slow = build("__builtin_sinf(0.1f)")
    executor.submit(slow)
    for worker in executor._build.workers:
        if not worker.idle:
            os.kill(worker._process.pid, signal.SIGKILL)
    found = wait(executor, 1)[slow.id]
    assert found.status in (Status.EVALUATOR_ERROR, Status.OK)  # ok when it was faster than the kill
    after = build("2.5f")
    executor.submit(after)
    assert wait(executor, 1)[after.id].status is Status.OK


def test_a_late_worker_is_killed_and_named(executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evo.fitness.process.GRACE_S", 0.0)
    task = build("3.f", limit_s=0.0)
    executor.submit(task)
    found = wait(executor, 1)[task.id]
    assert found.status is Status.TIMEOUT
    assert found.diagnosis is not None
    assert "no sign of life" in found.diagnosis.message


def test_cancelled_tasks_have_no_outcome(executor: LocalExecutor) -> None:
    tasks = [build(f"{i}.25f") for i in range(6)]
    for task in tasks:
        executor.submit(task)
    assert executor.cancel(tasks[5].id)
    assert not executor.cancel("nobody")
    found = wait(executor, 5)
    assert tasks[5].id not in found


def test_device_task_before_calibration_is_evos_fault(executor: LocalExecutor) -> None:
    subject = Subject("rmsnorm", "cpu", ".cpp", "", {}, {}, {})
    task: Task = CheckTask(ids.new_id(), subject, (), 1)
    executor.submit(task)
    found = wait(executor, 1)[task.id]
    assert found.status is Status.EVALUATOR_ERROR
    assert found.diagnosis is not None
    assert "calibration" in found.diagnosis.message


def test_a_dead_device_worker_is_replaced_with_its_calibration(executor: LocalExecutor) -> None:
    calibration = CalibrateTask(ids.new_id(), "rmsnorm", "cpu", "cpu:0", (), None, {}, 7)
    executor.submit(calibration)
    assert wait(executor, 1)[calibration.id].status is Status.OK
    os.kill(executor._device.workers[0]._process.pid, signal.SIGKILL)
    time.sleep(0.2)
    assert executor.poll(0.3) == []
    subject = Subject("rmsnorm", "cpu", ".cpp", "", {}, {}, {})
    task = CheckTask(ids.new_id(), subject, (), 1)
    executor.submit(task)
    found = wait(executor, 1)
    assert found[task.id].status is Status.OK  # no case to check; and the new worker was made ready first


def test_a_cancelled_build_leaves_no_compiler_behind(executor: LocalExecutor) -> None:
    """The compiler leads a process group of its own: killing the builder's is not enough."""
    endless = "[] { int i = 0; for (int a = 0; a < 100000000; ++a) i ^= a; return i; }()"
    source = SOURCE.replace("extern", f"#pragma GCC optimize(2)\nconstexpr int slow = {endless};\nextern", 1) % "slow"
    task = BuildTask(ids.new_id(), "cpu", CompileRequest("cpu", "native", ".cpp", source, (), BuildOptions(), ("k",)))
    executor.submit(task)
    until = time.monotonic() + 30
    groups: list[int] = []
    while not groups:
        assert time.monotonic() < until, "no compiler was started"
        executor.poll(0.01)
        groups = [child for worker in executor._build.workers for child in children_of(worker._process.pid)]
    assert executor.cancel(task.id)
    until = time.monotonic() + 2
    while any(map(alive, groups)):
        assert time.monotonic() < until, "a compiler outlived its builder"
        time.sleep(0.01)

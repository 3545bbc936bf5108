"""Two evo processes on one device: each waits for the other, and its user is told once who that is."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evo import ids
from evo.app.stand import stand
from evo.fitness import exclusive
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.evaluator import Evaluator
from evo.fitness.exclusive import Owner, building, owner, timing
from evo.fitness.executor import LocalExecutor
from evo.fitness.tasks import BuildTask
from evo.genome import Genome, make_candidate
from evo.plugins.manager import Plugins
from evo.records import BuildOptions, CompileRequest, Proposal, Status

RUN = "0192f3a4-5b6c-7000-8000-000000000000"
SOURCE = '#include "evo.h"\nextern "C" void k(long, long, int, float* y) { y[0] = %s; }\n'
HOLD = """
import sys
from evo.fitness.exclusive import Owner, timing
with timing(sys.argv[1], who=Owner(int(sys.argv[2]), sys.argv[3])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of this test's own: other tests time on the same device."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(exclusive, "FOLDER", tmp_path / "evo-locks")


@contextmanager
def held(device: str, pid: int = 4711, run: str = RUN) -> Iterator[subprocess.Popen[str]]:
    """Another evo times on the device, until its standard input is closed."""
    command = [sys.executable, "-c", HOLD, device, str(pid), run]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(10)


def free(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(10)


def test_who_holds_a_device_is_known_while_it_does() -> None:
    assert owner("cuda:7") is None
    with held("cuda:7"):
        assert owner("cuda:7") == Owner(4711, RUN)
    assert owner("cuda:7") is None
    with timing("cuda:7", who=Owner(5)):
        assert owner("cuda:7") == Owner(5, "")
    with timing("cuda:7"):
        assert owner("cuda:7") is None, "who does not say so is not known"


def test_what_a_killed_process_left_is_nobody() -> None:
    with held("cpu:0") as process:
        process.kill()
        process.wait()
    with building(lambda: None, shared=True):
        assert owner("cpu:0") is None


@pytest.mark.parametrize("junk", ["12 \x1b[31mred", "x 1", "1 " + "a" * 200, "-3 ab"])
def test_a_lock_file_that_anybody_may_write_is_not_believed(tmp_path: Path, junk: str) -> None:
    with timing("cuda:7"):
        (tmp_path / "evo-locks" / "cuda-7.lock").write_text(junk)
        assert owner("cuda:7") is None


def build(value: str) -> BuildTask:
    request = CompileRequest("cpu", "native", ".cpp", SOURCE % value, (), BuildOptions(), ("k",))
    return BuildTask(ids.new_id(), "cpu", request)


def collect(executor: LocalExecutor, count: int) -> list[Status]:
    found: list[Status] = []
    for _ in range(600):
        found += [outcome.status for outcome in executor.poll(0.1)]
        executor.tell()
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count} outcomes")


def used_by(pid: int) -> str:
    return f"cpu:0 is used by another evo too, process {pid}, run {RUN}: each waits while the other measures"


def test_a_user_is_told_once_of_each_who_uses_the_device() -> None:
    executor, said = LocalExecutor(CpuTarget().devices(), builders=1), list[str]()
    executor.say = said.append
    expected = [used_by(4711)], [used_by(4711), used_by(4712)], [used_by(4711), used_by(4712)]
    try:
        for value, pid, told in zip(("11.f", "12.f", "13.f"), (4711, 4712, 4711), expected, strict=True):
            with held("cpu:0", pid) as process:
                executor.submit(build(value))
                until = time.monotonic() + 20
                while said != told and time.monotonic() < until:
                    assert executor.poll(0.1) == []
                    executor.tell()
                assert executor.poll(0.5) == []
                executor.tell()
                free(process)
                assert collect(executor, 1) == [Status.OK]
            assert said == told
    finally:
        executor.close()


def test_all_workers_together_tell_of_another_process_once() -> None:
    executor, said = LocalExecutor(CpuTarget().devices(), builders=2), list[str]()
    executor.say = said.append
    try:
        with held("cpu:0") as process:
            for value in ("14.f", "15.f", "16.f"):
                executor.submit(build(value))
            assert executor.poll(4.0) == []
            free(process)
            assert collect(executor, 3) == [Status.OK] * 3
    finally:
        executor.close()
    assert said == [used_by(4711)]


def test_a_user_is_told_once_that_only_ones_own_lock_could_be_taken(tmp_path: Path) -> None:
    (tmp_path / "evo-locks" / "cpu-0.lock").mkdir(parents=True)
    executor, said = LocalExecutor(CpuTarget().devices(), builders=2), list[str]()
    executor.say = said.append
    try:
        for value in ("21.f", "22.f", "23.f"):
            executor.submit(build(value))
        assert collect(executor, 3) == [Status.OK] * 3
    finally:
        executor.close()
    assert said == [
        f"{tmp_path}/evo-locks/cpu-0.lock is not usable (is a directory), so only this user's evo waits for cpu:0: "
        "another user's may measure on it at the same time"
    ]


def test_ones_own_workers_are_no_others() -> None:
    executor, said = LocalExecutor(CpuTarget().devices(), builders=1), list[str]()
    executor.say = said.append
    try:
        with held("cpu:0", os.getpid()) as process:
            executor.submit(build("17.f"))
            assert executor.poll(1.0) == []
            executor.tell()
            free(process)
            assert collect(executor, 1) == [Status.OK]
    finally:
        executor.close()
    assert said == []


def test_a_run_says_who_it_is_and_tells_who_else_is_there() -> None:
    said, seen = list[str](), set[Owner | None]()
    with held("cpu:0") as process, stand(Plugins.load(entry_points=False), "rmsnorm", "cpu", ["bf16-32x1024"]) as here:
        here.executor.run = RUN

        def hear(message: str) -> None:
            said.append(message)
            if "another evo" in message:
                free(process)

        here.calibrate(hear, opponents={}, names=())
        evaluator = Evaluator(here.executor, here.operator, here.target, here.cases, {})
        genome = Genome.read(here.operator.seeds("cpu")[0])
        evaluator.start(Proposal(ids.new_id(), RUN, make_candidate("rmsnorm", "cpu", genome, {})), {})

        async def judged() -> None:
            while not await evaluator.finished(0.005):
                seen.add(owner("cpu:0"))

        asyncio.run(judged())
    assert [message for message in said if "another evo" in message] == [
        f"cpu:0 is used by another evo too, process 4711, run {RUN}: each waits while the other measures"
    ]
    assert Owner(os.getpid(), RUN) in seen

"""Faults at random moments of runs: nothing lost, nothing doubled, and a person is told how to go on."""

from __future__ import annotations

import importlib
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from evo import app, ids
from evo.app.resumable import named, resumable
from evo.archive import Archive, RunRecord
from evo.errors import ArchiveError, UsageError
from evo.fitness.cpu import runner
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.executor import LocalExecutor
from evo.fitness.tasks import BuildTask
from evo.records import BuildOptions, Candidate, CompileRequest, Proposal, Status

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
RUN = RunRecord("run-1", "rmsnorm", "cpu", "cpu:0", "evo run", 1, "minutes=1", ("a",), "numpy", "e1", 1.0)
HOLD = """
import sys
from evo.archive import Archive
with Archive.open(sys.argv[1]) as archive, archive.claim("run-1"):
    print("held", flush=True)
    sys.stdin.read()
"""
KINDS = (
    "main process killed", "main process terminated", "interrupted", "interrupted twice", "disk full",
    "file size limit", "archive locked for long", "archive locked briefly", "resumed twice",
)  # fmt: skip
needs_compiler = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "evo.db"
    with Archive.open(str(place)) as archive:
        archive.start_run(RUN)
    return place


def inject(folder: Path, kinds: Sequence[str], count: int, real: float) -> None:
    out = folder / "faults.json"
    words = ["--count", str(count), "--real", str(real), "--kinds", *kinds, "--seed", "5", "--out", str(out)]
    command = [sys.executable, str(BENCHMARKS / "fault_injection.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if "can be tried here" in done.stderr:
        return  # this user may not mount a small disk; "file size limit" is the nearest kind, and always there
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = (part for part in json.loads(out.read_text()).values() if isinstance(part, dict))
    assert sum(sum(report["kinds"][kind].values()) for kind in kinds) == count
    assert [kind for kind in kinds if report["kinds"][kind].get("none", 0)] == []


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_or_doubled(tmp_path: Path, kind: str) -> None:
    inject(tmp_path, [kind], 5 if kind == "main process killed" else 2, 0.0)


@needs_compiler
@pytest.mark.alone
def test_nothing_is_lost_or_doubled_with_real_workers(tmp_path: Path) -> None:
    inject(tmp_path, ["main process killed", "worker killed", "cache removed"], 3, 1.0)


def test_a_run_belongs_to_one_process(path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
        Archive.open(str(path)) as archive,
    ):
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="run-1 is going on in another process"), archive.claim("run-1"):
            pass
        with archive.claim("run-2"):
            other.kill()
            other.wait()
        with archive.claim("run-1"):
            pass


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_size_limit_is_named(path: Path) -> None:
    big = "".join(str(number) for number in range(300_000))
    proposal = Proposal("p", "run-1", Candidate("c", "rmsnorm", "cpu", "plain", ".cpp", big, {}))
    with Archive.open(str(path)) as archive:
        with file_limit(200_000), pytest.raises(ArchiveError, match=r"evo\.db could not be written(.|\n)*quota"):
            archive.propose(proposal)
        archive.propose(proposal)
        assert [found.id for found, _ in archive.open_proposals("run-1")] == ["p"]


def test_the_first_error_of_an_archive_is_told_with_the_way_on(path: Path) -> None:
    with Archive.open(str(path)) as archive:
        with file_limit(4096), pytest.raises(ArchiveError) as told, resumable(archive, "run-1"):
            raise ArchiveError("the archive is locked", fix="wait")
        command = f"evo resume run-1 --archive {path}"
        assert str(told.value) == f"the archive is locked\n  wait; then `{command}` goes on"
        assert archive.run("run-1").state == "running"  # not even the note could be written
        with pytest.raises(ZeroDivisionError), resumable(archive, "run-1"):
            raise ZeroDivisionError
        assert archive.run("run-1").state == "failed"
        with pytest.raises(KeyboardInterrupt, match="evo resume run-1"), resumable(archive, "run-1"):
            raise KeyboardInterrupt
        assert archive.run("run-1").state == "stopped"


@needs_compiler
def test_a_run_is_done_when_its_winners_are_written_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    simulation: AbstractContextManager[None] = importlib.import_module("fault_child").simulation()
    archive, winners = tmp_path / "evo.db", tmp_path / "evo-winners"
    winners.write_text("in the way")
    with simulation:
        settings = app.Settings("rmsnorm", "cpu", "evaluations=6", archive=str(archive))
        result = app.run(settings, lambda progress: None)
        assert result.winner == ""
        assert any("could not be written" in note and f"evo resume {result.run}" in note for note in result.notes)
        winners.unlink()
        again = app.resume(result.run, str(archive), lambda progress: None)
    assert json.loads((Path(again.winner) / "portfolio.json").read_text())
    assert again.evaluated == 6
    with Archive.open(str(archive)) as store:
        assert store.run(result.run).state == "done"


@needs_compiler
def test_a_runner_whose_parent_died_before_it_began_ends(tmp_path: Path) -> None:
    arguments = ["0"] * 9 + ["1"]  # descriptors and sizes, and a process that is not its parent
    assert subprocess.run([runner.binary(), *arguments], timeout=10, check=False).returncode == 65


@needs_compiler
def test_a_cleared_build_cache_costs_one_builder_and_no_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVO_CACHE", str(tmp_path / "cache"))
    executor = LocalExecutor(CpuTarget().devices(), builders=1)
    try:
        found = [build(executor, 0)]
        shutil.rmtree(tmp_path / "cache" / "builds-1")
        found += [build(executor, 1), build(executor, 1)]
    finally:
        executor.close()
    assert found[0] is Status.OK
    assert found[1] in (Status.EVALUATOR_ERROR, Status.OK)  # evo's own fault, which the engine tries again
    assert found[2] is Status.OK


def build(executor: LocalExecutor, number: int) -> Status:
    source = f'#include "evo.h"\nextern "C" void k(long, long, int, float* y) {{ y[0] = {number}.5f; }}\n'
    request = CompileRequest("cpu", "native", ".cpp", source, (), BuildOptions(), ("k",))
    executor.submit(BuildTask(ids.new_id(), "cpu", request))
    while not (outcomes := executor.poll(1.0)):
        pass
    return outcomes[0].status


def test_commands_name_an_archive_that_is_not_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, option in (("evo.db", ""), ("my runs.db", " --archive 'my runs.db'")):
        with Archive.open(name) as archive:
            assert named(archive) == option

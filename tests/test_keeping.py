"""The build cache may be deleted at any time: what a run still needs is put back, on the real CPU target."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from evo import ids
from evo.errors import UsageError
from evo.fitness.cache import BuildCache
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.executor import LocalExecutor
from evo.fitness.keeping import Keeper
from evo.fitness.tasks import BuildTask, CalibrateTask, CheckTask, Outcome, Subject, Task
from evo.genome import Genome, compile_request
from evo.operators.rmsnorm import RmsNorm
from evo.records import Build, Status

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")

OPERATOR, NAME = RmsNorm(), "fp32-64x256"
CASE = next(case for case in OPERATOR.cases("cpu") if case.name == NAME)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildCache:
    monkeypatch.setenv("EVO_CACHE", str(tmp_path))
    return BuildCache()


@pytest.fixture
def executor(cache: BuildCache) -> Iterator[LocalExecutor]:
    made = LocalExecutor(CpuTarget().devices(), builders=1)
    yield made
    made.close()


def done(executor: LocalExecutor, task: Task) -> Outcome:
    executor.submit(task)
    while not (outcomes := executor.poll(1.0)):
        pass
    return outcomes[0]


def built(executor: LocalExecutor, path: Path | None) -> Subject:
    assert path is not None
    genome = Genome.read(path)
    values = genome.values({})
    request = compile_request(genome, OPERATOR, CASE, values, target="cpu", arch="native")
    build = done(executor, BuildTask(ids.new_id(), "cpu", request)).build
    assert build is not None
    assert build.status is Status.OK
    text = path.read_text()
    return Subject("rmsnorm", "cpu", path.suffix, text, values, {NAME: build.key}, {build.key: build})


def calibration(oracle: Subject) -> CalibrateTask:
    return CalibrateTask(ids.new_id(), "rmsnorm", "cpu", "cpu:0", (NAME,), oracle, {}, 7, measure=False)


def test_workers_find_what_was_deleted_also_those_that_replace_others(
    executor: LocalExecutor, cache: BuildCache
) -> None:
    """Every final is measured by such a worker: a run whose cache was emptied ended without a number once."""
    oracle = built(executor, OPERATOR.oracle("cpu"))
    candidate = built(executor, OPERATOR.seeds("cpu")[0])
    assert done(executor, CalibrateTask(ids.new_id(), "rmsnorm", "cpu", "cpu:0", (), oracle, {}, 7)).status is Status.OK
    for number, fresh in enumerate((False, True, True)):
        shutil.rmtree(cache.root)
        if fresh:
            executor.renew()
        found = done(executor, CheckTask(ids.new_id(), candidate, (NAME,), 7 + number, ()))
        assert found.status is Status.OK, found.diagnosis
    assert built(executor, OPERATOR.seeds("cpu")[1]).code, "builders go on in the new folder"


def test_builders_that_were_locked_in_with_another_folder_are_replaced(
    executor: LocalExecutor, cache: BuildCache
) -> None:
    """Each of them lost an outcome before, and it could be the second of one candidate."""
    built(executor, OPERATOR.oracle("cpu"))
    (first,) = executor._build.workers
    shutil.rmtree(cache.root)
    built(executor, OPERATOR.seeds("cpu")[0])
    (second,) = executor._build.workers
    assert second is not first
    built(executor, OPERATOR.seeds("cpu")[1])
    assert executor._build.workers == [second]


def test_a_folder_that_was_made_again_is_another_one(cache: BuildCache) -> None:
    assert cache.intact()
    shutil.rmtree(cache.root)
    assert not cache.intact()
    cache.root.mkdir()
    assert not cache.intact(), "though its number may be free again"
    cache.renew()
    assert cache.intact()


def test_a_file_in_the_folders_place_is_named(executor: LocalExecutor, cache: BuildCache) -> None:
    shutil.rmtree(cache.root)
    cache.root.write_text("not a folder")
    with pytest.raises(UsageError, match=r"the build cache .*builds-1 cannot be used"):
        built(executor, OPERATOR.oracle("cpu"))


def test_candidates_code_is_kept_while_there_is_room_and_the_oracles_for_good(
    cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evo.fitness.keeping.MOST_BYTES", 10)
    keeper = Keeper(cache)
    builds = [made(cache.blobs.put(data)) for data in (b"oracle", b"first", b"second")]
    subjects = [Subject("o", "cpu", ".cpp", "", {}, {"c": "k"}, {"k": build}) for build in builds]
    keeper.keep(builds[0])
    keeper.restore(calibration(subjects[0]))
    for build in builds[1:]:
        keeper.keep(build)
    shutil.rmtree(cache.root)
    for subject in subjects[1:]:
        keeper.restore(CheckTask("t", subject, ("c",), 1, ()))
    keeper.restore(calibration(subjects[0]))
    there = {path.name for path in cache.blobs.root.iterdir()}
    assert there == {builds[0].blob, builds[2].blob}
    keeper.keep(made(builds[1].blob))  # gone, and nobody's fault: whoever loads it will say so
    keeper.restore(CheckTask("t", subjects[1], ("c",), 1, ()))


def made(blob: str) -> Build:
    return Build("k", Status.OK, "tool", 0.1, blob=blob)

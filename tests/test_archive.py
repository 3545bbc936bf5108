"""The archive: what goes in comes out, whoever writes at the same time and whatever is killed."""

from __future__ import annotations

import dataclasses
import math
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from archive_records import RUN, add, candidate, evaluation, proposal, timed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from evo.archive import Archive, show, top
from evo.archive.migrations import MIGRATIONS
from evo.archive.rows import machines
from evo.archive.tables import Base
from evo.errors import UnknownNameError, UsageError
from evo.records import (
    Build,
    CaseResult,
    Deviation,
    DeviceFacts,
    Diagnosis,
    Evaluation,
    Kernel,
    Purpose,
    Stage,
    State,
    Status,
    Timing,
)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive.open(str(tmp_path / "evo.db")) as opened:
        opened.start_run(RUN)
        yield opened


def test_the_tables_are_what_the_migrations_make(tmp_path: Path) -> None:
    with Archive.open(str(tmp_path / "evo.db")):
        pass
    classes = sqlite3.connect(":memory:")
    engine = create_engine("sqlite://", creator=lambda: classes, poolclass=StaticPool)
    Base.metadata.create_all(engine)
    migrated = sqlite3.connect(tmp_path / "evo.db")

    def schema(database: sqlite3.Connection) -> dict[str, object]:
        affinity = {"VARCHAR": "TEXT", "FLOAT": "REAL"}
        found: dict[str, object] = {}
        for kind, name, sql in database.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql NOT NULL"):
            if kind == "view" or name.startswith("lesson_text"):  # not among the classes: other tests hold them
                continue
            if kind == "index":
                found[name] = " ".join(sql.replace('"', "").split())
                continue
            columns = database.execute(f"PRAGMA table_info({name})").fetchall()
            keys = database.execute(f"PRAGMA foreign_key_list({name})").fetchall()
            found[name] = (
                [(column[1], affinity.get(column[2], column[2]), *column[3:]) for column in columns],
                sorted(key[2:5] for key in keys),
                "WITHOUT ROWID" in sql,
            )
        return found

    made, declared = schema(migrated), schema(classes)
    assert set(made) >= {"run", "candidate", "evaluation", "sample", "migration", "evaluation_by_score"}
    assert made == declared
    ran = migrated.execute("SELECT number, name FROM migration").fetchall()
    assert ran == [(each.number, each.name) for each in MIGRATIONS]
    assert [number for number, _ in ran] == list(range(1, len(ran) + 1))
    migrated.close()
    engine.dispose()
    classes.close()


def test_a_run_comes_back_as_it_went_in(archive: Archive) -> None:
    assert archive.run("run-1") == RUN
    archive.update_run("run-1", yardstick="loop", cases=("a",), versions={"evo": "2"})
    archive.finish_run("run-1", "done")
    found = archive.run("run")
    assert (found.yardstick, found.cases, found.versions, found.state) == ("loop", ("a",), {"evo": "2"}, "done")
    assert found.command == RUN.command
    assert found.ended_s is not None
    archive.finish_run("run-1", "running")
    assert archive.run("run-1").ended_s is None


def test_runs_are_newest_first_and_prefixes_are_checked(archive: Archive) -> None:
    archive.start_run(dataclasses.replace(RUN, id="run-10", started_s=2000.0))
    assert [run.id for run in archive.runs(5)] == ["run-10", "run-1"]
    assert [run.id for run in archive.runs(1)] == ["run-10"]
    assert archive.run("run-1").id == "run-1"  # a whole id wins over a longer one
    with pytest.raises(UsageError, match=r"several things(.|\n)*run-1\n(.|\n)*run-10"):
        archive.run("run")
    with pytest.raises(UnknownNameError, match="unknown run id 'nope'"):
        archive.run("nope")
    with pytest.raises(UsageError, match="empty"):
        archive.run(" ")


def test_the_state_is_replaced_not_added_to(archive: Archive) -> None:
    assert archive.load_state("run-1") is None
    archive.save_state("run-1", {"random": [1, 2], "bandit": {"x": 0.5}})
    archive.save_state("run-1", {"random": [3]})
    assert archive.load_state("run-1") == {"random": [3]}


def test_open_proposals_come_back_oldest_first_with_parents(archive: Archive) -> None:
    first, second, third = proposal("p"), proposal("q", "p"), proposal("r", "q", "p", author="crossover")
    for each in (first, second, third):
        archive.propose(each)
    archive.set_state(second.id, State.EVALUATING, lease_until_s=99.0)
    archive.set_state(first.id, State.DUPLICATE, duplicate_of=candidate("q").id)
    assert archive.open_proposals("run-1") == [(second, State.EVALUATING), (third, State.PENDING)]
    shown = show(archive, first.id).proposals[0]
    assert (shown.proposal, shown.state, shown.duplicate_of) == (first, State.DUPLICATE, candidate("q").id)
    assert show(archive, second.id).proposals[0].lease_until_s == 99.0


def test_proposing_and_filing_twice_changes_nothing(archive: Archive) -> None:
    made = proposal("a")
    archive.propose(made)
    archive.propose(made, State.CANCELLED)
    filed = evaluation("a", timed("a", 2.0))
    archive.file(filed, made.id)
    archive.set_state(made.id, State.QUARANTINED)
    archive.file(filed, made.id)
    shown = show(archive, candidate("a").id)
    assert shown.evaluations == (filed,)
    assert [view.state for view in shown.proposals] == [State.QUARANTINED]
    assert archive.candidate(candidate("a").id[:9]) == candidate("a")


REAL = st.floats(allow_nan=False)
COUNT = st.integers(0, 2**62)
FLOAT32 = st.floats(allow_nan=False, width=32)
DIAGNOSES = st.none() | st.builds(Diagnosis, st.sampled_from(Stage), st.text(), st.text(), st.text())
TIMINGS = st.builds(
    Timing, st.text(), st.text(), REAL, REAL, REAL, REAL, REAL, REAL, COUNT,
    st.sampled_from(["resolved", "fixed", "behind", "budget", "self"]),
    st.lists(st.tuples(FLOAT32, FLOAT32), max_size=4).map(tuple), st.dictionaries(st.text(), REAL, max_size=2), REAL,
)  # fmt: skip
DEVIATIONS = st.builds(Deviation, REAL, REAL, REAL, COUNT, REAL, REAL)
CASES = st.builds(
    CaseResult, st.text(), st.sampled_from(Status), st.none() | DEVIATIONS, st.none() | TIMINGS, DIAGNOSES, st.text()
)
KERNELS = st.builds(
    Kernel, st.text(), st.lists(COUNT, max_size=3).map(tuple), COUNT, COUNT, COUNT, COUNT, COUNT,
    st.dictionaries(st.text(), COUNT, max_size=3),
)  # fmt: skip
BUILDS = st.builds(
    Build, st.text(), st.sampled_from(Status), st.text(), REAL, DIAGNOSES, st.text(), st.text(),
    st.lists(KERNELS, max_size=2).map(tuple), st.text(),
)  # fmt: skip
EVALUATIONS = st.builds(
    Evaluation, st.uuids().map(str), st.just("run-1"), st.just(candidate("a").id), st.sampled_from(Purpose), st.text(),
    st.text(), st.sampled_from(Status), DIAGNOSES, st.lists(BUILDS, max_size=3).map(tuple),
    st.lists(CASES, max_size=3).map(tuple), st.dictionaries(st.text(), REAL, max_size=2), st.text(),
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(filed=st.lists(EVALUATIONS, max_size=3, unique_by=lambda each: each.id))
def test_any_evaluation_comes_back_equal_and_in_order(archive: Archive, filed: list[Evaluation]) -> None:
    archive.propose(proposal("a"))
    before = {each.id for each in archive.evaluations("run-1")}
    for each in filed:
        archive.file(each, None)
    found = [each for each in archive.evaluations("run-1") if each.id not in before]
    assert found == [each for each in filed if each.id not in before]


def test_nan_comes_back_as_nan_and_samples_as_float32(archive: Archive) -> None:
    timing = Timing(
        "warm", "numpy", math.nan, 1.0, math.nan, 0.0, math.inf, 0.95, 2, "budget", ((0.1, 3.0),), sessions=(1,)
    )
    case = CaseResult("a", Status.UNSTABLE_TIMING, Deviation(math.inf, 1.0, got=math.nan), timing)
    archive.propose(proposal("a"))
    archive.file(evaluation("a", case, status=Status.UNSTABLE_TIMING), None)
    (found,) = archive.evaluations("run-1")
    back = found.cases[0]
    assert back.timing is not None
    assert back.deviation is not None
    assert math.isnan(back.timing.ratio)
    assert math.isnan(back.deviation.got)
    assert (back.deviation.rms, back.timing.high) == (math.inf, math.inf)
    assert back.timing.samples[0] == pytest.approx((0.1, 3.0), rel=1e-7)
    assert top(archive) == []


def test_evaluations_are_paged_in_order_of_filing(archive: Archive) -> None:
    archive.propose(proposal("a"))
    filed = [evaluation("a", timed("a", 1.0 + i)) for i in range(450)]
    filed.sort(key=lambda each: each.id[::-1])  # ids no longer in order of time
    with archive.batch():
        for each in filed:
            archive.file(each, None)
    assert [each.id for each in archive.evaluations("run-1")] == [each.id for each in filed]
    assert list(archive.evaluations("run-2")) == []


def test_known_keeps_the_verdict_and_forgives_evo_itself(archive: Archive) -> None:
    add(archive, "good", timed("a", 1.0, machine="m1"))
    add(archive, "twin", timed("a", 1.0, machine="m1"))
    add(archive, "lost", status=Status.EVALUATOR_ERROR)
    archive.file(evaluation("good", status=Status.EVALUATOR_ERROR), None)
    archive.propose(proposal("waiting"))
    good, twin, lost = (candidate(name).id for name in ("good", "twin", "lost"))
    assert archive.known("rmsnorm", "cpu") == {good: "ok", twin: "ok", lost: "evaluator_error"}
    assert archive.known("rmsnorm", "cpu", "e2") == {}
    found = machines([timed("a", 9.0, machine="m1"), CaseResult("b", Status.UNCOVERED)])
    assert archive.machine_ids("rmsnorm", "cpu") == {found: good}
    assert machines([timed("a", 1.0, machine="m2")]) != found
    assert machines([timed("a", 1.0)]) == ""


def test_devices_and_environments_are_kept_once(archive: Archive) -> None:
    facts = DeviceFacts("cpu:0", "Some CPU", "cpu", 2, 0, 0, 1 << 20, 1 << 30, versions={"gcc": "13"})
    assert archive.record_device(facts) == archive.record_device(facts)
    one = archive.record_environment({"host": "x", "evo": "1"})
    assert archive.record_environment({"evo": "1", "host": "x"}) == one
    assert archive.record_environment({"evo": "2", "host": "x"}) != one
    with archive.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM device").scalar_one() == 1
        assert connection.exec_driver_sql("SELECT count(*) FROM environment").scalar_one() == 2


def test_a_batch_is_seen_inside_and_undone_as_a_whole(archive: Archive) -> None:
    def failing_batch() -> None:
        with archive.batch():
            archive.propose(proposal("a"))
            with archive.batch():
                assert len(archive.open_proposals("run-1")) == 1
            raise KeyError

    with pytest.raises(KeyError):
        failing_batch()
    assert archive.open_proposals("run-1") == []
    with archive.batch():
        archive.propose(proposal("a"))
    assert len(archive.open_proposals("run-1")) == 1


def test_threads_share_an_archive(archive: Archive) -> None:
    def work(name: str) -> None:
        for i in range(10):
            with archive.batch():
                add(archive, f"{name}{i}", timed("a", 1.0 + i))

    threads = [threading.Thread(target=work, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(archive.known("rmsnorm", "cpu")) == 30


WRITER = """
import sys
sys.path.insert(0, sys.argv[3])
from evo.archive import Archive
from archive_records import add, timed
with Archive.open(sys.argv[1]) as archive:
    for i in range(int(sys.argv[4])):
        with archive.batch():
            made = [add(archive, f"{sys.argv[2]}-{i}-{j}", timed("a", 1.0), timed("b", 2.0)) for j in range(3)]
        for each in made:
            print(each.id, flush=True)
"""


def writer(path: Path, name: str, batches: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(Path(__file__).parent), str(batches)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_kill_while_filing_loses_nothing_committed(archive: Archive) -> None:
    with writer(archive.path, "killed", 100_000) as process:
        assert process.stdout is not None
        committed = [process.stdout.readline().strip() for _ in range(120)]
        process.send_signal(signal.SIGKILL)
        committed += process.stdout.read().split()
    archive.close()
    with Archive.open(str(archive.path), readonly=True) as reader:  # what was in the log only is read from there
        assert len(reader.known("rmsnorm", "cpu")) >= len(committed)
    with Archive.open(str(archive.path)) as again, again.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
        assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        done = set(connection.exec_driver_sql("SELECT id FROM proposal WHERE state = 'done'").scalars())
        assert set(committed) <= done
        evaluations = list(again.evaluations("run-1"))
        assert len(evaluations) == len(done)
        assert len(done) % 3 == 0  # whole batches only
        assert {len(each.cases) for each in evaluations} == {2}


def test_two_processes_may_write_at_once(archive: Archive) -> None:
    with writer(archive.path, "one", 30) as one, writer(archive.path, "two", 30) as two:
        first, second = one.communicate()[0].split(), two.communicate()[0].split()
    assert (one.returncode, two.returncode) == (0, 0)
    assert (len(first), len(second)) == (90, 90)
    assert len(list(archive.evaluations("run-1"))) == 180

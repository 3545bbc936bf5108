"""Check, vacuum, merge and backup: what is whole stays whole, what is not is named."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from archive_records import RUN, add, evaluation, proposal, timed

from evo.archive import Archive, lessons, messages, top
from evo.archive.care import Problem, backup, check, vacuum
from evo.archive.merging import Merged, merge
from evo.archive.queries import show
from evo.archive.rows import pack_text, source_hash
from evo.errors import ArchiveError, UsageError
from evo.genome import Genome, make_candidate
from evo.genome.defaults import with_defaults
from evo.ids import new_id
from evo.lesson import Evidence, Kind, Lesson, Origin, Scope, Standing
from evo.operators.rmsnorm import RmsNorm
from evo.records import Build, Kernel, Proposal, Status

MADE_UP = "a candidate that is not what its id says"  # ids of the tests' candidates are no identities


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive.open(str(tmp_path / "evo.db")) as opened:
        opened.start_run(RUN)
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Archive]:
    with Archive.open(str(tmp_path / "other.db")) as opened:
        opened.start_run(RUN)
        yield opened


def contents(archive: Archive) -> dict[str, set[tuple[object, ...]]]:
    """Every row of every table, save what is a matter of where it lies."""
    with archive.reading() as connection:
        names = connection.exec_driver_sql(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'lesson_text_%'"
            " AND name NOT IN ('migration', 'evaluation')"
        ).scalars()
        tables = {name: f"SELECT * FROM {name}" for name in names}
        tables["proposal"] = "SELECT id, run, candidate, author, model, note, state, duplicate_of FROM proposal"
        tables["evaluation"] = "SELECT id, run, candidate, proposal, board, status, score, filed_s FROM evaluation"
        return {
            name: {tuple(row) for row in connection.exec_driver_sql(query)} for name, query in sorted(tables.items())
        }


def orphans(count: int) -> list[tuple[str, bytes]]:
    """Rows of sources that no candidate has."""
    texts = [os.urandom(2000).hex() for _ in range(count)]
    return [(source_hash(text), pack_text(text)) for text in texts]


def problems(archive: Archive) -> dict[str, Problem]:
    return {problem.what: problem for problem in check(archive) if problem.what != MADE_UP}


def test_a_candidate_whose_file_says_its_defaults_is_what_its_id_says(archive: Archive) -> None:
    """Such is every winner's file that is handed in again."""
    genome = Genome.read(RmsNorm().seeds("cpu")[0])
    text = with_defaults(genome.canonical, genome.values({}))
    candidate = make_candidate("rmsnorm", "cpu", Genome.parse(text, genome.suffix), {})
    assert "[default]" in candidate.source
    archive.propose(Proposal(new_id(), RUN.id, candidate))
    assert [problem for problem in check(archive) if problem.what == MADE_UP] == []


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("UPDATE source SET text = x'00'", "a source that is not what its hash says"),
        ("UPDATE build SET kernels = x'789c'", "a build with unreadable facts"),
        ("UPDATE sample SET pairs_us = x'0000'", "samples that are not as many as their case says"),
        ("UPDATE evaluation SET score = 7.5", "a score that is not the mean of its cases"),
        ("UPDATE evaluation SET diagnosis_json = '{'", "an evaluation with an unreadable diagnosis"),
        ("UPDATE case_result SET board = 'elsewhere'", "a case on another board than its evaluation"),
        ("UPDATE evaluation SET duplicate_of = 'nobody'", "a duplicate of a candidate that is not there"),
        ("DELETE FROM run", "a row that refers to one that is not there"),
        ("UPDATE evaluation SET proposal = NULL", "a proposal that is done without an evaluation"),
        ("UPDATE proposal SET state = 'leased'", "a proposal in a state that this evo does not know"),
        ("UPDATE evaluation SET purpose = 'fun'", "an evaluation with words that this evo does not know"),
        (
            "UPDATE case_result SET status = 'fast'; UPDATE evaluation SET score = NULL",
            "a case with a status that this evo does not know",
        ),
    ],
)
def test_check_names_what_is_damaged(archive: Archive, damage: str, what: str) -> None:
    case = timed("a", 2.0)
    assert case.timing
    case = dataclasses.replace(case, timing=dataclasses.replace(case.timing, samples=((5.0, 10.0), (5.0, 10.0))))
    build = Build("k", Status.OK, "cc", 0.1, blob="b", code_hash="c", kernels=(Kernel("f"),))
    made = proposal("a")
    archive.propose(made)
    archive.file(dataclasses.replace(evaluation("a", case), builds=(build,)), made.id)
    assert problems(archive) == {}
    vandal = sqlite3.connect(archive.path)
    vandal.executescript(damage)
    vandal.commit()
    vandal.close()
    found = problems(archive)
    assert found[what].harm == "damage"
    assert found[what].count >= 1
    assert len(found) == 1


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("UPDATE build SET kernels = x'789c'", "build"),
        ("UPDATE source SET text = x'00'", "candidate"),
        ("UPDATE candidate SET values_json = '{bad'", "candidate"),
        ("UPDATE evaluation SET diagnosis_json = '{}'", "diagnosis"),
        ("UPDATE case_result SET time_us = 'soon'", "case"),
        ("UPDATE case_result SET clocks_json = '['", "case"),
        ("UPDATE run SET versions_json = ''", "run"),
    ],
)
def test_what_cannot_be_read_is_an_error_and_no_traceback(archive: Archive, damage: str, what: str) -> None:
    build = Build("k", Status.OK, "cc", 0.1, blob="b", code_hash="c", kernels=(Kernel("f"),))
    made = proposal("a")
    archive.propose(made)
    archive.file(dataclasses.replace(evaluation("a", timed("a", 2.0)), builds=(build,)), made.id)
    vandal = sqlite3.connect(archive.path)
    vandal.executescript(damage)
    vandal.commit()
    vandal.close()
    with pytest.raises(ArchiveError, match=f"a stored {what} cannot be read") as caught:
        show(archive, RUN.id if what == "run" else made.candidate.id)
    assert "evo archive check" in caught.value.fix


def test_check_of_a_torn_file_says_so(archive: Archive) -> None:
    for number in range(60):
        add(archive, f"c{number}", timed("a", 1.0 + number))
    archive.close()
    data = bytearray(archive.path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8192] = b"\xa5" * 8192
    archive.path.write_bytes(data)
    with Archive.open(str(archive.path), readonly=True) as torn:
        found = check(torn)
    assert any(problem.harm == "damage" and problem.what != MADE_UP for problem in found)


def test_vacuum_removes_orphans_and_gives_the_room_back(archive: Archive) -> None:
    add(archive, "kept", timed("a", 2.0))
    with archive.writing() as connection:
        connection.exec_driver_sql("INSERT INTO source VALUES (?, ?)", lost := orphans(300))
    assert check(archive)[0] == Problem("orphan", "a source that no candidate has", 300, check(archive)[0].where)
    before = contents(archive)
    done = vacuum(archive)
    assert (done.sources, done.builds) == (300, 0)
    assert done.after_bytes < done.before_bytes / 2
    assert archive.path.stat().st_size == done.after_bytes
    before["source"] = {row for row in before["source"] if row not in lost}
    assert contents(archive) == before
    add(archive, "later", timed("a", 3.0))  # the archive goes on
    with Archive.open(str(archive.path), readonly=True) as reader, pytest.raises(ArchiveError, match="read-only"):
        vacuum(reader)


def test_a_backup_is_whole_while_another_process_writes(archive: Archive, tmp_path: Path) -> None:
    add(archive, "first", timed("a", 2.0))
    words = [sys.executable, "-c", WRITER, str(archive.path), str(Path(__file__).parent)]
    copies = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number in range(3):
            process.stdout.readline()
            copies.append(tmp_path / f"copy-{number}.db")
            assert backup(archive, copies[-1]) == copies[-1].stat().st_size
        process.kill()
    counts = []
    for copy in copies:
        with Archive.open(str(copy), readonly=True) as opened:
            assert problems(opened) == {}
            counts.append(len(list(opened.evaluations("run-1"))))
            assert (counts[-1] - 1) % 2 == 0  # whole transactions
    assert counts == sorted(counts)
    assert not list(tmp_path.glob(".copy*"))
    with pytest.raises(UsageError, match=r"copy-0\.db exists already"):
        backup(archive, copies[0])


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from evo.archive import Archive
from archive_records import add, timed
with Archive.open(sys.argv[1]) as archive:
    for i in range(100000):
        with archive.batch():
            for j in range(2):
                add(archive, f"{i}-{j}", timed("a", 1.0))
        print(i, flush=True)
"""


def test_a_backup_to_a_place_that_fails_leaves_nothing(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="cannot open|may read and write"):
        backup(archive, tmp_path / "missing" / "copy.db")
    assert sorted(path.name for path in tmp_path.iterdir() if "copy" in path.name) == []


def test_merge_loses_nothing_doubles_nothing_and_does_not_mind_the_order(
    archive: Archive, other: Archive, tmp_path: Path
) -> None:
    shared = proposal("shared")
    for side in (archive, other):
        side.propose(shared)
    archive.file(evaluation("shared", timed("a", 2.0)), shared.id)
    add(archive, "mine", timed("a", 3.0))
    add(other, "yours", timed("a", 4.0), timed("b", 1.0))
    other.start_run(dataclasses.replace(RUN, id="run-2", started_s=5000.0))
    add(other, "elsewhere", timed("a", 1.5), run="run-2")
    with Archive.open(str(tmp_path / "third.db")) as third:
        merge(third, other)
        merge(third, archive)
        assert merge(archive, other) == Merged(1, 2, 2, 2, 0, 0)
        for _ in range(2):
            assert merge(archive, other) == Merged(0, 0, 0, 0, 0, 0)
        assert merge(other, archive) == Merged(0, 1, 1, 2, 0, 1)  # the shared one has its verdict there, too
        assert contents(archive) == contents(other) == contents(third)
    assert problems(archive) == {}
    assert [state for _, state in other.open_proposals("run-1")] == []
    numbers = "SELECT run, count(*), count(DISTINCT sequence), min(sequence) FROM evaluation GROUP BY run ORDER BY run"
    with archive.reading() as connection:
        assert [tuple(row) for row in connection.exec_driver_sql(numbers)] == [("run-1", 3, 3, 1), ("run-2", 1, 1, 1)]
    assert [row.values["LOAD"] for row in top(archive, case="a")] == ["yours", "mine", "shared", "elsewhere"]


def test_merge_takes_the_state_of_the_run_that_went_further(archive: Archive, other: Archive) -> None:
    archive.save_state("run-1", {"turn": 1})
    other.save_state("run-1", {"turn": 2})
    other.finish_run("run-1", "done")
    assert merge(archive, other).advanced == 1
    assert (archive.load_state("run-1"), archive.run("run-1").state) == ({"turn": 2}, "done")
    archive.save_state("run-1", {"turn": 3})
    assert merge(archive, other).advanced == 0
    assert archive.load_state("run-1") == {"turn": 3}


def test_merge_joins_lessons_by_what_they_are_about(archive: Archive, other: Archive) -> None:
    def lesson(key: str) -> Lesson:
        return Lesson(new_id(), Kind.NOTE, f"claim of {key}", Scope(), Origin.PERSON, Standing.TENTATIVE, key, 1.0, 1.0)

    for side, name in ((archive, "one"), (other, "two")):
        with side.writing() as connection:
            lessons.put(connection, lesson("both"), [Evidence(name, True)])
            lessons.put(connection, lesson(name), [])
    assert merge(archive, other).lessons == 1
    assert merge(archive, other).lessons == 0
    with archive.reading() as connection:
        both = lessons.by_key(connection, "both")
    assert both is not None
    assert {each.evaluation for each in both.evidence} == {"one", "two"}


def test_a_merge_that_fails_changes_nothing(archive: Archive, other: Archive) -> None:
    add(other, "a", timed("a", 2.0))
    vandal = sqlite3.connect(other.path)
    vandal.execute("DELETE FROM candidate")
    vandal.commit()
    vandal.close()
    before = contents(archive)
    with pytest.raises(ArchiveError, match="FOREIGN KEY"):
        merge(archive, other)
    assert contents(archive) == before
    with pytest.raises(UsageError, match="merged with itself"), Archive.open(f"{archive.path}") as same:
        merge(archive, same)


LIMITED = """
import resource, sys
from pathlib import Path
from evo.archive import Archive, care
from evo.errors import ArchiveError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
work = {"vacuum": care.vacuum, "backup": lambda archive: care.backup(archive, Path(sys.argv[1]).with_name("copy.db"))}
with Archive.open(sys.argv[1]) as archive:
    try:
        work[sys.argv[2]](archive)
    except ArchiveError as error:
        print(error)
"""


@pytest.mark.parametrize("work", ["vacuum", "backup"])
def test_a_disk_that_takes_no_more_harms_nothing(archive: Archive, work: str) -> None:
    """A file-size limit stands in for the full disk: it needs no root, and fails the same write."""
    add(archive, "a", timed("a", 2.0))
    with archive.writing() as connection:
        connection.exec_driver_sql("INSERT INTO source VALUES (?, ?)", orphans(400))
    archive.close()
    words = [sys.executable, "-c", LIMITED, str(archive.path), work]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "could not be written" in done.stdout or "is full" in done.stdout, done.stdout + done.stderr
    with Archive.open(str(archive.path)) as again:
        assert [row.values["LOAD"] for row in top(again)] == ["a"]
        assert set(problems(again)) <= {"a source that no candidate has"}
    assert [path.name for path in archive.path.parent.iterdir() if "copy" in path.name] == []


LEASER = """
import os, sys, time
sys.path.insert(0, sys.argv[2])
from evo.archive import Archive, messages
from archive_records import evaluation, timed
from evo.records import State
with Archive.open(sys.argv[1]) as archive:
    idle, late = 0, set()
    while idle < 20:
        until = time.time() + 0.3
        with archive.writing() as connection:
            mine = next((p for p in messages.starved(connection) if messages.take(connection, p, until)), None)
        if mine is None:
            idle += 1
            time.sleep(0.05)
            continue
        idle = 0
        name = dict(line.split() for line in open(sys.argv[3]))[mine]
        if hash(mine + str(os.getpid())) % 3 == 0 and mine not in late:
            late.add(mine)
            if sys.argv[4] == "dies":
                os.kill(os.getpid(), 9)
            time.sleep(0.5)  # too late: somebody else has it by now
        with archive.batch():
            with archive.writing() as connection:
                still = messages.holds(connection, mine, until)
            if still:
                archive.file(evaluation(name, timed("a", 2.0)), mine, State.DONE)
"""


def test_leases_of_several_processes_file_every_result_once(archive: Archive, tmp_path: Path) -> None:
    told = [proposal(f"p{number}") for number in range(12)]
    for each in told:
        archive.propose(each)
        with archive.writing() as connection:
            messages.say(connection, "run-1", "tell", subject=each.id)
    names = tmp_path / "names"
    names.write_text("".join(f"{each.id} {each.candidate.values['LOAD']}\n" for each in told))
    words = [sys.executable, "-c", LEASER, str(archive.path), str(Path(__file__).parent), str(names)]
    processes = [subprocess.Popen([*words, how]) for how in ("dies", "lives", "lives")]
    assert [process.wait() in (0, -9) for process in processes] == [True] * 3
    with archive.reading() as connection:
        counts = connection.exec_driver_sql("SELECT proposal, count(*) FROM evaluation GROUP BY proposal").all()
        states = connection.exec_driver_sql("SELECT DISTINCT state FROM proposal").scalars().all()
    assert sorted(tuple(row) for row in counts) == sorted((each.id, 1) for each in told)
    assert states == ["done"]

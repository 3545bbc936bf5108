"""An archive that cannot be used says why and what to do, and keeps what it had."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from sqlalchemy import Connection

from evo.archive import Archive, RunRecord, migrations, top
from evo.archive.merging import opened_for_merging
from evo.archive.migrations import Migration
from evo.archive.proposals import load_proposals
from evo.errors import ArchiveError
from evo.ids import digest
from evo.records import Candidate, Evaluation, Proposal, Purpose, State, Status

NEWEST = migrations.newest()
RUN = RunRecord("run-1", "rmsnorm", "cpu", "cpu:0", "evo run", 1, "minutes=1", ("a",), "numpy", "e1", 1.0)


def proposal(name: str, source: str = "int main;") -> Proposal:
    return Proposal(name, "run-1", Candidate(digest([name]), "rmsnorm", "cpu", "plain", ".cpp", source, {}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "evo.db"
    with Archive.open(str(place)) as archive:
        archive.start_run(RUN)
    return place


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program that has the same file open."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


def test_a_file_that_is_not_sqlite(tmp_path: Path) -> None:
    place = tmp_path / "evo.db"
    place.write_text("these are my notes, not a database\n" * 100)
    with pytest.raises(ArchiveError, match=r"evo\.db is not an evo archive: it is not an SQLite file"):
        Archive.open(str(place))
    assert place.read_text().startswith("these are my notes")


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("place", ["/dev/null", "/dev/zero", "fifo"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, place: str, readonly: bool) -> None:
    named = tmp_path / place  # an absolute one stays as it is
    if place == "fifo":
        os.mkfifo(named)  # SQLite would wait for its other end
    with pytest.raises(ArchiveError) as caught:
        Archive.open(str(named), readonly=readonly)
    assert caught.value.what == f"the archive {named} is no regular file"
    assert caught.value.fix == "name a file, such as evo.db, with --archive"


def test_a_link_to_an_archive_is_one(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with Archive.open(str(link), readonly=True) as archive:
        assert [record.id for record in archive.runs()] == [RUN.id]


def test_another_applications_file_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "photos.db"
    connection = sqlite3.connect(place)
    connection.execute("CREATE TABLE photo (id INTEGER)")
    connection.close()
    before = place.read_bytes()
    with pytest.raises(ArchiveError, match="SQLite file of another application"):
        Archive.open(str(place))
    assert place.read_bytes() == before


def test_another_applications_file_is_not_copied_to_be_merged(tmp_path: Path) -> None:
    place = tmp_path / "photos.db"
    connection = sqlite3.connect(place)
    connection.executescript("CREATE TABLE photo (id INTEGER); PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(ArchiveError, match=f"{place} is the SQLite file of another"), opened_for_merging(str(place)):
        pass


def test_a_newer_schema(path: Path, other: sqlite3.Connection) -> None:
    other.execute("PRAGMA user_version = 99")
    with pytest.raises(
        ArchiveError, match=rf"written by a newer evo: schema 99, this one knows {NEWEST}\n  upgrade evo"
    ):
        Archive.open(str(path))


def test_an_older_schema_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_table(connection: Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE later (id TEXT NOT NULL PRIMARY KEY)")

    later = Migration(NEWEST + 1, "later", add_table)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, later))
    with pytest.raises(ArchiveError, match=f"older schema {NEWEST}; this evo reads {NEWEST + 1}"):
        Archive.open(str(path), readonly=True)
    for _ in range(2):  # the second opening finds nothing to do
        with Archive.open(str(path)) as archive, archive.reading() as connection:
            ran = connection.exec_driver_sql("SELECT number, name FROM migration ORDER BY number").all()
            assert [tuple(row) for row in ran][-1] == (NEWEST + 1, "later")
            assert connection.exec_driver_sql("SELECT count(*) FROM later").scalar_one() == 0
            assert archive.run("run-1") == RUN


def test_an_archive_of_the_first_schema_keeps_its_rows_and_gets_protocols(tmp_path: Path) -> None:
    """Built by the first migration alone, as the first release did it."""
    path = tmp_path / "old.db"
    old = sqlite3.connect(path)
    for statement in migrations.statements(resources.files("evo.archive").joinpath("0001_foundation.sql").read_text()):
        old.execute(statement)
    old.execute("INSERT INTO migration VALUES (1, 'foundation', 0.0)")
    old.execute(
        "INSERT INTO run VALUES ('r', 'op', 'cpu', 'cpu:0', 'c', '1', '', '[]', 'y', 'e', 1.0, 2.0, 'done', '{}')"
    )
    old.execute("INSERT INTO source VALUES ('s', x'')")
    old.execute("INSERT INTO candidate VALUES ('c1', 'op', 'cpu', 'sp', '.cpp', 's', '{}')")
    for board in ("timed", "untimed"):
        old.execute(f"INSERT INTO board VALUES ('{board}', 'op', 'cpu', 'e', 'y', 1.0)")
    old.execute(
        "INSERT INTO evaluation VALUES ('e1', 'r', 'c1', NULL, 'timed', 1, 'search', 'y', 'cpu:0', 'ok', 2.0, 1, '',"
        " NULL, '{}', '', 3.0)"
    )
    numbers = "'warm', 'numpy', 5.0, 10.0, 2.0, 1.9, 2.1, 0.99, 2, 'fixed', '{}', 1.0, 'block'"
    old.execute(
        "INSERT INTO case_result VALUES ('e1', 0, 'timed', 'a', 'ok', 'm', NULL, 1e-3, 1e-3, 0.0, 0, 0.0, 0.0,"
        f" {numbers})"
    )
    old.execute(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
    old.execute("PRAGMA user_version = 1")
    old.commit()
    old.close()
    with Archive.open(str(path)) as archive:
        (row,) = top(archive)
        (filed,) = archive.evaluations("r")
        with archive.reading() as connection:
            found = connection.exec_driver_sql("SELECT id, protocol FROM board ORDER BY id").all()
    assert (row.protocol, row.ratio) == ("warm", 2.0)
    assert [tuple(each) for each in found] == [("timed", "warm"), ("untimed", "")]
    assert filed.cases[0].timing
    assert filed.cases[0].timing.sessions == ()


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(connection: Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE half (id TEXT)")
        connection.exec_driver_sql("CREATE TABLE run (id TEXT)")

    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, Migration(NEWEST + 1, "broken", broken)))
        with pytest.raises(ArchiveError, match="table run already exists"):
            Archive.open(str(path))
    with Archive.open(str(path)) as archive, archive.reading() as connection:
        assert connection.exec_driver_sql("SELECT name FROM sqlite_schema WHERE name = 'half'").all() == []


def test_statements_are_split_where_sql_ends() -> None:
    script = "-- a; comment\nCREATE TABLE t (\n  a TEXT DEFAULT ';'\n);\nSELECT 1;\n"
    assert [part.splitlines()[-1] for part in migrations.statements(script)] == [");", "SELECT 1;"]
    with pytest.raises(ValueError, match="inside a statement"):
        list(migrations.statements("SELECT 1;\nSELECT"))


def test_locked_by_another_process(path: Path, other: sqlite3.Connection) -> None:
    with Archive.open(str(path), busy_s=0.05) as archive:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ArchiveError, match="locked by another process"):
            archive.propose(proposal("p"))
        assert archive.runs() == [RUN]  # readers do not wait
        other.execute("ROLLBACK")
        archive.propose(proposal("p"))
        assert len(archive.open_proposals("run-1")) == 1


def test_locked_while_it_is_made(tmp_path: Path) -> None:
    place = tmp_path / "evo.db"
    connection = sqlite3.connect(place, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(ArchiveError, match="locked by another process"):
        Archive.open(str(place), busy_s=0.05)
    connection.close()
    Archive.open(str(place)).close()


def test_a_full_disk_keeps_what_was_filed(path: Path) -> None:
    with Archive.open(str(path)) as archive:
        archive.propose(proposal("first"))
        with archive.reading() as connection:  # the archive's only connection so far: the limit holds for it
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        big = "".join(digest([str(i)]) for i in range(4000))
        with pytest.raises(ArchiveError, match=r"disk that holds the archive .*evo\.db is full"):
            archive.propose(proposal("second", big))
        assert [found.id for found, _ in archive.open_proposals("run-1")] == ["first"]
    with Archive.open(str(path)) as archive, archive.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
        archive.propose(proposal("second", big))


def test_read_only(path: Path) -> None:
    before = path.read_bytes()
    with Archive.open(str(path), readonly=True) as archive:
        assert archive.runs() == [RUN]
        assert top(archive) == []
        with pytest.raises(ArchiveError, match="read-only here"):
            archive.finish_run("run-1", "done")
    assert path.read_bytes() == before


def test_a_damaged_file(path: Path) -> None:
    with Archive.open(str(path)) as archive:
        archive.propose(proposal("p", "".join(digest([str(i)]) for i in range(2000))))
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xa5" * (len(data) - 8192)  # all but the header and one page
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match="is damaged"), Archive.open(str(path)) as archive:
        archive.open_proposals("run-1")


@pytest.mark.parametrize(
    ("place", "readonly", "create", "message"),
    [
        ("none.db", False, False, "there is no archive .*none.db"),
        ("none.db", True, True, "there is no archive .*none.db"),
        ("missing/evo.db", False, True, "there is no folder .*missing(.|\n)*mkdir -p"),
        (".", False, True, "is a folder"),
    ],
)
def test_a_place_without_an_archive(tmp_path: Path, place: str, readonly: bool, create: bool, message: str) -> None:
    with pytest.raises(ArchiveError, match=message):
        Archive.open(str(tmp_path / place), readonly=readonly, create=create)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_a_fresh_archive(tmp_path: Path) -> None:
    place = tmp_path / "evo.db"
    place.touch()
    for readonly in (True, False):
        with pytest.raises(ArchiveError, match="is empty"):
            Archive.open(str(place), create=False, readonly=readonly)
        assert place.stat().st_size == 0, "who only reads writes nothing"
    with Archive.open(f"sqlite:///{place}") as archive:
        assert archive.runs() == []


def test_other_urls_are_refused_without_showing_passwords() -> None:
    with pytest.raises(ArchiveError, match=r"mysql:// URL is not supported(.|\n)*postgresql://USER@HOST") as refused:
        Archive.open("mysql://me:secret@db/evo")
    assert "secret" not in str(refused.value)
    for nowhere in ("", "sqlite:///", ":memory:"):
        with pytest.raises(ArchiveError, match="needs a file"):
            Archive.open(nowhere)


def test_records_that_refer_to_nothing(path: Path) -> None:
    evaluation = Evaluation("e", "run-1", "nobody", Purpose.SEARCH, "numpy", "cpu:0", Status.OK)
    orphan = Evaluation("e", "run-9", "nobody", Purpose.SEARCH, "numpy", "cpu:0", Status.OK)
    with Archive.open(str(path)) as archive:
        with pytest.raises(ArchiveError, match="FOREIGN KEY constraint failed"):
            archive.file(evaluation, None)
        with pytest.raises(ArchiveError, match="there is no run 'run-9'"):
            archive.file(orphan, None)
        with pytest.raises(ArchiveError, match="there is no run 'run-9'"):
            archive.finish_run("run-9", "done")
        with pytest.raises(ArchiveError, match="there is no proposal 'nothing'"):
            archive.set_state("nothing", State.DONE)
        with archive.reading() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM board").scalar_one() == 0


def test_a_failed_write_undoes_its_batch_even_if_the_error_is_swallowed(path: Path) -> None:
    def swallowing_batch(archive: Archive) -> None:
        with archive.batch():
            archive.propose(proposal("a"))
            with pytest.raises(ArchiveError, match="no proposal"):
                archive.set_state("nothing", State.DONE)

    with Archive.open(str(path)) as archive:
        with pytest.raises(ArchiveError, match="whole batch was undone"):
            swallowing_batch(archive)
        assert archive.open_proposals("run-1") == []


def test_words_of_no_released_version_are_named(path: Path, other: sqlite3.Connection) -> None:
    """A development version once wrote the state `leased`: reading such a proposal was a traceback."""
    with Archive.open(str(path)) as archive:
        archive.propose(proposal("a"))
    other.execute("UPDATE proposal SET state = 'leased'")
    with Archive.open(str(path)) as archive, archive.reading() as connection:
        with pytest.raises(ArchiveError, match="holds the state 'leased'") as caught:
            load_proposals(connection, "run", RUN.id)
    assert "evo archive check" in caught.value.fix

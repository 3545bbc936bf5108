"""The archive on a real PostgreSQL server: the other archive tests' questions and records, and what is its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import measured
import pytest
import test_archive as records
import test_archive_queries as questions
import test_lessons as learned
from archive_places import needs_server, server_place
from archive_records import RUN, add, candidate, proposal, timed
from sqlalchemy import create_engine, inspect

from evo.archive import Archive, fulltext, lineage, merging, migrations, top
from evo.archive.asking import ask, ask_sql
from evo.archive.care import backup, check, vacuum
from evo.archive.migrations import Migration
from evo.archive.server import tables
from evo.errors import ArchiveError, UsageError
from evo.records import State

pytestmark = needs_server

# The same tests as for a file, with the fixture `archive` of this module.
test_a_run_comes_back = records.test_a_run_comes_back_as_it_went_in
test_runs_are_newest_first = records.test_runs_are_newest_first_and_prefixes_are_checked
test_the_state_is_replaced = records.test_the_state_is_replaced_not_added_to
test_open_proposals = records.test_open_proposals_come_back_oldest_first_with_parents
test_twice_changes_nothing = records.test_proposing_and_filing_twice_changes_nothing
test_nan_and_samples = records.test_nan_comes_back_as_nan_and_samples_as_float32
test_paging = records.test_evaluations_are_paged_in_order_of_filing
test_known = records.test_known_keeps_the_verdict_and_forgives_evo_itself
test_batches = records.test_a_batch_is_seen_inside_and_undone_as_a_whole
test_threads = records.test_threads_share_an_archive
test_learning = learned.test_learning_makes_a_lesson_with_evidence_and_is_idempotent
test_retiring = learned.test_new_evidence_retires_and_the_reason_stays
test_pitfalls = learned.test_failures_with_a_common_cause_become_a_pitfall_and_are_doubted_when_one_is_right
test_hypotheses = learned.test_a_persons_hypothesis_is_judged_by_measurements
test_retrieval = learned.test_retrieval_ranks_by_scope_words_and_genes_within_a_budget
test_top = questions.test_top_ranks_by_the_geometric_mean_of_ok_cases
test_finals = questions.test_a_final_sample_replaces_the_lucky_one_of_the_search
test_fewer_cases = questions.test_a_final_sample_of_fewer_cases_does_not_hide_the_others
test_verdicts = questions.test_only_a_later_verdict_against_the_candidate_takes_its_place
test_boards = questions.test_other_evaluators_and_yardsticks_never_mix
test_elites = questions.test_elites_hold_the_best_of_every_case
test_show = questions.test_show_finds_each_kind_of_thing
test_lineage = questions.test_lineage_walks_back_once_through_every_ancestor


@pytest.fixture
def url() -> Iterator[str]:
    with server_place() as place:
        yield place


@pytest.fixture
def archive(url: str) -> Iterator[Archive]:
    with Archive.open(url) as opened:
        opened.start_run(RUN)
        yield opened


@pytest.fixture
def store(url: str) -> Iterator[Archive]:
    with Archive.open(url) as opened:
        measured.start(opened, "run-1")
        yield opened


def test_the_server_has_the_tables_of_a_file(archive: Archive) -> None:
    with archive.reading() as connection:
        inspector = inspect(connection)
        assert set(inspector.get_table_names()) >= set(tables().tables)
        views = set(inspector.get_view_names())
        ratio = next(column for column in inspector.get_columns("case_result") if column["name"] == "ratio")
        text = next(column for column in inspector.get_columns("candidate") if column["name"] == "id")
        assert migrations.schema_of(connection) == migrations.newest()
    assert views == {"v_candidate", "v_case", "v_evaluation", "v_parent", "v_proposal", "v_run"}
    assert str(ratio["type"]) == "DOUBLE PRECISION"
    assert 'COLLATE "C"' in str(text["type"])


def test_a_later_migration_runs_on_a_server_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Archive.open(url).close()
    number = migrations.newest() + 1

    def apply(connection: object) -> None:
        script = "CREATE TABLE later (id TEXT NOT NULL PRIMARY KEY, share REAL NOT NULL, data BLOB) WITHOUT ROWID;"
        connection.exec_driver_sql(migrations.translated(script))  # type: ignore[attr-defined]

    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, Migration(number, "later", apply)))
    with pytest.raises(
        ArchiveError, match=rf"older schema {number - 1}; this evo reads {number}\n.*evo archive upgrade"
    ):
        Archive.open(url, readonly=True)
    for _ in range(2):
        with Archive.open(url) as archive, archive.reading() as connection:
            assert migrations.schema_of(connection) == number
            (column,) = [c for c in inspect(connection).get_columns("later") if c["name"] == "share"]
            assert str(column["type"]) == "DOUBLE PRECISION"


def test_a_newer_schema_and_another_applications_tables_are_left_alone(url: str) -> None:
    with Archive.open(url) as archive, archive.writing() as connection:
        connection.exec_driver_sql("INSERT INTO migration VALUES (99, 'future', 0)")
    with pytest.raises(ArchiveError, match="written by a newer evo: schema 99"):
        Archive.open(url)
    with server_place() as place:
        engine = create_engine(place.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE photo (id INTEGER)")
        with pytest.raises(ArchiveError, match="tables of another application"):
            Archive.open(place)
        engine.dispose()
    with server_place() as place, pytest.raises(ArchiveError, match="holds no archive"):
        Archive.open(place, create=False)


def test_a_reader_cannot_write(archive: Archive, url: str) -> None:
    with Archive.open(url, readonly=True) as reader:
        with pytest.raises(ArchiveError, match="read-only here"):
            reader.finish_run("run-1", "done")
        with pytest.raises(ArchiveError, match="read-only here"), reader.reading() as connection:
            connection.exec_driver_sql("DELETE FROM run")
    assert len(archive.runs()) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM run",
        "SELECT 1; DELETE FROM run",
        "SELECT 1; COMMIT; DELETE FROM run",
        "WITH x AS (DELETE FROM run RETURNING id) SELECT * FROM x",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "SET default_transaction_read_only = off",
    ],
)
def test_sql_that_would_write_is_refused(archive: Archive, statement: str) -> None:
    add(archive, "a", timed("a", 2.0))
    with pytest.raises(UsageError):
        ask_sql(archive, statement)
    assert ask_sql(archive, "SELECT count(*) AS n FROM run").records() == [{"n": 1}]


def test_what_a_function_writes_is_undone(archive: Archive) -> None:
    """PostgreSQL 15 lets a large object be made in a read-only transaction."""
    count = "SELECT count(*) AS n FROM pg_largeobject_metadata"
    before = ask_sql(archive, count)
    ask_sql(archive, "SELECT lo_create(0)")
    assert ask_sql(archive, count) == before


def test_filters_find_the_same_rows_as_in_a_file(archive: Archive) -> None:
    for name in ("x", "it's"):
        add(archive, name, timed("a", 2.0))
    assert ask(archive, 'gene.LOAD == "it\'s"', columns=("candidate",)).rows == ((candidate("it's").id,),)
    assert len(ask(archive, "gene.TILE < 9 and score > 1").rows) == 2
    assert ask(archive, "gene.LOAD > 3").rows == ()
    assert len(ask(archive, '"pla" in species and gene.NONE is None').rows) == 2


def test_full_text_finds_words_and_forgets_what_was_removed(archive: Archive) -> None:
    with archive.writing() as connection:
        fulltext.add(connection, "one", "STORE st.global.cs is faster for long rows")
        fulltext.add(connection, "two", "THREADS 256 is slower; faster never")
        found = fulltext.matching(connection, "is st.global.cs faster? | & ! ' (", 5)
        assert list(found) == ["one", "two"]
        assert found["one"] > found["two"] > 0
        fulltext.remove(connection, "one")
        assert list(fulltext.matching(connection, "global faster", 5)) == ["two"]
        assert fulltext.matching(connection, "?!", 5) == {}


def test_merge_backup_and_care_cross_the_kinds_of_archive(archive: Archive, tmp_path: Path) -> None:
    add(archive, "a", timed("a", 2.0))
    with Archive.open(str(tmp_path / "evo.db")) as file:
        file.start_run(RUN)
        made = add(file, "b", timed("a", 3.0))
        archive.propose(made)  # still waits there, is done here
        assert merging.merge(archive, file).evaluations == 1
        assert merging.merge(archive, file).evaluations == 0
    assert [row.values["LOAD"] for row in top(archive)] == ["b", "a"]
    assert archive.open_proposals("run-1") == []
    assert backup(archive, tmp_path / "copy.db") > 0
    with Archive.open(str(tmp_path / "copy.db"), readonly=True) as copy:
        assert top(copy) == top(archive)
        assert list(copy.evaluations("run-1")) == list(archive.evaluations("run-1"))
    assert vacuum(archive).sources == 0
    assert [problem.what for problem in check(archive)] == ["a candidate that is not what its id says"]  # made up here


WRITER = """
import sys
sys.path.insert(0, sys.argv[3])
from evo.archive import Archive
from archive_records import add, timed
with Archive.open(sys.argv[1]) as archive:
    for i in range(15):
        with archive.batch():
            for j in range(3):
                add(archive, f"{sys.argv[2]}-{i}-{j}", timed("a", 1.0), timed("b", 2.0))
"""


def test_two_processes_may_write_at_once(archive: Archive, url: str) -> None:
    words = [sys.executable, "-c", WRITER, url]
    here = str(Path(__file__).parent)
    with subprocess.Popen([*words, "one", here]) as one, subprocess.Popen([*words, "two", here]) as two:
        assert (one.wait(), two.wait()) == (0, 0)
    assert len(list(archive.evaluations("run-1"))) == 90
    assert len(archive.known("rmsnorm", "cpu")) == 90


def test_a_writer_waits_only_so_long(archive: Archive, url: str) -> None:
    with Archive.open(url, busy_s=0.1) as other, archive.batch():
        archive.propose(proposal("a"))
        with pytest.raises(ArchiveError, match="locked by another process"):
            other.propose(proposal("b"))
        assert other.runs() == archive.runs()  # readers do not wait
    assert [state for _, state in archive.open_proposals("run-1")] == [State.PENDING]


def test_a_run_is_held_by_one_at_a_time(archive: Archive, url: str) -> None:
    with Archive.open(url) as other:
        with (
            archive.claim("run-1"),
            pytest.raises(UsageError, match="going on in another process"),
            other.claim("run-1"),
        ):
            pass
        with other.claim("run-1"), archive.claim("run-2"):
            pass


def test_what_is_no_file_says_so_and_shows_no_password(archive: Archive) -> None:
    with pytest.raises(ArchiveError, match="is not a file"):
        _ = archive.path
    assert archive.folder == Path.cwd()
    with pytest.raises(ArchiveError, match="cannot reach the archive") as refused:
        Archive.open("postgresql://me:secret@localhost:1/evo")
    assert "secret" not in str(refused.value)
    assert lineage(archive, add(archive, "x", timed("a", 1.0)).candidate.id)[0].depth == 0

"""Archives of every earlier schema come up to date and keep what they hold: tested on a real run's archive."""

from __future__ import annotations

import lzma
import sqlite3
from pathlib import Path

import pytest

from evo.archive import Archive, migrations, top
from evo.archive.care import check
from evo.archive.merging import merge, opened_for_merging
from evo.errors import ArchiveError

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "docs" / "results" / "2026-11-30-rmsnorm-forward-h200" / "evo.db.xz"  # of schema 1


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "evo.db"
    path.write_bytes(lzma.decompress(RECORDED.read_bytes()))
    return path


def copied(path: Path, to: Path) -> Path:
    to.write_bytes(path.read_bytes())
    return to


def schema(path: Path) -> set[tuple[str, str, str]]:
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    connection.close()
    return {(kind, name, " ".join(sql.split())) for kind, name, sql in found if not name.startswith("sqlite_")}


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    place = tmp_path / "fresh.db"
    Archive.open(str(place)).close()
    return place


@pytest.mark.parametrize("number", [migration.number for migration in migrations.MIGRATIONS[:-1]])
def test_every_earlier_schema_comes_up_to_date(
    first: Path, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = copied(first, tmp_path / "old.db")
    with monkeypatch.context() as patch:  # as the evo of that schema leaves it
        patch.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:number])
        Archive.open(str(path)).close()
    before = sqlite3.connect(path)
    assert before.execute("PRAGMA user_version").fetchone() == (number,)
    tables = ("run", "candidate", "proposal", "evaluation", "case_result", "sample", "build", "source")
    counts = [before.execute(f"SELECT count(*) FROM {table}").fetchone() for table in tables]
    before.close()
    with pytest.raises(ArchiveError, match=f"older schema {number}; .*\n.*`evo archive upgrade`"):
        Archive.open(str(path), readonly=True)
    with Archive.open(str(path)) as archive, archive.reading() as connection:
        now = [tuple(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").one()) for table in tables]
        best = top(archive)[0]
    assert now == counts
    assert counts[3] == (359,)
    assert (round(best.score, 4), best.protocol) == (2.512, "rotation")
    assert schema(path) == schema(fresh)


def test_a_real_archive_is_whole(first: Path, tmp_path: Path) -> None:
    with Archive.open(str(copied(first, tmp_path / "old.db"))) as archive:
        assert check(archive) == []
        run = archive.runs()[0]
        evaluations = list(archive.evaluations(run.id))
    assert sum(len(case.timing.samples) for each in evaluations for case in each.cases if case.timing) > 1000


def test_an_older_archive_is_merged_and_stays_as_it_is(first: Path, tmp_path: Path) -> None:
    old = copied(first, tmp_path / "old.db")
    before = old.read_bytes()
    with Archive.open(str(tmp_path / "evo.db")) as archive:
        for evaluations in (359, 0):
            with opened_for_merging(str(old)) as other:
                assert merge(archive, other).evaluations == evaluations
        assert check(archive) == []
        assert round(top(archive)[0].score, 4) == 2.512
    assert old.read_bytes() == before

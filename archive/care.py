"""Care of an archive: is it whole, make it small, copy it while it is in use."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from evo.archive.connect import reading_uri
from evo.archive.contents import damaged_rows
from evo.archive.faults import explained
from evo.archive.migrations import on_server
from evo.archive.store import Archive
from evo.archive.tables import Base
from evo.errors import ArchiveError, UsageError

SHOWN = 20  # problems of one kind that are listed
# What the foreign keys cannot say. Each query names the rows that are wrong.
_ORPHANS = {
    "a source that no candidate has": "SELECT hash FROM source WHERE hash NOT IN (SELECT source FROM candidate)",
    "a build that no evaluation has": "SELECT id FROM build WHERE id NOT IN (SELECT build FROM evaluation_build)",
    "a candidate that nobody proposed": "SELECT id FROM candidate c WHERE NOT EXISTS"
    " (SELECT 1 FROM proposal p WHERE p.candidate = c.id)",
}
_CONTRADICTIONS = {
    "a proposal that is done without an evaluation": "SELECT id FROM proposal p WHERE state = 'done' AND NOT EXISTS"
    " (SELECT 1 FROM evaluation e WHERE e.proposal = p.id)",
    "a duplicate of a candidate that is not there": "SELECT id FROM evaluation e WHERE duplicate_of <> ''"
    " AND NOT EXISTS (SELECT 1 FROM candidate c WHERE c.id = e.duplicate_of)",
    "an evaluation of another candidate than its proposal's": "SELECT e.id FROM evaluation e"
    " JOIN proposal p ON p.id = e.proposal WHERE p.candidate <> e.candidate",
    "a case on another board than its evaluation": "SELECT r.evaluation FROM case_result r"
    " JOIN evaluation e ON e.id = r.evaluation WHERE r.board <> e.board",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """`harm`: "damage" loses or falsifies something, "orphan" only takes room (`vacuum` removes it)."""

    harm: str
    what: str
    count: int
    where: tuple[str, ...]  # the first ids


def check(archive: Archive) -> list[Problem]:
    """Integrity of the file, foreign keys, orphans, contradictions, and every blob against its hash or its format.

    An archive that is so damaged that it cannot be read through gives that as its last problem.
    """
    found: list[Problem] = []
    try:
        with archive.reading() as connection:
            if not on_server(connection):
                found += _integrity(connection)
            for harm, queries in (("damage", _CONTRADICTIONS), ("orphan", _ORPHANS)):
                for what, query in queries.items():
                    found += _problem(harm, what, connection.execute(text(query)).scalars())
            for what, rows in damaged_rows(connection).items():
                found += _problem("damage", what, iter(rows))
    except ArchiveError as error:
        found.append(Problem("damage", error.what, 1, ()))
    return found


def _integrity(connection: Connection) -> list[Problem]:
    said = connection.exec_driver_sql(f"PRAGMA integrity_check({SHOWN})").scalars().all()
    broken = [line for line in said if line != "ok"]
    loose = [f"{row[0]} {row[1]}" for row in connection.exec_driver_sql("PRAGMA foreign_key_check")]
    return [
        *_problem("damage", "the file's own structure", iter(broken)),
        *_problem("damage", "a row that refers to one that is not there", iter(loose)),
    ]


def _problem(harm: str, what: str, rows: Iterator[Any]) -> list[Problem]:
    first: list[str] = []
    count = 0
    for row in rows:
        count += 1
        if count <= SHOWN:
            first.append(str(row))
    return [Problem(harm, what, count, tuple(first))] if count else []


@dataclass(frozen=True, slots=True)
class Vacuumed:
    before_bytes: int
    after_bytes: int
    sources: int  # orphans that were removed
    builds: int


def vacuum(archive: Archive) -> Vacuumed:
    """Removes orphaned sources and builds and gives the room of all that was removed back. Takes as much free disk as
    the archive is large, and keeps others from writing meanwhile."""
    before = _size(archive)
    with archive.writing() as connection:
        sources = connection.execute(
            text("DELETE FROM source WHERE hash NOT IN (SELECT source FROM candidate)")
        ).rowcount
        builds = connection.execute(
            text("DELETE FROM build WHERE id NOT IN (SELECT build FROM evaluation_build)")
        ).rowcount
    archive.compact()
    return Vacuumed(before, _size(archive), sources, builds)


def _size(archive: Archive) -> int:
    if not isinstance(archive.place, str):
        files = [archive.path, archive.path.with_name(f"{archive.path.name}-wal")]
        return sum(file.stat().st_size for file in files if file.exists())
    with archive.reading() as connection:
        sizes = [
            connection.execute(text("SELECT pg_total_relation_size(to_regclass(:name))"), {"name": name}).scalar_one()
            for name in Base.metadata.tables
        ]
    return sum(sizes)


def backup(archive: Archive, to: Path, progress: Callable[[int, int], None] | None = None) -> int:
    """Copies the archive, as it is at one moment, into a new file while others go on writing; its size in bytes.

    `progress` gets pages left and pages in all. Raises `UsageError` when `to` exists: a backup is never overwritten.
    A server's archive is copied into an SQLite file.
    """
    to = to.expanduser().absolute()
    if to.exists():
        raise UsageError(f"{to} exists already", fix="name a new file; a backup is never overwritten")
    half = to.with_name(f".{to.name}.half")
    with explained(to):
        half.unlink(missing_ok=True)
    try:
        if isinstance(archive.place, str):
            from evo.archive.merging import merge

            with Archive.open(str(half)) as copy:
                merge(copy, archive)
        else:
            _copy(archive.place, half, progress)
        with explained(to):
            os.link(half, to)  # fails when somebody has made the file meanwhile
    except FileExistsError:
        raise UsageError(f"{to} exists already", fix="name a new file; a backup is never overwritten") from None
    finally:
        for more in ("", "-wal", "-shm", "-journal"):
            half.with_name(half.name + more).unlink(missing_ok=True)
    return to.stat().st_size


def _copy(path: Path, to: Path, progress: Callable[[int, int], None] | None) -> None:
    """By SQLite's backup in one step: it holds a read snapshot, so it never has to start anew when others write."""
    with explained(path):
        source = sqlite3.connect(reading_uri(path), uri=True)
    with explained(to):
        try:
            target = sqlite3.connect(to)
            try:
                source.backup(target, progress=(lambda _, left, pages: progress(left, pages)) if progress else None)
                target.execute("PRAGMA journal_mode = DELETE")  # one file, whole, that can be copied and mailed
                said = target.execute("PRAGMA quick_check(1)").fetchone()[0]
            finally:
                target.close()
        finally:
            source.close()
    if said != "ok":
        raise ArchiveError(f"the archive {path} is damaged: {said}", fix="`evo archive check` says more")

"""Takes all that another archive knows into this one: nothing is lost, nothing is there twice.

Ids are content hashes or UUIDs, so equal ids are the same thing, and merging again changes nothing. What may differ
under one id is what goes on: a run's state (the one saved last counts), a proposal's (a verdict counts more than
waiting for one), a board's age. All of it is one transaction.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, bindparam, select, text

from evo.archive import lessons
from evo.archive import tables as t
from evo.archive.connect import locate, reading_uri
from evo.archive.faults import explained
from evo.archive.migrations import APPLICATION_ID, newest
from evo.archive.server import is_server
from evo.archive.store import Archive
from evo.errors import UsageError

_BLOCK = 1000  # rows read and written at a time
_IDS = 500  # bound parameters in one statement
_BY_HAND = set("migration run run_state turn agent_job board proposal evaluation lesson lesson_evidence".split())
_JOURNAL = (t.RUN_STATE, t.TURN, t.AGENT_JOB)  # numbered within a run, so they go together
_OPEN = ("pending", "building", "evaluating")
_JUDGE = text(
    "UPDATE proposal SET state = :state, lease_until_s = NULL, duplicate_of = :duplicate_of"
    f" WHERE id = :id AND {t.OPEN_STATES}"
)
_RENEW = text("UPDATE board SET newest_s = :newest_s WHERE id = :id AND newest_s < :newest_s")
_SAVED = text("SELECT run, saved_s FROM run_state")
_TAKEN = text("SELECT run, max(sequence) FROM evaluation GROUP BY run")


@dataclass(frozen=True, slots=True)
class Merged:
    """How many were new here, and how many runs and proposals went on since."""

    runs: int
    candidates: int
    proposals: int
    evaluations: int
    lessons: int
    advanced: int


@contextmanager
def opened_for_merging(url_or_path: str) -> Iterator[Archive]:
    """The other archive, for reading; one of an older schema is brought up to date as a copy, and stays as it is."""
    with ExitStack() as stack:
        if not is_server(url_or_path) and (older := _older(locate(url_or_path))):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="evo-merge-"))
            copy = Path(folder) / "evo.db"
            with explained(older):
                source, target = sqlite3.connect(reading_uri(older), uri=True), sqlite3.connect(copy)
                with source, target:
                    source.backup(target)
                source.close()
                target.close()
            Archive.open(str(copy)).close()
            url_or_path = str(copy)
        yield stack.enter_context(Archive.open(url_or_path, create=False, readonly=True))


def _older(path: Path) -> Path | None:
    if not path.is_file():
        return None  # opening it says so
    with explained(path):
        connection = sqlite3.connect(reading_uri(path), uri=True)
        try:
            schema = connection.execute("PRAGMA user_version").fetchone()[0]
            application = connection.execute("PRAGMA application_id").fetchone()[0]
        finally:
            connection.close()
    return path if application == APPLICATION_ID and 0 < schema < newest() else None


def merge(archive: Archive, other: Archive) -> Merged:
    """Takes `other` in. Raises `UsageError` when both are the same place."""
    if archive.place == other.place or _same_file(archive, other):
        raise UsageError(f"{archive.place} cannot be merged with itself", fix="name another archive")
    with archive.writing() as into, other.reading() as source:
        before = _counts(into)
        advanced = _runs(into, source)
        for table in t.Base.metadata.sorted_tables:  # what is referred to comes first
            if table is t.PROPOSAL:
                advanced += _proposals(into, source)
            elif table is t.EVALUATION:
                _evaluations(into, source)
            elif table is t.BOARD:
                _boards(into, source)
            elif table.name not in _BY_HAND:
                for rows in _blocks(source, table):
                    into.execute(t.insert_new(table), rows)
        for lesson in source.execute(select(t.LESSON.c.id).order_by(t.LESSON.c.id)).scalars().all():
            lessons.merge(into, lessons.show(source, lesson))
        new = [after - count for after, count in zip(_counts(into), before, strict=True)]
    return Merged(new[0], new[1], new[2], new[3], new[4], advanced)


def _same_file(archive: Archive, other: Archive) -> bool:
    if isinstance(archive.place, str) or isinstance(other.place, str):
        return False
    return archive.place.samefile(other.place)


def _counts(connection: Connection) -> list[int]:
    tables = ("run", "candidate", "proposal", "evaluation", "lesson")
    return [connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() for table in tables]


def _blocks(source: Connection, table: Table) -> Iterator[list[dict[str, Any]]]:
    query = select(table).order_by(*table.primary_key.columns).execution_options(yield_per=_BLOCK)
    for block in source.execute(query).mappings().partitions():
        yield [dict(row) for row in block]


def _known(into: Connection, table: Table, ids: Sequence[str]) -> set[str]:
    query = text(f"SELECT id FROM {table.name} WHERE id IN :ids").bindparams(bindparam("ids", expanding=True))
    return {
        found
        for at in range(0, len(ids), _IDS)
        for found in into.execute(query, {"ids": ids[at : at + _IDS]}).scalars()
    }


def _runs(into: Connection, source: Connection) -> int:
    """A run that is in both is as far as the one whose state was saved last; its journal goes with its state."""
    ours: dict[str, float] = {run: saved_s for run, saved_s in into.execute(_SAVED)}
    theirs: dict[str, float] = {run: saved_s for run, saved_s in source.execute(_SAVED)}
    advanced, ahead = 0, set[str]()
    for rows in _blocks(source, t.RUN):
        known = _known(into, t.RUN, [row["id"] for row in rows])
        for row in rows:
            if row["id"] not in known:
                into.execute(t.insert_new(t.RUN), row)
            elif theirs.get(row["id"], 0.0) > ours.get(row["id"], 0.0):
                into.execute(t.RUN.update().where(t.RUN.c.id == row["id"]).values(row))
                for table in _JOURNAL:
                    into.execute(table.delete().where(table.c.run == row["id"]))
                advanced += 1
            else:
                ahead.add(row["id"])
    for table in _JOURNAL:
        for rows in _blocks(source, table):
            if taken := [row for row in rows if row["run"] not in ahead]:
                into.execute(t.insert_new(table), taken)
    return advanced


def _boards(into: Connection, source: Connection) -> None:
    for rows in _blocks(source, t.BOARD):
        into.execute(t.insert_new(t.BOARD), rows)
        into.execute(_RENEW, [{"id": row["id"], "newest_s": row["newest_s"]} for row in rows])


def _proposals(into: Connection, source: Connection) -> int:
    """New ones; of those that still wait here, the verdict that was given there."""
    advanced = 0
    for rows in _blocks(source, t.PROPOSAL):
        known = _known(into, t.PROPOSAL, [row["id"] for row in rows])
        judged = [row for row in rows if row["id"] in known and row["state"] not in _OPEN]
        into.execute(t.insert_new(t.PROPOSAL), rows)
        for row in judged:
            names = ("id", "state", "duplicate_of")
            advanced += into.execute(_JUDGE, {name: row[name] for name in names}).rowcount
    return advanced


def _evaluations(into: Connection, source: Connection) -> None:
    """Sequence numbers are a run's own, so a run that went on in both archives gets new ones behind those it has."""
    last: dict[str, int] = defaultdict(int, {run: number for run, number in into.execute(_TAKEN)})
    had = dict(last)
    query = select(t.EVALUATION).order_by(t.EVALUATION.c.run, t.EVALUATION.c.sequence)
    for block in source.execute(query.execution_options(yield_per=_BLOCK)).mappings().partitions():
        rows = [dict(row) for row in block]
        known = _known(into, t.EVALUATION, [row["id"] for row in rows])
        new = [row for row in rows if row["id"] not in known]
        for row in new:
            if row["run"] in had:
                last[row["run"]] += 1
                row["sequence"] = last[row["run"]]
        _insert(into, t.EVALUATION, new)


def _insert(into: Connection, table: Table, rows: Iterable[dict[str, Any]]) -> None:
    if found := list(rows):
        into.execute(table.insert(), found)

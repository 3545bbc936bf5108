"""Questions in the user's own words: a filter over a documented view, or a SELECT. Nothing here can write.

An SQLite file is opened read-only, with an authorizer that lets nothing pass but reading; on a server the statement is
the body of a cursor in a read-only transaction, which takes nothing but a SELECT.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import inspect, select
from sqlalchemy import table as sql_table
from sqlalchemy.sql import column as sql_column

from evo.archive.connect import reading_uri
from evo.archive.faults import explained
from evo.archive.filters import Filter
from evo.archive.store import Archive
from evo.errors import UnknownNameError, UsageError

VIEWS = {  # what a question is about, and the columns that are shown unless others are asked for
    "candidate": ("candidate", "species", "genes", "author", "created_s"),
    "case": ("candidate", "species", "case_name", "status", "ratio", "low", "high", "time_us", "protocol"),
    "evaluation": ("candidate", "species", "status", "score", "covered", "purpose", "diagnosis"),
    "parent": ("candidate", "parent", "position", "author"),
    "proposal": ("proposal", "candidate", "species", "state", "author", "note"),
    "run": ("run", "operator", "target", "state", "started_s", "command"),
}
NUMBERS = frozenset(
    "covered created_s ended_s error_max error_rms error_row filed_s high lease_until_s level light_us low opponent_us"
    " pairs position ratio score sequence started_s time_us".split()
)  # columns that hold numbers; all others are text
LIMIT_S = 60.0  # a SELECT that takes longer is stopped
_LONGEST_BYTES = 64 << 20  # of one value
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_STEPS = 100_000  # of SQLite's machine between two looks at the clock


@dataclass(frozen=True, slots=True)
class Rows:
    """`more`: there are rows beyond the limit."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool = False

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def ask(
    archive: Archive,
    condition: str = "",
    of: str = "evaluation",
    columns: Sequence[str] = (),
    sort: str = "",
    limit: int = 100,
) -> Rows:
    """The rows of the view `v_OF` for which `condition` (see `evo.archive.filters`) holds; all without one.

    `sort`: a column, with "-" before it the largest first. Raises `UnknownNameError` for a view or column that there is
    not, `LanguageError` for a condition outside the language.
    """
    if of not in VIEWS:
        raise UnknownNameError("view", of, VIEWS)
    with archive.reading() as connection:
        names = [column["name"] for column in inspect(connection).get_columns(f"v_{of}")]
        chosen = list(columns) or list(VIEWS[of])
        for name in (*chosen, *([sort.removeprefix("-")] if sort else [])):
            if name not in names:
                raise UnknownNameError(f"column of v_{of}", name, names)
        view = sql_table(f"v_{of}", *(sql_column(name) for name in names))
        query = select(*(view.c[name] for name in chosen))
        if condition.strip():
            columns_of = inspect(connection).get_columns

            def elsewhere(name: str) -> str:
                views = [view for view in VIEWS if any(column["name"] == name for column in columns_of(f"v_{view}"))]
                return " or ".join(f"--of {view}" for view in views)

            language = Filter({name: name in NUMBERS for name in names}, connection.dialect.name, elsewhere)
            query = query.where(language.condition(condition))
        if sort:
            column = view.c[sort.removeprefix("-")]
            query = query.order_by((column.desc() if sort.startswith("-") else column.asc()).nulls_last())
        found = connection.execute(query.limit(limit + 1)).all()
    return _rows(chosen, found, limit)


def ask_sql(archive: Archive, statement: str, limit: int = 1000) -> Rows:
    """The first rows of a SELECT of the user's. Raises `UsageError` for anything that would do more than read, and for
    what the database does not understand or does not finish in `LIMIT_S` seconds."""
    if isinstance(archive.place, str):
        return _ask_server(archive, statement, limit)
    with explained(archive.place):
        connection = sqlite3.connect(reading_uri(archive.place), uri=True, isolation_level=None)
    try:
        _lock_in(connection)
        cursor = connection.execute(statement)
        columns = [column[0] for column in cursor.description or ()]
        found = cursor.fetchmany(limit + 1)
    except (sqlite3.Error, sqlite3.Warning, MemoryError, OverflowError) as error:
        raise _refused(error) from error
    finally:
        connection.close()
    if not columns:
        raise UsageError("that statement gives no rows", fix="ask by a SELECT")
    return _rows(columns, found, limit)


def _lock_in(connection: sqlite3.Connection) -> None:
    """After this the connection reads, for so long, and does nothing else."""
    deadline = time.monotonic() + LIMIT_S
    connection.execute("PRAGMA query_only = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_BYTES)
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _STEPS)
    connection.set_authorizer(_authorise)


def _authorise(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    harmful = action == sqlite3.SQLITE_FUNCTION and second in ("load_extension", "fts3_tokenizer")
    return sqlite3.SQLITE_OK if action in _ALLOWED and not harmful else sqlite3.SQLITE_DENY


def _refused(error: BaseException) -> UsageError:
    reason = str(error)
    if "not authorized" in reason or "prohibited" in reason or "readonly" in reason:
        return UsageError("that statement would do more than read", fix="--sql takes one SELECT")
    if "interrupted" in reason or "canceling statement" in reason:
        return UsageError(f"the question took more than {LIMIT_S:.0f} s", fix="ask for less, or copy the file")
    if "one statement at a time" in reason or "multiple commands" in reason:
        return UsageError("several statements at once", fix="--sql takes one SELECT")
    return UsageError(
        f"the database does not take that: {reason.strip()}", fix="docs/archive.md lists views and tables"
    )


def _ask_server(archive: Archive, statement: str, limit: int) -> Rows:
    import psycopg

    with archive.reading() as connection:
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(LIMIT_S * 1000)}")
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        try:
            with driver.cursor("evo_question") as cursor:  # DECLARE takes one SELECT or VALUES and nothing else
                cursor.execute(statement.encode())
                columns = [column.name for column in cursor.description or ()]
                found = cursor.fetchmany(limit + 1)
        except psycopg.Error as error:
            connection.invalidate()
            raise _refused(error) from error
    return _rows(columns, found, limit)


def _rows(columns: Sequence[str], found: Sequence[Any], limit: int) -> Rows:
    return Rows(tuple(_distinct(columns)), tuple(tuple(map(_shown, row)) for row in found[:limit]), len(found) > limit)


def _distinct(columns: Sequence[str]) -> list[str]:
    """A SELECT may give two columns one name; here each has its own."""
    found: list[str] = []
    for name in columns:
        found.append(name if name not in found else f"{name}_{found.count(name) + len(found)}")
    return found


def _shown(value: Any) -> Any:
    """Blobs as hexadecimal digits: JSON and CSV have no bytes."""
    return bytes(value).hex() if isinstance(value, bytes | memoryview) else value

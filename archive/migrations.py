"""How an archive file becomes the newest schema: numbered steps, forward only, each in a transaction of its own.

A fresh file runs all of them. The file's `user_version` is the number of the last one; the table `migration` keeps
which ran and when. A fresh server database is made whole (see `evo.archive.server`); later steps run there as well.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources

from sqlalchemy import Connection, Engine, inspect, text

from evo.archive import fulltext

APPLICATION_ID = 0x65766F41  # "evoA", in the file's header: tells our files from other SQLite files

_TO_SERVER = {
    r"json_extract\(([\w.]+), '\$\.(\w+)'\)": r"(\1::json ->> '\2')",
    r"\bTEXT\b": 'TEXT COLLATE "C"',
    r"\bREAL\b": "DOUBLE PRECISION",
    r"\bINTEGER\b": "BIGINT",
    r"\bBLOB\b": "BYTEA",
    r"\) WITHOUT ROWID;": ");",
}

WRITING = "evo_writing"  # execution option: the transaction takes the write lock at its start


def writer(engine: Engine) -> Engine:
    """The same engine, whose transactions take the write lock at their start (BEGIN IMMEDIATE)."""
    return engine.execution_options(**{WRITING: True})


def statements(script: str) -> Iterator[str]:
    """The single statements of an SQL script, in order."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending.strip()
            pending = ""
    if pending.strip():
        raise ValueError(f"an SQL script ends inside a statement: {pending.strip()!r}")


def script(file: str) -> Callable[[Connection], None]:
    """A step that runs an SQL file of this package."""

    def apply(connection: Connection) -> None:
        for statement in statements(resources.files("evo.archive").joinpath(file).read_text("utf-8")):
            connection.exec_driver_sql(translated(statement) if on_server(connection) else statement)

    return apply


def on_server(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"


def translated(statement: str) -> str:
    """A statement in SQLite's words as PostgreSQL's: its way to look into JSON, and its types."""
    for pattern, words in _TO_SERVER.items():
        statement = re.sub(pattern, words, statement)
    return statement


def _lessons(connection: Connection) -> None:
    script("0003_lessons.sql")(connection)
    fulltext.create(connection)


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    apply: Callable[[Connection], None]


MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "foundation", script("0001_foundation.sql")),
    Migration(2, "protocols", script("0002_protocols.sql")),
    Migration(3, "lessons", _lessons),
    Migration(4, "messages", script("0004_messages.sql")),
    Migration(5, "views", script("0005_views.sql")),
    Migration(6, "exchanges", script("0006_exchanges.sql")),
)


def newest() -> int:
    """The schema that this version of evo reads and writes."""
    return MIGRATIONS[-1].number


def schema_of(connection: Connection) -> int:
    """The archive's schema number; 0 for a fresh one."""
    if on_server(connection):
        if not inspect(connection).has_table("migration"):
            return 0
        return int(connection.exec_driver_sql("SELECT coalesce(max(number), 0) FROM migration").scalar_one())
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def migrate(engine: Engine, make: Callable[[Connection], None] | None = None) -> None:
    """Runs what is missing; `make` makes a fresh archive whole. Two processes may do so at once: the second finds the
    work done."""
    if make is not None:
        with writer(engine).begin() as connection:
            if not schema_of(connection):
                make(connection)
    for migration in MIGRATIONS:
        with writer(engine).begin() as connection:
            if schema_of(connection) >= migration.number:
                continue
            migration.apply(connection)
            connection.execute(
                text("INSERT INTO migration (number, name, applied_s) VALUES (:number, :name, :now)"),
                {"number": migration.number, "name": migration.name, "now": time.time()},
            )
            if on_server(connection):
                continue
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version = {migration.number}")

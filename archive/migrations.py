"""How an archive file becomes the newest schema: numbered steps, forward only, each in a transaction of its own.

A fresh file runs all of them. The file's `user_version` is the number of the last one; the table `migration` keeps
which ran and when.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources

from sqlalchemy import Connection, Engine, text

APPLICATION_ID = 0x65766F41  # "evoA", in the file's header: tells our files from other SQLite files

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
            connection.exec_driver_sql(statement)

    return apply


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    apply: Callable[[Connection], None]


MIGRATIONS: tuple[Migration, ...] = (Migration(1, "foundation", script("0001_foundation.sql")),)


def newest() -> int:
    """The schema that this version of evo reads and writes."""
    return MIGRATIONS[-1].number


def schema_of(connection: Connection) -> int:
    """The file's schema number; 0 for a fresh file."""
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def migrate(engine: Engine) -> None:
    """Runs what is missing. Two processes may do so at once: the second finds the work done."""
    for migration in MIGRATIONS:
        with writer(engine).begin() as connection:
            if schema_of(connection) >= migration.number:
                continue
            migration.apply(connection)
            connection.execute(
                text("INSERT INTO migration (number, name, applied_s) VALUES (:number, :name, :now)"),
                {"number": migration.number, "name": migration.name, "now": time.time()},
            )
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version = {migration.number}")

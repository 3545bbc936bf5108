"""A PostgreSQL server as the archive's place, for a team: the same tables and questions as in a file.

One writer at a time, as with a file: a writing transaction begins by taking an advisory lock, which the server gives
free when the transaction or its process ends. Readers see a snapshot and never wait. The tables lie in the schema that
is first on the connection's search path. Text compares by its bytes (collation "C"), as SQLite does it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import BigInteger, Connection, Engine, Integer, MetaData, Text, create_engine, event, insert, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlmodel import AutoString

from evo import extras
from evo.archive import fulltext
from evo.archive.faults import explained
from evo.archive.migrations import MIGRATIONS, WRITING, migrate, newest, schema_of, script
from evo.archive.tables import MIGRATION, Base
from evo.errors import ArchiveError, UsageError

SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")
_WRITERS, _RUNS = 0x65766F41, 0x65766F52  # classes of advisory locks
_UNREACHED_S = 10
_LOCK = f"SELECT pg_advisory_xact_lock({_WRITERS}, hashtext(current_schema()))"
_CLAIM = "SELECT pg_try_advisory_lock(%s, hashtext(current_schema() || %s))"
_RELEASE = "SELECT pg_advisory_unlock(%s, hashtext(current_schema() || %s))"


def is_server(url_or_path: str) -> bool:
    return url_or_path.startswith(SCHEMES)


def open_server(url: str, *, create: bool, readonly: bool, busy_s: float) -> tuple[str, Engine]:
    """The URL as it may be shown, and an engine over a checked archive of the newest schema.

    Raises `ArchiveError`: not a URL, no driver, not reached, another application's tables, written by a newer evo.
    """
    address = _address(url)
    place = address.set(drivername="postgresql").render_as_string(hide_password=True)
    engine = _engine(address, busy_s)
    try:
        with explained(place):
            with engine.connect() as connection:
                schema = _identify(connection, place)
            if not schema and (readonly or not create):
                raise ArchiveError(f"{place} holds no archive", fix="`evo run --archive URL` makes one there")
            if readonly and schema < newest():
                raise ArchiveError(
                    f"{place} has the older schema {schema}; this evo reads {newest()}",
                    fix="`evo archive upgrade` brings it up to date; after that an older evo cannot read it",
                )
            if not readonly:
                migrate(engine, make=_make)
    except BaseException:
        engine.dispose()
        raise
    return place, engine


def _address(url: str) -> URL:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise ArchiveError(
            "an archive on a PostgreSQL server needs the driver psycopg", fix=extras.install("postgres")
        ) from None
    try:
        return make_url(url).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):  # the port; the URL is not shown: it may hold a password
        raise ArchiveError(
            "the archive's URL cannot be read", fix="write postgresql://USER@HOST:PORT/DATABASE"
        ) from None


def _engine(address: URL, busy_s: float) -> Engine:
    engine = create_engine(address, pool_size=4, connect_args={"connect_timeout": _UNREACHED_S})

    @event.listens_for(engine, "connect")
    def prepare(driver: Any, _record: Any) -> None:
        driver.execute(f"SET lock_timeout = {max(1, round(busy_s * 1000))}")
        driver.execute("SET application_name = 'evo'")
        driver.commit()

    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    """A writer takes the lock before its first look at a table; a reader gets a snapshot that it cannot write."""
    options = connection.get_execution_options()
    if options.get(WRITING, False):
        connection.exec_driver_sql(_LOCK)
    elif options.get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


def _identify(connection: Connection, place: str) -> int:
    """The schema's number, 0 where there are no tables. Raises `ArchiveError` when it is not ours or too new."""
    schema = schema_of(connection)
    if not schema and inspect(connection).get_table_names():
        raise ArchiveError(f"{place} holds tables of another application", fix="make an empty database: `createdb evo`")
    if schema > newest():
        raise ArchiveError(
            f"{place} was written by a newer evo: schema {schema}, this one knows {newest()}", fix="upgrade evo"
        )
    return schema


def _make(connection: Connection) -> None:
    """All tables as they are now: no server has had the schemas before."""
    tables().create_all(connection)
    fulltext.create(connection)
    script("0005_views.sql")(connection)
    rows = [{"number": each.number, "name": each.name, "applied_s": time.time()} for each in MIGRATIONS]
    connection.execute(insert(MIGRATION), rows)


def tables() -> MetaData:
    """The archive's tables with the server's types: 64-bit integers, text that compares by its bytes."""
    made = MetaData()
    for table in Base.metadata.sorted_tables:
        for column in table.to_metadata(made).columns:
            if isinstance(column.type, Integer):
                column.type = BigInteger()
                column.autoincrement = False
            elif isinstance(column.type, AutoString):
                column.type = Text(collation="C")
    return made


@contextmanager
def claimed(engine: Engine, place: str, run: str) -> Iterator[None]:
    """As `evo.archive.claims.claimed`: the server gives the run free when this process's connection ends."""
    with explained(place):
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with connection:
        with explained(place):
            held = connection.exec_driver_sql(_CLAIM, (_RUNS, run)).scalar_one()
        if not held:
            raise UsageError(
                f"run {run} is going on in another process", fix="wait for its end, or stop it there with Ctrl-C"
            )
        try:
            yield
        finally:
            with explained(place):
                connection.exec_driver_sql(_RELEASE, (_RUNS, run))


def is_claimed(engine: Engine, place: str, run: str) -> bool:
    """As `evo.archive.claims.is_claimed`, of any host."""
    try:
        with claimed(engine, place, run):
            return False
    except UsageError:
        return True

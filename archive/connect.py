"""Opens the archive's file: where it is, whether it is ours, and how SQLite is set up for it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from evo.archive.faults import Place, explained
from evo.archive.migrations import APPLICATION_ID, WRITING, migrate, newest, schema_of
from evo.archive.server import is_server, open_server
from evo.errors import ArchiveError

BUSY_S = 10.0  # how long a write waits for another process
_SQLITE = "sqlite:///"
_CACHE_KIB = 32 * 1024  # a million candidates' index pages at work; SQLite's own default is 2 MiB
_CHECKPOINT_PAGES = 4000  # 16 MiB of log between two copies into the file: each copy waits for the disk


def locate(url_or_path: str) -> Path:
    """The file that a path or an `sqlite:///` URL names. Raises `ArchiveError` for any other URL."""
    place = url_or_path.removeprefix(_SQLITE)
    if "://" in place:
        scheme = place.partition("://")[0]  # never the whole URL: it may hold a password
        raise ArchiveError(
            f"an archive at a {scheme}:// URL is not supported",
            fix="name a file, or a database by postgresql://USER@HOST/DATABASE",
        )
    if not place.strip() or place == ":memory:":
        raise ArchiveError(f"an archive needs a file, got {url_or_path!r}", fix="--archive evo.db")
    return Path(place).expanduser().absolute()


def open_database(url_or_path: str, *, create: bool, readonly: bool, busy_s: float) -> tuple[Place, Engine]:
    """Where the archive is, as it may be shown, and an engine over it, checked and of the newest schema.
    Raises `ArchiveError` (see `Archive.open`)."""
    if is_server(url_or_path):
        return open_server(url_or_path, create=create, readonly=readonly, busy_s=busy_s)
    path = locate(url_or_path)
    return path, open_engine(path, create=create, readonly=readonly, busy_s=busy_s)


def open_engine(path: Path, *, create: bool, readonly: bool, busy_s: float) -> Engine:
    """An engine over a checked archive of the newest schema. Raises `ArchiveError` (see `Archive.open`)."""
    _check_place(path, create=create and not readonly)
    engine = _engine(path, readonly=readonly, busy_s=busy_s)
    try:
        with explained(path):
            with engine.connect() as connection:
                schema = _identify(connection, path)
            if not readonly:
                _use_wal(engine, busy_s)
                migrate(engine)
            elif schema < newest():
                raise ArchiveError(
                    f"{path} has the older schema {schema}; this evo reads {newest()}",
                    fix="`evo archive upgrade` brings it up to date; after that an older evo cannot read it",
                )
    except BaseException:
        engine.dispose()
        raise
    return engine


def _check_place(path: Path, *, create: bool) -> None:
    if not path.parent.is_dir():
        raise ArchiveError(f"there is no folder {path.parent} for the archive", fix=f"mkdir -p {path.parent}")
    if path.is_dir():
        raise ArchiveError(f"the archive {path} is a folder", fix=f"name a file, such as {path / 'evo.db'}")
    if path.exists() and not path.is_file():  # a device or a pipe, of which SQLite says strange things or none at all
        raise ArchiveError(f"the archive {path} is no regular file", fix="name a file, such as evo.db, with --archive")
    if not path.exists() and not create:
        raise ArchiveError(f"there is no archive {path}", fix="`evo run` makes one; or name another with --archive")
    if path.exists() and not os.access(path, os.R_OK):
        raise ArchiveError(f"you may not read the archive {path}", fix="ask its owner, or name another with --archive")
    if path.is_file() and not path.stat().st_size and not create:
        raise ArchiveError(f"the archive {path} is empty", fix="`evo run` fills it; or name another with --archive")


def _engine(path: Path, *, readonly: bool, busy_s: float) -> Engine:
    engine = create_engine(
        "sqlite://", creator=_connector(path, readonly=readonly, busy_s=busy_s), poolclass=QueuePool, pool_size=4
    )
    event.listen(engine, "begin", _begin)
    return engine


def reading_uri(path: Path) -> str:
    """SQLite's name for the file, opened for reading only."""
    uri = f"file:{quote(str(path))}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        uri += "&immutable=1"  # a WAL file cannot be read without making its -shm, unless nobody can write it
    return uri


def _connector(path: Path, *, readonly: bool, busy_s: float) -> Callable[[], sqlite3.Connection]:
    uri = reading_uri(path) if readonly else f"file:{quote(str(path))}?mode=rwc"

    def connect() -> sqlite3.Connection:
        # isolation_level None: transactions begin where `_begin` says, not where the driver guesses.
        # The pool hands a connection to one thread at a time, which is all that SQLite asks for.
        connection = sqlite3.connect(uri, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")  # in WAL mode: a crash of the process loses nothing
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        return connection

    return connect


def _begin(connection: Connection) -> None:
    """A writer takes its lock at once: upgrading a read transaction later can fail however long one waits."""
    writing = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _identify(connection: Connection, path: Path) -> int:
    """The file's schema number, 0 when it is empty. Raises `ArchiveError` when it is not ours or too new."""
    application = int(connection.exec_driver_sql("PRAGMA application_id").scalar_one())
    if application != APPLICATION_ID:
        tables = int(connection.exec_driver_sql("SELECT count(*) FROM sqlite_schema").scalar_one())
        if application or tables:
            raise ArchiveError(
                f"{path} is the SQLite file of another application", fix="name another file with --archive"
            )
    schema = schema_of(connection)
    if schema > newest():
        raise ArchiveError(
            f"{path} was written by a newer evo: schema {schema}, this one knows {newest()}", fix="upgrade evo"
        )
    return schema


def _use_wal(engine: Engine, busy_s: float) -> None:
    """Readers go on while one process writes. The switch is kept in the file; making it needs the file alone for a
    moment, and SQLite does not wait for that by itself. A file system that cannot do it keeps the older journal."""
    deadline = time.monotonic() + busy_s
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        while True:
            try:
                driver.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

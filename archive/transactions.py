"""Who writes when: one writer at a time within the process and between processes, readers never wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine

from evo.archive.faults import Place, explained, read_only
from evo.archive.migrations import writer
from evo.errors import ArchiveError


class Transactions:
    """Transactions over one archive. Safe for threads; a batch belongs to the thread that opened it."""

    def __init__(self, engine: Engine, place: Place, *, readonly: bool) -> None:
        self._engine = engine
        self._writer = writer(engine)
        self._place = place
        self._readonly = readonly
        self._lock = threading.RLock()
        self._batch: _Batch | None = None  # guarded by the lock

    def close(self) -> None:
        with explained(self._place):
            self._engine.dispose()

    def compact(self) -> None:
        """Gives the room of removed rows back; outside a transaction, as the database wants it."""
        if self._readonly:
            raise read_only(self._place)
        with self._lock, explained(self._place):
            connection = self._engine.raw_connection()
            try:
                driver: Any = connection.driver_connection
                server = self._engine.dialect.name == "postgresql"
                if server:
                    driver.autocommit = True
                driver.execute("VACUUM (ANALYZE)" if server else "VACUUM")
                if server:
                    driver.autocommit = False
                else:
                    driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except BaseException:
                connection.invalidate()
                raise
            finally:
                connection.close()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A snapshot; inside this thread's batch, what the batch wrote is seen."""
        batch = self._batch
        if batch is not None and batch.thread == threading.get_ident() and batch.connection is not None:
            with explained(self._place):
                yield batch.connection
            return
        with explained(self._place), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction, or a part of this thread's batch. Whatever is raised inside undoes all of it."""
        if self._readonly:
            raise read_only(self._place)
        with self._lock:
            if self._batch is None:
                with explained(self._place), self._writer.begin() as connection:
                    yield connection
                return
            batch = self._batch
            try:
                with explained(self._place):
                    yield batch.begin(self._writer)
            except BaseException:
                batch.spoilt = True
                raise

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Groups the writes inside into one transaction, which begins with the first of them."""
        with self._lock:
            if self._batch is not None:  # a batch inside a batch is part of it
                yield
                return
            self._batch = batch = _Batch(threading.get_ident())
            try:
                yield
                if batch.spoilt:
                    raise ArchiveError(
                        f"a write to the archive {self._place} failed, so its whole batch was undone",
                        fix="let the first error end the batch",
                    )
                with explained(self._place):
                    batch.commit()
            finally:
                self._batch = None
                batch.close()


class _Batch:
    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.connection: Connection | None = None
        self.spoilt = False  # a write failed half-way: its rows must not be committed with the others

    def begin(self, engine: Engine) -> Connection:
        if self.connection is None:
            self.connection = engine.connect()
            self.connection.begin()
        return self.connection

    def commit(self) -> None:
        if self.connection is not None:
            self.connection.commit()

    def close(self) -> None:
        """Gives the connection back; what is not committed is undone."""
        if self.connection is not None:
            self.connection.close()

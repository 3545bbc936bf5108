"""Who writes when: one writer at a time within the process and between processes, readers never wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine

from evo.archive.faults import explained, read_only
from evo.archive.migrations import writer
from evo.errors import ArchiveError


class Transactions:
    """Transactions over one archive file. Safe for threads; a batch belongs to the thread that opened it."""

    def __init__(self, engine: Engine, path: Path, *, readonly: bool) -> None:
        self._engine = engine
        self._writer = writer(engine)
        self._path = path
        self._readonly = readonly
        self._lock = threading.RLock()
        self._batch: _Batch | None = None  # guarded by the lock

    def close(self) -> None:
        with explained(self._path):
            self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A snapshot; inside this thread's batch, what the batch wrote is seen."""
        batch = self._batch
        if batch is not None and batch.thread == threading.get_ident() and batch.connection is not None:
            with explained(self._path):
                yield batch.connection
            return
        with explained(self._path), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction, or a part of this thread's batch. Whatever is raised inside undoes all of it."""
        if self._readonly:
            raise read_only(self._path)
        with self._lock:
            if self._batch is None:
                with explained(self._path), self._writer.begin() as connection:
                    yield connection
                return
            batch = self._batch
            try:
                with explained(self._path):
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
                        f"a write to the archive {self._path} failed, so its whole batch was undone",
                        fix="let the first error end the batch",
                    )
                with explained(self._path):
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

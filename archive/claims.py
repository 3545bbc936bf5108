"""Which process works on a run: one at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evo.archive.faults import explained
from evo.errors import UsageError
from evo.ids import digest

_HELD = (BlockingIOError, PermissionError)  # POSIX allows either


@contextmanager
def claimed(archive: Path, run: str) -> Iterator[None]:
    """Holds the run for this process; the kernel gives it free when the process ends, however that comes.

    One byte of a file beside the archive stands for each run. Raises `UsageError` when another process holds it: both
    would evaluate the same proposals and overwrite each other's state.
    """
    with explained(archive):
        file = _claims(archive).open("ab")
    with file:
        with explained(archive):
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(run))
            except _HELD:
                raise UsageError(
                    f"run {run} is going on in another process", fix="wait for its end, or stop it there with Ctrl-C"
                ) from None
        yield


def is_claimed(archive: Path, run: str) -> bool:
    """Whether another process of this host holds the run. Writes nothing."""
    with explained(archive):
        try:
            file = _claims(archive).open("rb")
        except FileNotFoundError:
            return False
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _byte(run))
            except _HELD:
                return True
    return False


def _claims(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}-runs")


def _byte(run: str) -> int:
    return int(digest([run])[:15], 16)

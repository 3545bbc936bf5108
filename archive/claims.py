"""Which process works on a run: one at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evo.archive.faults import explained
from evo.errors import UsageError
from evo.ids import digest


@contextmanager
def claimed(archive: Path, run: str) -> Iterator[None]:
    """Holds the run for this process; the kernel gives it free when the process ends, however that comes.

    One byte of a file beside the archive stands for each run. Raises `UsageError` when another process holds it: both
    would evaluate the same proposals and overwrite each other's state.
    """
    with explained(archive):
        file = archive.with_name(f"{archive.name}-runs").open("ab")
    with file:
        with explained(archive):
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(digest([run])[:15], 16))
            except (BlockingIOError, PermissionError):  # POSIX allows either
                raise UsageError(
                    f"run {run} is going on in another process", fix="wait for its end, or stop it there with Ctrl-C"
                ) from None
        yield

"""SQLite's errors as errors a person can act on."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from evo.errors import ArchiveError

_FULL_BYTES = 1 << 20  # SQLite reports some failures on a full disk as plain I/O errors: less free than this is full


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an error of SQLite, or of the operating system, on the file `path` into an `ArchiveError`."""
    try:
        yield
    except DBAPIError as error:
        raise _explanation(error.orig, path) from error
    except (sqlite3.Error, OSError) as error:
        raise _explanation(error, path) from error


def foreign(path: Path) -> ArchiveError:
    return ArchiveError(
        f"{path} is not an evo archive: it is not an SQLite file, or it is encrypted",
        fix="name another file with --archive, or move this one away",
    )


def read_only(path: Path) -> ArchiveError:
    return ArchiveError(
        f"the archive {path} is read-only here", fix="copy it to a place you may write, or name another with --archive"
    )


def full(path: Path) -> ArchiveError:
    return ArchiveError(
        f"the disk that holds the archive {path} is full",
        fix="free some space and go on with `evo resume`: all that was filed before is safe",
    )


def _explanation(error: BaseException | None, path: Path) -> ArchiveError:
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return ArchiveError(
            f"the archive {path} is locked by another process",
            fix="wait for the other evo (or database browser) that writes to it, or end it",
        )
    if code == "SQLITE_NOTADB":
        return foreign(path)
    if code == "SQLITE_FULL" or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return full(path)
    if code.startswith("SQLITE_IOERR") and shutil.disk_usage(path.parent).free < _FULL_BYTES:
        return full(path)
    if code.startswith("SQLITE_READONLY"):
        return read_only(path)
    if code.startswith("SQLITE_CORRUPT"):
        return ArchiveError(f"the archive {path} is damaged: {error}", fix="restore a copy of it, or start a new one")
    if code.startswith("SQLITE_CANTOPEN"):
        return ArchiveError(f"cannot open the archive {path}: {error}", fix="see whether you may read and write there")
    if code.startswith("SQLITE_CONSTRAINT"):
        return ArchiveError(
            f"the record does not fit the archive {path}: {error}",
            fix="start the run, then propose the candidate and its parents, then file",
        )
    return ArchiveError(
        f"the archive {path} cannot be used: {error}", fix="see whether the file and its disk are sound"
    )

"""The database's errors as errors a person can act on."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError, ResourceClosedError

from evo.errors import ArchiveError

Place = Path | str  # the archive's file, or a server's URL without its password

_FULL_BYTES = 1 << 20  # SQLite reports some failures on a full disk as plain I/O errors: less free than this is full


@contextmanager
def explained(place: Place) -> Iterator[None]:
    """Turns an error of the database, or of the operating system, at `place` into an `ArchiveError`."""
    try:
        yield
    except DBAPIError as error:
        raise _explanation(error.orig, place) from error
    except ResourceClosedError as error:  # a statement that gives no rows, asked for some
        raise ArchiveError(f"the archive {place} gave no rows: {error}", fix="ask by a SELECT") from error
    except (sqlite3.Error, OSError) as error:
        raise _explanation(error, place) from error


def foreign(place: Place) -> ArchiveError:
    return ArchiveError(
        f"{place} is not an evo archive: it is not an SQLite file, or it is encrypted",
        fix="name another file with --archive, or move this one away",
    )


def read_only(place: Place) -> ArchiveError:
    return ArchiveError(
        f"the archive {place} is read-only here",
        fix="copy it to a place you may write, or name another with --archive",
    )


def full(place: Place) -> ArchiveError:
    return ArchiveError(
        f"the disk that holds the archive {place} is full",
        fix="free some space; all that was filed before is safe",
    )


def locked(place: Place) -> ArchiveError:
    return ArchiveError(
        f"the archive {place} is locked by another process",
        fix="wait for the other evo (or database browser) that writes to it, or end it; what was filed is safe",
    )


def _misfit(error: BaseException | None, place: Place) -> ArchiveError:
    return ArchiveError(
        f"the record does not fit the archive {place}: {error}",
        fix="start the run, then propose the candidate and its parents, then file",
    )


def _explanation(error: BaseException | None, place: Place) -> ArchiveError:
    if isinstance(place, str):
        return _server_explanation(error, place)
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return locked(place)
    if code == "SQLITE_NOTADB":
        return foreign(place)
    if code == "SQLITE_FULL" or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return full(place)
    if code.startswith("SQLITE_IOERR") and shutil.disk_usage(place.parent).free < _FULL_BYTES:
        return full(place)
    if code == "SQLITE_IOERR_WRITE" or getattr(error, "errno", None) == errno.EFBIG:
        return ArchiveError(
            f"the archive {place} could not be written: {error}",
            fix="look at disk, quota and file-size limit (`ulimit -f`); all that was filed before is safe",
        )
    if code.startswith("SQLITE_READONLY"):
        return read_only(place)
    if code.startswith("SQLITE_CORRUPT"):
        return ArchiveError(
            f"the archive {place} is damaged: {error}",
            fix="restore a backup; what SQLite can still read of it: sqlite3 FILE .recover | sqlite3 NEW.db",
        )
    if code.startswith("SQLITE_CANTOPEN"):
        return ArchiveError(f"cannot open the archive {place}: {error}", fix="see whether you may read and write there")
    if code.startswith("SQLITE_CONSTRAINT"):
        return _misfit(error, place)
    return ArchiveError(
        f"the archive {place} cannot be used: {error}", fix="see whether the file and its disk are sound"
    )


def _server_explanation(error: BaseException | None, place: str) -> ArchiveError:
    """By SQLSTATE (PostgreSQL's manual, appendix A); without one, the server was not reached or went away."""
    code = getattr(error, "sqlstate", None) or ""
    reason = str(error).strip()
    if code in ("55P03", "40P01", "40001"):
        return locked(place)
    if code == "53100":
        return full(place)
    if code in ("25006", "42501"):
        return read_only(place)
    if code.startswith(("22", "23")):
        return _misfit(error, place)
    if code == "3D000":
        return ArchiveError(f"there is no database for the archive {place}: {reason}", fix="make it with `createdb`")
    if not code or code.startswith(("08", "28", "57P")):
        return ArchiveError(
            f"cannot reach the archive {place}: {reason}", fix="see whether the server runs and lets you in"
        )
    return ArchiveError(f"the archive {place} cannot be used: {reason}", fix="see the server's log")

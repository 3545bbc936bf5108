"""Care of an archive, for the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evo.archive import Archive, care, merging
from evo.archive.care import Problem, Vacuumed
from evo.archive.merging import Merged
from evo.archive.migrations import schema_of


def archive_check(archive: str) -> list[Problem]:
    """What is wrong with an archive: its file, references, orphans, contents that are not what they say."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return care.check(store)


def archive_upgrade(archive: str) -> int:
    """Brings an archive up to date; the schema that it has then."""
    with Archive.open(archive, create=False) as store, store.reading() as connection:
        return schema_of(connection)


def archive_vacuum(archive: str) -> Vacuumed:
    """Removes what nothing refers to and makes the file as small as its contents."""
    with Archive.open(archive, create=False) as store:
        return care.vacuum(store)


def archive_merge(archive: str, other: str) -> Merged:
    """Takes all of another archive into this one, which is made if it is not there."""
    with merging.opened_for_merging(other) as source, Archive.open(archive) as store:
        return merging.merge(store, source)


def archive_backup(archive: str, to: Path, progress: Callable[[int, int], None] | None = None) -> int:
    """Copies the archive into a new file while it is in use; the copy's size in bytes."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return care.backup(store, to, progress)

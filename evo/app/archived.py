"""Questions to an archive, for the command line."""

from __future__ import annotations

from evo.archive import Archive, RunRecord, queries
from evo.archive.views import LineageNode, Shown, TopRow


def archive_runs(archive: str, limit: int = 20) -> list[RunRecord]:
    """The newest runs."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return store.runs(limit)


def archive_top(
    archive: str, operator: str | None = None, target: str | None = None, case: str | None = None, limit: int = 20
) -> list[TopRow]:
    """The best candidates; rows of different evaluators or yardsticks are never ranked together."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return queries.top(store, operator, target, case, limit)


def archive_show(archive: str, prefix: str) -> Shown:
    """All about one candidate, proposal, evaluation or run."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return queries.show(store, prefix)


def archive_lineage(archive: str, prefix: str) -> list[LineageNode]:
    """A candidate's ancestors, nearest first."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return queries.lineage(store, prefix)

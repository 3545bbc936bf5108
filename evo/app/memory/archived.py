"""Questions to an archive, for the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evo.app.liveness import seen
from evo.archive import Archive, RunRecord, asking, comparing, failing, queries
from evo.archive.asking import Rows
from evo.archive.comparing import Comparison
from evo.archive.failing import FailureGroup
from evo.archive.lineage import DEPTH, MOST, lineage
from evo.archive.views import BoardCount, LineageNode, Shown, TopRow


def archive_runs(archive: str, limit: int = 20) -> list[RunRecord]:
    """The newest runs, each in the state that it is in now."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return [seen(store, record) for record in store.runs(limit)]


def archive_top(
    archive: str,
    operator: str | None = None,
    target: str | None = None,
    case: str | None = None,
    limit: int = 20,
    evaluator: str = "",
) -> list[TopRow]:
    """The best candidates under the newest evaluator, or those whose hash starts with `evaluator`; rows of different
    evaluators, yardsticks or protocols are never ranked together."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return queries.top(store, operator, target, case, limit, evaluator)


def archive_others(
    archive: str, operator: str | None = None, target: str | None = None, evaluator: str = ""
) -> list[BoardCount]:
    """The rankings that `archive_top` leaves out, with how much each holds."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return queries.other_boards(store, operator, target, evaluator)


def archive_show(archive: str, prefix: str) -> Shown:
    """All about one candidate, proposal, evaluation or run."""
    with Archive.open(archive, create=False, readonly=True) as store:
        found = queries.show(store, prefix)
        return replace(found, run=seen(store, found.run)) if found.run else found


def archive_lineage(archive: str, prefix: str, depth: int = DEPTH, most: int = MOST) -> list[LineageNode]:
    """A candidate's ancestors, nearest first: all first parents within `depth`, and the nearest `most` others."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return lineage(store, prefix, depth, most)


def archive_diff(archive: str, one: str, other: str) -> Comparison:
    """The second candidate against the first: source, genes, times."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return comparing.diff(store, one, other)


def archive_failures(
    archive: str,
    operator: str | None = None,
    target: str | None = None,
    status: str | None = None,
    run: str | None = None,
    limit: int = 20,
) -> list[FailureGroup]:
    """What fails, most often first."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return failing.failures(store, operator, target, status, run, limit)


def archive_query(
    archive: str,
    condition: str = "",
    of: str = "evaluation",
    columns: Sequence[str] = (),
    sort: str = "",
    limit: int = 100,
) -> Rows:
    """Rows of a documented view for which a condition holds."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return asking.ask(store, condition, of, columns, sort, limit)


def archive_sql(archive: str, statement: str, limit: int = 100) -> Rows:
    """The rows of a SELECT; nothing else is let through."""
    with Archive.open(archive, create=False, readonly=True) as store:
        return asking.ask_sql(store, statement, limit)

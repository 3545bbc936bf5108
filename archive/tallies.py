"""How much was judged of runs that have no search which counts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

# An evaluation is both its judge's and that of the run it was told to; either half has an index.
_JUDGED = text(
    "SELECT e.status, count(*) FROM evaluation e LEFT JOIN proposal p ON p.id = e.proposal"
    " WHERE e.purpose = 'search' AND coalesce(p.state, '') <> 'duplicate' AND e.id IN ("
    "  SELECT id FROM evaluation WHERE run = :run"
    "  UNION SELECT o.id FROM proposal t JOIN evaluation o ON o.candidate = t.candidate AND o.proposal = t.id"
    "    WHERE t.run = :run"
    ") GROUP BY e.status ORDER BY count(*) DESC, e.status"
)
_DUPLICATES = text(
    "SELECT count(*) FROM proposal WHERE state = 'duplicate'"
    " AND (run = :run OR id IN (SELECT proposal FROM evaluation WHERE run = :run))"
)


@dataclass(frozen=True, slots=True)
class Tally:
    """As a search counts: duplicates are not among the evaluated, rejected ones are."""

    evaluated: int
    duplicates: int
    rejected: Mapping[str, int]  # by status


def tally(connection: Connection, run: str) -> Tally:
    """Of what a run (whole id) judged, or was told and others judged."""
    judged = {str(status): int(count) for status, count in connection.execute(_JUDGED, {"run": run})}
    return Tally(
        evaluated=sum(judged.values()),
        duplicates=connection.execute(_DUPLICATES, {"run": run}).scalar_one(),
        rejected={status: count for status, count in judged.items() if status != "ok"},
    )

"""Niches by behaviour: which one a right candidate belongs to, and who is best in each."""

from __future__ import annotations

from sqlalchemy import Connection, text

_KEEP = text(
    "INSERT INTO niche (evaluation, board, niche, score)"
    " SELECT e.id, e.board, :niche, e.score FROM evaluation e WHERE e.id = :evaluation AND e.score IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM niche n WHERE n.evaluation = e.id)"
)
_NAMES = text(
    "WITH RECURSIVE found(niche) AS ("
    "  SELECT min(niche) FROM niche WHERE board = :board"
    "  UNION ALL SELECT (SELECT min(n.niche) FROM niche n WHERE n.board = :board AND n.niche > found.niche)"
    "  FROM found WHERE found.niche IS NOT NULL"
    ") SELECT niche FROM found WHERE niche IS NOT NULL"
)  # hops along the index
_LEADER = text(
    "SELECT e.id, e.candidate, e.run, e.purpose, e.score, e.covered, e.filed_s FROM niche n"
    " JOIN evaluation e ON e.id = n.evaluation WHERE n.board = :board AND n.niche = :niche"
    " AND NOT EXISTS (SELECT 1 FROM evaluation o WHERE o.candidate = e.candidate"
    "  AND o.status NOT IN ('ok', 'evaluator_error', 'unstable_timing'))"
    " ORDER BY n.score DESC LIMIT 1"
)


def keep(connection: Connection, evaluation: str, niche: str) -> None:
    """Notes the niche of a filed evaluation, if that has a score. Twice changes nothing."""
    connection.execute(_KEEP, {"evaluation": evaluation, "niche": niche})


def leaders(connection: Connection, board: str) -> dict[str, tuple[str, str, str, str, float, int, float]]:
    """By niche the best evaluation: (id, candidate, run, purpose, score, covered, filed_s); the best niche first."""
    found = {}
    for niche in connection.execute(_NAMES, {"board": board}).scalars().all():
        row = connection.execute(_LEADER, {"board": board, "niche": niche}).first()
        if row is not None:
            found[niche] = (row[0], row[1], row[2], row[3], row[4], row[5], row[6])
    return dict(sorted(found.items(), key=lambda item: -item[1][4]))

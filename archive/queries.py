"""Questions to an archive, answered as typed rows: `top`, `show`, `lineage`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, select, text

from evo.archive import evaluations, proposals, runs
from evo.archive.prefixes import Match, find_one
from evo.archive.ranking import Place, boards, ok_cases, places
from evo.archive.rows import real
from evo.archive.store import Archive
from evo.archive.tables import CANDIDATE
from evo.archive.views import LineageNode, Shown, TopRow
from evo.records import Author, Purpose, Status

_RUN_TOP = 10  # best rows that `show RUN` lists

_STATUSES = text("SELECT status, count(*) FROM evaluation WHERE run = :run GROUP BY status ORDER BY count(*) DESC")
_RUN_PLACES = text(
    "SELECT id, candidate, run, purpose, score, covered, filed_s FROM evaluation"
    " WHERE run = :run AND board = :board AND score IS NOT NULL ORDER BY score DESC LIMIT :limit"
)

# A candidate's origin is its first proposal (ids are ordered by time). Parents were there before their child, so this
# graph has no cycle; UNION drops the second way to the same ancestor at the same depth.
_LINEAGE = text(
    "WITH RECURSIVE walk(candidate, origin, depth) AS ("
    "  SELECT :candidate, (SELECT min(id) FROM proposal WHERE candidate = :candidate), 0"
    "  UNION"
    "  SELECT parent.parent, (SELECT min(id) FROM proposal WHERE candidate = parent.parent), walk.depth + 1"
    "  FROM walk JOIN proposal_parent parent ON parent.proposal = walk.origin WHERE walk.depth < :depth"
    "), nearest AS (SELECT candidate, origin, min(depth) AS depth FROM walk GROUP BY candidate)"
    " SELECT n.candidate, n.depth, c.species, p.author, p.model, e.score, coalesce(e.status, '') AS status,"
    "  (SELECT json_group_array(parent) FROM"
    "    (SELECT parent FROM proposal_parent WHERE proposal = n.origin ORDER BY position)) AS parents"
    " FROM nearest n JOIN candidate c ON c.id = n.candidate JOIN proposal p ON p.id = n.origin"
    " LEFT JOIN evaluation e ON e.id ="
    "  (SELECT id FROM evaluation WHERE candidate = n.candidate ORDER BY covered DESC, filed_s DESC, id DESC LIMIT 1)"
    " ORDER BY n.depth, n.candidate"
)


def top(
    archive: Archive,
    operator: str | None = None,
    target: str | None = None,
    case: str | None = None,
    limit: int = 20,
) -> list[TopRow]:
    """The best candidates, one row each per board, by score or (with `case`) by ratio in that case.

    Ratios under different evaluators or against different yardsticks are not comparable: all rows of the newest such
    board come first, then those of the next, and every row says which it is of.
    """
    with archive.reading() as connection:
        found: list[Place] = []
        for board in boards(connection, operator=operator, target=target):
            if len(found) >= limit:
                break
            found += places(connection, board, case=case, limit=limit - len(found))
        return _top_rows(connection, found, case)


def show(archive: Archive, prefix: str) -> Shown:
    """All about the candidate, proposal, evaluation or run whose id starts with `prefix`.

    Raises `UnknownNameError` when nothing does, `UsageError` with the list when several do.
    """
    with archive.reading() as connection:
        match = find_one(connection, prefix)
        return _show_run(connection, match) if match.kind == "run" else _show_one(connection, match)


def lineage(archive: Archive, prefix: str, depth: int = 50) -> list[LineageNode]:
    """A candidate and its ancestors up to `depth` generations back, nearest first; each ancestor once.

    `prefix` may also name a proposal or an evaluation of the candidate. Raises as `show`.
    """
    with archive.reading() as connection:
        match = find_one(connection, prefix, kinds=("candidate", "evaluation", "proposal"))
        found = connection.execute(_LINEAGE, {"candidate": _candidate_of(connection, match), "depth": depth})
        return [
            LineageNode(
                candidate=row["candidate"], parents=tuple(json.loads(row["parents"])), species=row["species"],
                score=row["score"], status=Status(row["status"]) if row["status"] else "", depth=row["depth"],
                author=Author(row["author"], row["model"]),
            )
            for row in found.mappings()
        ]  # fmt: skip


def _candidate_of(connection: Connection, match: Match) -> str:
    if match.kind == "candidate":
        return match.id
    return str(
        connection.execute(text(f"SELECT candidate FROM {match.kind} WHERE id = :id"), {"id": match.id}).scalar_one()
    )


def _show_one(connection: Connection, match: Match) -> Shown:
    candidate = _candidate_of(connection, match)
    filed = evaluations.load_evaluations(connection, "id" if match.kind == "evaluation" else match.kind, match.id)
    if match.kind == "proposal":
        proposed = proposals.load_proposals(connection, "id", match.id)
    else:
        proposed = proposals.load_proposals(connection, "candidate", candidate)
    return Shown(
        match.kind,
        match.id,
        candidate=proposals.load_candidates(connection, [candidate])[candidate],
        proposals=tuple(proposed),
        evaluations=tuple(filed),
    )


def _show_run(connection: Connection, match: Match) -> Shown:
    record = runs.by_prefix(connection, match.id)
    best: list[Place] = []
    for board in boards(connection, operator=record.operator, target=record.target):
        row = {"run": record.id, "board": board.id, "limit": _RUN_TOP - len(best)}
        best += [Place(board, *place) for place in connection.execute(_RUN_PLACES, row)]
    return Shown(
        "run",
        match.id,
        run=record,
        statuses={status: count for status, count in connection.execute(_STATUSES, {"run": record.id})},
        top=tuple(_top_rows(connection, best, None)),
    )


def _top_rows(connection: Connection, found: Sequence[Place], case: str | None) -> list[TopRow]:
    cases = ok_cases(connection, [place.id for place in found])
    ids = {place.candidate for place in found}
    query = select(CANDIDATE.c.id, CANDIDATE.c.species, CANDIDATE.c.values_json).where(CANDIDATE.c.id.in_(ids))
    genes = {row["id"]: row for row in connection.execute(query).mappings()}
    return [_top_row(place, genes[place.candidate], _case_row(cases[place.id], case)) for place in found]


def _case_row(rows: Sequence[RowMapping], case: str | None) -> RowMapping:
    """The row of the case asked for, else of the best."""
    asked = [row for row in rows if case in (None, row["case_name"])]
    return max(asked, key=lambda row: float(row["ratio"]))


def _top_row(place: Place, genes: RowMapping, best: RowMapping) -> TopRow:
    board = place.board
    return TopRow(
        candidate=place.candidate, species=genes["species"], operator=board.operator, target=board.target,
        values=json.loads(genes["values_json"]), score=place.score, covered=place.covered, case=best["case_name"],
        ratio=best["ratio"], low=real(best["low"]), high=real(best["high"]), time_us=real(best["time_us"]),
        protocol=best["protocol"], yardstick=board.yardstick, purpose=Purpose(place.purpose),
        evaluator=board.evaluator, run=place.run, evaluation=place.id, evaluated_s=place.filed_s,
    )  # fmt: skip

"""Questions to an archive, answered as typed rows: `top` and `show`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, select, text

from evo.archive import evaluations, proposals, runs
from evo.archive.lineage import candidate_of
from evo.archive.prefixes import Match, find_one
from evo.archive.ranking import Board, Place, boards, case_names, newest, ok_cases, places, timed
from evo.archive.rows import real, word
from evo.archive.store import Archive
from evo.archive.tables import CANDIDATE
from evo.archive.views import BoardCount, PromptUse, Shown, TopRow
from evo.errors import UnknownNameError
from evo.records import Purpose

_RUN_TOP = 10  # best rows that `show RUN` lists

_STATUSES = text("SELECT status, count(*) FROM evaluation WHERE run = :run GROUP BY status ORDER BY count(*) DESC")
_RUN_PLACES = text(
    "SELECT id, candidate, run, purpose, score, covered, filed_s FROM evaluation"
    " WHERE run = :run AND board = :board AND score IS NOT NULL ORDER BY score DESC LIMIT :limit"
)


_PROMPTS = text(
    "SELECT x.id, x.run, x.job, x.step, x.role, x.model, x.prompt, x.tokens_in, x.tokens_out, x.usd FROM agent_job a"
    " JOIN exchange x ON x.run = a.run AND x.job = a.job WHERE a.candidate = :candidate ORDER BY x.run, x.job, x.step"
)


def top(
    archive: Archive,
    operator: str | None = None,
    target: str | None = None,
    case: str | None = None,
    limit: int = 20,
    evaluator: str = "",
) -> list[TopRow]:
    """The best candidates, one row each per board, by score or (with `case`) by ratio in that case.

    Ratios of different evaluators, yardsticks or protocols are not comparable. For every operator and target the boards
    of the newest evaluator are shown, one after another, or those of the evaluators whose hash starts with `evaluator`;
    `other_boards` says what was left out. Raises `UnknownNameError` for a case that none of them has.
    """
    with archive.reading() as connection:
        found: list[Place] = []
        shown = newest(connection, boards(connection, operator=operator, target=target), evaluator)[0]
        if case is not None and shown:
            _check_case(connection, shown, case)
        for board in shown:
            if len(found) >= limit:
                break
            found += places(connection, board, case=case, limit=limit - len(found))
        return _top_rows(connection, found, case)


def _check_case(connection: Connection, shown: Sequence[Board], case: str) -> None:
    known = {name for board in shown for name in case_names(connection, board)}
    if case not in known:
        raise UnknownNameError("case", case, known)


def other_boards(
    archive: Archive, operator: str | None = None, target: str | None = None, evaluator: str = ""
) -> list[BoardCount]:
    """The boards that `top` with these arguments leaves out, newest first."""
    with archive.reading() as connection:
        left = newest(connection, boards(connection, operator=operator, target=target), evaluator)[1]
        return [
            BoardCount(b.operator, b.target, b.evaluator, b.yardstick, b.protocol, timed(connection, b)) for b in left
        ]


def show(archive: Archive, prefix: str) -> Shown:
    """All about the candidate, proposal, evaluation or run whose id starts with `prefix`.

    Raises `UnknownNameError` when nothing does, `UsageError` with the list when several do.
    """
    with archive.reading() as connection:
        match = find_one(connection, prefix)
        return _show_run(connection, match) if match.kind == "run" else _show_one(connection, match)


def _show_one(connection: Connection, match: Match) -> Shown:
    candidate = candidate_of(connection, match)
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
        prompts=tuple(PromptUse(*row) for row in connection.execute(_PROMPTS, {"candidate": candidate})),
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
        protocol=best["protocol"], yardstick=board.yardstick, purpose=word(Purpose, place.purpose),
        evaluator=board.evaluator, run=place.run, evaluation=place.id, evaluated_s=place.filed_s,
    )  # fmt: skip

"""Who is best, on boards whose ratios may be compared.

A board is one operator, target, evaluator, yardstick and protocol; boards come newest first and are never mixed. A
candidate has one place on a board: by its evaluation with the most ok cases, then the strongest purpose (a certificate,
a final sample, a search), then the newest. A later evaluation by the same evaluator that found it wrong, on whatever
board, takes its places away; evo's own faults and unsteady clocks do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, select, text

from evo.archive.niches import leaders
from evo.archive.proposals import load_candidates
from evo.archive.tables import BOARD, CASE_RESULT
from evo.archive.views import Elite
from evo.records import Status

_BOARD_CASES = text(
    "WITH RECURSIVE found(case_name) AS ("
    "  SELECT min(case_name) FROM case_result WHERE board = :board AND ratio IS NOT NULL"
    "  UNION ALL SELECT (SELECT min(r.case_name) FROM case_result r"
    "    WHERE r.board = :board AND r.ratio IS NOT NULL AND r.case_name > found.case_name)"
    "  FROM found WHERE found.case_name IS NOT NULL"
    ") SELECT case_name FROM found WHERE case_name IS NOT NULL"
)  # hops from one name to the next along the index, instead of reading all of it


def _weight(alias: str) -> str:
    return f"CASE {alias}.purpose WHEN 'certify' THEN 2 WHEN 'final' THEN 1 ELSE 0 END"


def _unbeaten(better: str) -> str:
    """No other evaluation `o` of the candidate replaces `e`; `better`: when an ok one on the same board does. A wrong
    one may be on another board, since it has no protocol, or fewer yardsticks."""
    return (
        "NOT EXISTS (SELECT 1 FROM evaluation o"
        " WHERE o.candidate = e.candidate AND o.id <> e.id AND CASE"
        f" WHEN o.status = 'ok' THEN o.board = e.board AND {better}"
        " WHEN o.status IN ('evaluator_error', 'unstable_timing') THEN FALSE"
        " ELSE o.filed_s >= e.filed_s"
        " AND EXISTS (SELECT 1 FROM board b WHERE b.id = o.board AND b.evaluator = :evaluator) END)"
    )


_COLUMNS = "e.id, e.candidate, e.run, e.purpose, e.score, e.covered, e.filed_s"
_WIDEST = f"(o.covered, {_weight('o')}, o.filed_s, o.id) > (e.covered, {_weight('e')}, e.filed_s, e.id)"
_STRONGEST = (
    f"(({_weight('o')}, o.filed_s, o.id) > ({_weight('e')}, e.filed_s, e.id) AND EXISTS (SELECT 1 FROM case_result s"
    " WHERE s.evaluation = o.id AND s.case_name = r.case_name AND s.status = 'ok' AND s.ratio IS NOT NULL))"
)
_BY_SCORE = text(
    f"SELECT {_COLUMNS} FROM evaluation e WHERE e.board = :board AND e.score IS NOT NULL AND {_unbeaten(_WIDEST)}"
    " ORDER BY e.score DESC LIMIT :limit"
)
# CROSS JOIN keeps SQLite from starting at the evaluations: the index of ratios already has the order asked for.
_BY_CASE = text(
    f"SELECT {_COLUMNS} FROM case_result r CROSS JOIN evaluation e"
    " WHERE e.id = r.evaluation AND r.board = :board AND r.case_name = :case AND r.ratio IS NOT NULL"
    f" AND r.status = 'ok' AND e.score IS NOT NULL AND {_unbeaten(_STRONGEST)} ORDER BY r.ratio DESC LIMIT :limit"
)

_RANKS = text("SELECT 1 FROM evaluation WHERE board = :board AND score IS NOT NULL LIMIT 1")
_TIMED = text("SELECT count(*) FROM evaluation WHERE board = :board AND score IS NOT NULL")


@dataclass(frozen=True, slots=True)
class Board:
    id: str
    operator: str
    target: str
    evaluator: str
    yardstick: str
    protocol: str


@dataclass(frozen=True, slots=True)
class Place:
    """A candidate's place on a board, by evaluation `id`."""

    board: Board
    id: str
    candidate: str
    run: str
    purpose: str
    score: float
    covered: int
    filed_s: float


def boards(
    connection: Connection, *, operator: str | None = None, target: str | None = None, evaluator: str | None = None
) -> list[Board]:
    """Newest first; each name that is given narrows."""
    query = select(BOARD).order_by(BOARD.c.newest_s.desc(), BOARD.c.id)
    for column, wanted in ((BOARD.c.operator, operator), (BOARD.c.target, target), (BOARD.c.evaluator, evaluator)):
        query = query if wanted is None else query.where(column == wanted)
    found = connection.execute(query).mappings()
    names = ("id", "operator", "target", "evaluator", "yardstick", "protocol")
    return [Board(*(row[name] for name in names)) for row in found]


def timed(connection: Connection, board: Board) -> int:
    """How many evaluations the board ranks."""
    return int(connection.execute(_TIMED, {"board": board.id}).scalar_one())


def newest(connection: Connection, found: Sequence[Board], evaluator: str) -> tuple[list[Board], list[Board]]:
    """The boards to show and the others that rank anything, both newest first.

    Shown are, for every operator and target, those of the evaluator with the newest board; or, where `evaluator` is not
    empty, those of the evaluators that start with it.
    """
    ranked = [board for board in found if connection.execute(_RANKS, {"board": board.id}).first()]
    latest: dict[tuple[str, str], str] = {}
    for board in ranked:
        latest.setdefault((board.operator, board.target), board.evaluator)

    def shows(board: Board) -> bool:
        if evaluator:
            return board.evaluator.startswith(evaluator)
        return board.evaluator == latest[board.operator, board.target]

    return [board for board in ranked if shows(board)], [board for board in ranked if not shows(board)]


def places(connection: Connection, board: Board, *, case: str | None, limit: int) -> list[Place]:
    """The best of one board, by score, or by ratio in one case."""
    names = {"board": board.id, "evaluator": board.evaluator, "limit": limit}
    if case is None:
        found = connection.execute(_BY_SCORE, names)
    else:
        found = connection.execute(_BY_CASE, names | {"case": case})
    return [Place(board, *row) for row in found]


def case_names(connection: Connection, board: Board) -> list[str]:
    """The cases that anything on the board was timed in."""
    return list(connection.execute(_BOARD_CASES, {"board": board.id}).scalars())


def ok_cases(connection: Connection, evaluations: Sequence[str]) -> dict[str, list[RowMapping]]:
    """By evaluation, its timed ok cases as rows of case_result, in their own order."""
    case = CASE_RESULT.c
    query = (
        select(case.evaluation, case.case_name, case.ratio, case.low, case.high, case.time_us, case.protocol)
        .where(case.evaluation.in_(evaluations), case.status == str(Status.OK), case.ratio.is_not(None))
        .order_by(case.evaluation, case.position)
    )
    found: dict[str, list[RowMapping]] = defaultdict(list)
    for row in connection.execute(query).mappings():
        found[row["evaluation"]].append(row)
    return found


def elites(connection: Connection, operator: str, target: str, *, evaluator: str | None, limit: int) -> list[Elite]:
    """The best by score, in each case and of each niche, in turns, until there are `limit`; newer boards first."""
    chosen: dict[str, Place] = {}
    for board in boards(connection, operator=operator, target=target, evaluator=evaluator):
        names = case_names(connection, board)
        lists = [places(connection, board, case=name, limit=limit) for name in (None, *names)]
        lists.append([Place(board, *row) for row in leaders(connection, board.id).values()])
        for place in _in_turns(lists):
            if len(chosen) == limit:
                break
            chosen.setdefault(place.candidate, place)
    cases = ok_cases(connection, [place.id for place in chosen.values()])
    candidates = load_candidates(connection, list(chosen))
    return [
        Elite(
            candidates[place.candidate],
            {row["case_name"]: row["ratio"] for row in cases[place.id]},
            place.score,
            Status.OK,
        )
        for place in chosen.values()
    ]


def _in_turns(lists: Iterable[Sequence[Place]]) -> Iterator[Place]:
    """The first of each list, then the second of each, and so on."""
    rest = [list(reversed(places)) for places in lists]
    while any(rest):
        for waiting in rest:
            if waiting:
                yield waiting.pop()

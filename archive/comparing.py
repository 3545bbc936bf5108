"""Two candidates side by side: source, genes and times."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, text

from evo.archive.evaluations import load_evaluations
from evo.archive.lineage import candidate_of, gain
from evo.archive.prefixes import find_one
from evo.archive.proposals import load_candidates
from evo.archive.store import Archive
from evo.errors import UsageError
from evo.records import STRENGTH, Candidate, CaseResult, Evaluation, Purpose, Status, Timing, Value

_BOARDS = text("SELECT id, board FROM evaluation WHERE candidate = :candidate")


@dataclass(frozen=True, slots=True)
class CasePair:
    """One case of both. Times are None where it was not timed; `gain` is how much faster the second one is, by their
    ratios to the common yardstick, None where the two cannot be compared; `low` and `high` hold wherever both ratios'
    own intervals do."""

    case: str
    status: Status | None
    other_status: Status | None
    time_us: float | None
    other_time_us: float | None
    ratio: float | None
    other_ratio: float | None
    gain: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`genes`: those that differ, with both values (None: it has no such gene). `source`: a unified diff, "" where the
    sources are equal. `comparable`: both were timed on one board, so that ratios compare."""

    one: Candidate
    other: Candidate
    source: str
    genes: Mapping[str, tuple[Value | None, Value | None]]
    cases: tuple[CasePair, ...]
    comparable: bool
    gain: float | None
    evaluation: str
    other_evaluation: str
    purpose: Purpose | Literal[""] = ""
    other_purpose: Purpose | Literal[""] = ""


def diff(archive: Archive, one: str, other: str) -> Comparison:
    """The second candidate against the first; ids or their beginnings, also of proposals and evaluations.

    Raises `UnknownNameError` and `UsageError` as `show`, and `UsageError` for two of different operators.
    """
    with archive.reading() as connection:
        a, b = _candidate(connection, one), _candidate(connection, other)
        if a.operator != b.operator:
            raise UsageError(
                f"{one} is of operator {a.operator}, {other} of {b.operator}", fix="compare two of one operator"
            )
        first, second, comparable = _pair(_filed(connection, a.id), _filed(connection, b.id))
    pairs = tuple(_pairs(first, second, comparable))
    ratios = [
        {pair.case: value for pair in pairs if (value := getattr(pair, name)) is not None and pair.gain is not None}
        for name in ("other_ratio", "ratio")
    ]
    return Comparison(
        a, b, _source(a, b), _genes(a, b), pairs, comparable, gain(*ratios), first.id if first else "",
        second.id if second else "", first.purpose if first else "", second.purpose if second else "",
    )  # fmt: skip


def _candidate(connection: Connection, prefix: str) -> Candidate:
    match = find_one(connection, prefix, kinds=("candidate", "evaluation", "proposal"))
    found = candidate_of(connection, match)
    return load_candidates(connection, [found])[found]


def _filed(connection: Connection, candidate: str) -> list[tuple[str, Evaluation]]:
    """Evaluations with their boards, those that say most first: most ok cases, then strongest purpose, then newest."""
    boards = {row.id: row.board for row in connection.execute(_BOARDS, {"candidate": candidate})}
    filed = load_evaluations(connection, "candidate", candidate)
    order = sorted(filed, key=lambda each: (_timed(each), STRENGTH[each.purpose], each.id), reverse=True)
    return [(boards[each.id], each) for each in order]


def _timed(evaluation: Evaluation) -> int:
    return sum(case.status is Status.OK and case.timing is not None for case in evaluation.cases)


def _pair(
    first: Sequence[tuple[str, Evaluation]], second: Sequence[tuple[str, Evaluation]]
) -> tuple[Evaluation | None, Evaluation | None, bool]:
    """The best pair on one board, else the best of each; whether they compare."""
    for board, evaluation in first:
        for where, other in second:
            if board == where and _timed(evaluation) and _timed(other):
                return evaluation, other, True
    return first[0][1] if first else None, second[0][1] if second else None, False


def _pairs(first: Evaluation | None, second: Evaluation | None, comparable: bool) -> list[CasePair]:
    left = {case.case: case for case in first.cases} if first else {}
    right = {case.case: case for case in second.cases} if second else {}
    return [_case(name, left.get(name), right.get(name), comparable) for name in {**left, **right}]


def _case(name: str, left: CaseResult | None, right: CaseResult | None, comparable: bool) -> CasePair:
    a, b = _timing(left), _timing(right)
    gain = low = high = None
    if comparable and a and b and a.low > 0:
        gain, low, high = b.ratio / a.ratio, b.low / a.high, b.high / a.low
    return CasePair(
        case=name, status=left.status if left else None, other_status=right.status if right else None,
        time_us=a.time_us if a else None, other_time_us=b.time_us if b else None, ratio=a.ratio if a else None,
        other_ratio=b.ratio if b else None, gain=gain, low=low, high=high,
    )  # fmt: skip


def _timing(case: CaseResult | None) -> Timing | None:
    return case.timing if case is not None and case.status is Status.OK else None


def _source(one: Candidate, other: Candidate) -> str:
    names = (f"{one.id[:10]}{one.suffix}", f"{other.id[:10]}{other.suffix}")
    return "\n".join(difflib.unified_diff(one.source.splitlines(), other.source.splitlines(), *names, lineterm=""))


def _genes(one: Candidate, other: Candidate) -> dict[str, tuple[Value | None, Value | None]]:
    return {
        name: (one.values.get(name), other.values.get(name))
        for name in {**one.values, **other.values}
        if one.values.get(name) != other.values.get(name)
    }

"""What fails again and again in one way, and which gene values those candidates have in common.

Diagnoses that differ only by numbers and addresses are one failure. Where all candidates with one gene value, or a pair
of them, failed so and none was right, and that is more than chance would do, the values are named.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from sqlalchemy import Connection, text

from evo.archive.families import describe
from evo.lesson import CaseFacts
from evo.records import Value, Values

LEAST = 3  # candidates that must have failed in one way
MOST = 50_000  # failed and right evaluations that are looked at, the newest
CAUSES = 4  # combinations of values that are named of one failure
CHANCE = 0.05  # how likely it may be, over all combinations looked at, that a combination failed by chance
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b\d[\d.,]*\b|\b[0-9a-f]{12,}\b")
_LONGEST = 160
_ROWS = (
    "SELECT e.id, e.candidate, e.status, e.diagnosis_json, c.species, c.values_json FROM evaluation e"
    " JOIN board b ON b.id = e.board JOIN candidate c ON c.id = e.candidate"
    " WHERE b.operator = :operator AND b.target = :target AND e.duplicate_of = '' AND {which}"
    " ORDER BY e.id DESC LIMIT :limit"
)
_FAILED = text(_ROWS.format(which="e.status NOT IN ('ok', 'evaluator_error', 'unstable_timing')"))
_RIGHT = text(_ROWS.format(which="e.status = 'ok'"))

Item = tuple[str, Value]


@dataclass
class Failure:
    """Candidates of one species that ended in one status with one normalised diagnosis."""

    species: str
    status: str
    stage: str
    message: str  # normalised
    example: str  # one real message
    candidates: dict[str, frozenset[Item]] = field(default_factory=dict)
    evaluations: dict[str, str] = field(default_factory=dict)  # by candidate
    cases: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Pitfall:
    """`genes` is empty where the candidates have nothing in common that explains it. `failed`: evaluations by
    candidate; `right`: of candidates with these values that were right after all."""

    species: str
    status: str
    stage: str
    message: str
    example: str
    genes: Values
    where: str
    failed: Mapping[str, str]
    right: Mapping[str, str] = field(default_factory=dict)


def normalised(message: str) -> str:
    """The first line of a diagnosis without what differs from candidate to candidate."""
    first = message.strip().splitlines()[0] if message.strip() else ""
    return _NUMBER.sub("#", first)[:_LONGEST]


def pitfalls(connection: Connection, operator: str, target: str, cases: Mapping[str, CaseFacts]) -> list[Pitfall]:
    """The most frequent first. Failures in cases that `cases` does not have (hold-outs) are left out."""
    names = {"operator": operator, "target": target, "limit": MOST}
    right: dict[str, dict[str, frozenset[Item]]] = {}
    for _, candidate, _, _, species, values in connection.execute(_RIGHT, names):
        right.setdefault(species, {})[candidate] = _items(values)
    failures: dict[tuple[str, ...], Failure] = {}
    for row in connection.execute(_FAILED, names):
        _collect(failures, row, cases)
    found = chain.from_iterable(
        _causes(failure, right.get(failure.species, {}), cases)
        for failure in failures.values()
        if len(failure.candidates) >= LEAST
    )
    return sorted(found, key=lambda pitfall: -len(pitfall.failed))


def right_with(connection: Connection, operator: str, target: str, species: str, genes: Values) -> dict[str, str]:
    """Evaluations by candidate of the right candidates that have these values."""
    wanted = frozenset(genes.items())
    rows = connection.execute(_RIGHT, {"operator": operator, "target": target, "limit": MOST})
    return {
        candidate: evaluation
        for evaluation, candidate, _, _, kin, values in rows
        if kin == species and wanted <= _items(values)
    }


def _items(values_json: str) -> frozenset[Item]:
    return frozenset(json.loads(values_json).items())


def _collect(failures: dict[tuple[str, ...], Failure], row: Any, cases: Mapping[str, CaseFacts]) -> None:
    evaluation, candidate, status, diagnosis_json, species, values = row
    diagnosis = json.loads(diagnosis_json) if diagnosis_json else {"stage": "", "message": status, "case": ""}
    case = diagnosis["case"].partition("~")[0]  # neighbours and drawn cases are named after theirs
    if case and case not in cases:
        return
    message = normalised(diagnosis["message"])
    key = (species, status, message)
    failure = failures.setdefault(
        key, Failure(species, status, diagnosis["stage"], message, diagnosis["message"].strip()[:_LONGEST])
    )
    failure.candidates[candidate] = _items(values)
    failure.evaluations[candidate] = evaluation
    failure.cases.update([case] if case else [])


def _causes(failure: Failure, right: Mapping[str, frozenset[Item]], cases: Mapping[str, CaseFacts]) -> list[Pitfall]:
    left: dict[str, frozenset[Item]] = dict(failure.candidates)
    found: list[Pitfall] = []
    sound = [values for name, values in right.items() if name not in failure.candidates]
    while len(left) >= LEAST and len(found) < CAUSES:
        genes = _common(list(left.values()), sound)
        covered = [name for name, values in left.items() if frozenset(genes) <= values]
        found.append(_pitfall(failure, dict(sorted(genes)), covered, cases))
        if not genes:
            break
        left = {name: values for name, values in left.items() if name not in covered}
    return found


def _pitfall(failure: Failure, genes: Values, covered: list[str], cases: Mapping[str, CaseFacts]) -> Pitfall:
    where = describe([cases[name] for name in failure.cases])
    failed = {name: failure.evaluations[name] for name in covered}
    return Pitfall(
        failure.species, failure.status, failure.stage, failure.message, failure.example, genes, where, failed
    )


def _common(failed: list[frozenset[Item]], right: list[frozenset[Item]]) -> tuple[Item, ...]:
    """One value, or else two, that many of `failed` have and none of `right`; () where chance explains as much."""
    counts: dict[Item, int] = {}
    for item in chain.from_iterable(failed):
        counts[item] = counts.get(item, 0) + 1
    items = sorted((item for item, count in counts.items() if count >= LEAST), key=str)
    if not items or not right:
        return ()
    bad, good = _matrix(failed, items), _matrix(right, items)
    both, sound = bad.T @ bad, good.T @ good
    rate = math.log((len(failed) + 0.5) / (len(failed) + len(right) + 1))
    for alone in (True, False):
        fits = (sound == 0) & (np.eye(len(items), dtype=bool) == alone)
        if not fits.any():
            continue
        tried = len(items) if alone else len(items) * (len(items) - 1) / 2
        best = np.unravel_index(int(np.argmax(np.where(fits, both, 0))), both.shape)
        if both[best] >= LEAST and both[best] * rate + math.log(max(tried, 1)) <= math.log(CHANCE):
            return tuple(items[int(index)] for index in dict.fromkeys(best))
    return ()


def _matrix(rows: list[frozenset[Item]], items: list[Item]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([[item in row for item in items] for row in rows], np.float32).reshape(len(rows), len(items))

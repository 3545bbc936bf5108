"""Where a candidate comes from, with what every step gained.

A candidate's origin is its first proposal (ids are ordered by time). Parents were there before their child, so this
graph has no cycle.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, bindparam, text

from evo.archive.prefixes import Match, find_one
from evo.archive.rows import word
from evo.archive.store import Archive
from evo.archive.views import LineageNode
from evo.records import STRENGTH, Author, Purpose, Status, Value

DEPTH = 50  # generations back
MOST = 300  # ancestors beside the line of first parents
_CHUNK = 500

# A walk carries each candidate's first proposal, so that its row is at hand without another search. UNION visits an
# ancestor once, however many ways lead to it, since a row holds nothing of the way; rows come nearest first, and the
# walk ends at the limit.
_FIRST = "(SELECT min(id) FROM proposal WHERE candidate = {})"
_PERSON = (
    "SELECT c.id, c.species, c.source, c.values_json, p.id, p.author, p.model FROM {}"
    " JOIN candidate c ON c.id = {}.candidate LEFT JOIN proposal p ON p.id = {}.proposal"
)
_ANCESTORS = text(
    "WITH RECURSIVE walk(candidate, proposal) AS ("
    f"  SELECT id, {_FIRST.format(':candidate')} FROM candidate WHERE id = :candidate"
    "  UNION"
    f"  SELECT parent.parent, {_FIRST.format('parent.parent')} FROM walk"
    "  JOIN proposal_parent parent ON parent.proposal = walk.proposal"
    f"), near AS (SELECT candidate, proposal FROM walk LIMIT :most) {_PERSON.format(*['near'] * 3)}"
)
_LINE = text(
    "WITH RECURSIVE line(candidate, proposal, depth) AS ("
    f"  SELECT id, {_FIRST.format(':candidate')}, 0 FROM candidate WHERE id = :candidate"
    "  UNION ALL"
    f"  SELECT parent.parent, {_FIRST.format('parent.parent')}, line.depth + 1 FROM line"
    "  JOIN proposal_parent parent ON parent.proposal = line.proposal"
    "  WHERE parent.position = 0 AND line.depth < :depth"
    f") {_PERSON.format(*['line'] * 3)}"
)
# Which evaluation counts is chosen here: a sort for every row costs the database more than the rows.
_EVALUATIONS = text(
    "SELECT candidate, id, board, score, status, covered, purpose, filed_s FROM evaluation WHERE candidate IN :ids"
).bindparams(bindparam("ids", expanding=True))
_PARENTS = text(
    "SELECT proposal, parent FROM proposal_parent WHERE proposal IN :ids ORDER BY proposal, position"
).bindparams(bindparam("ids", expanding=True))
_RATIOS = text(
    "SELECT evaluation, case_name, ratio FROM case_result"
    " WHERE evaluation IN :ids AND status = 'ok' AND ratio IS NOT NULL"
).bindparams(bindparam("ids", expanding=True))


def lineage(archive: Archive, prefix: str, depth: int = DEPTH, most: int = MOST) -> list[LineageNode]:
    """A candidate and its ancestors, nearest first, each once: all first parents up to `depth` generations back, and
    the nearest `most` of the others within that depth.

    `prefix` may also name a proposal or an evaluation of the candidate. Raises `UnknownNameError` when nothing is so
    named, `UsageError` with the list when several things are.
    """
    with archive.reading() as connection:
        match = find_one(connection, prefix, kinds=("candidate", "evaluation", "proposal"))
        root = candidate_of(connection, match)
        people = _people(connection, root, depth, most)
        scored = [person.evaluation.id for person in people.values() if person.score is not None]
        ratios: dict[str, dict[str, float]] = defaultdict(dict)
        for evaluation, case, ratio in _in_chunks(connection, _RATIOS, scored):
            ratios[evaluation][case] = ratio
    depths = _depths(root, {name: person.parents for name, person in people.items()}, depth)
    return [_node(people, ratios, name, at) for name, at in depths.items()]


@dataclass(slots=True)
class _Person:
    """A candidate with its first proposal, where there is one, and the evaluation that covers most."""

    species: str
    source: str
    values_json: str
    author: Author
    parents: list[str] = field(default_factory=list)
    evaluation: Any = None
    score: float | None = None


def _people(connection: Connection, root: str, depth: int, most: int) -> dict[str, _Person]:
    people: dict[str, _Person] = {}
    by_proposal: dict[str, _Person] = {}
    rows = connection.execute(_LINE, {"candidate": root, "depth": depth}).all()
    for name, species, source, values_json, proposal, author, model in (
        *rows, *connection.execute(_ANCESTORS, {"candidate": root, "most": most})
    ):  # fmt: skip
        if name not in people:
            people[name] = _Person(species, source, values_json, Author(author or "", model or ""))
            by_proposal[proposal] = people[name]
    for row in _in_chunks(connection, _EVALUATIONS, list(people)):
        person = people[row[0]]
        if person.evaluation is None or _says(row) > _says(person.evaluation):
            person.evaluation, person.score = row, row.score
    for proposal, parent in _in_chunks(connection, _PARENTS, [name for name in by_proposal if name]):
        by_proposal[proposal].parents.append(parent)
    return people


def _says(evaluation: Any) -> tuple[int, int, float, str]:
    return evaluation.covered, STRENGTH.get(evaluation.purpose, 0), evaluation.filed_s, evaluation.id


def candidate_of(connection: Connection, match: Match) -> str:
    """The candidate that a candidate, proposal or evaluation is of."""
    if match.kind == "candidate":
        return match.id
    return str(
        connection.execute(text(f"SELECT candidate FROM {match.kind} WHERE id = :id"), {"id": match.id}).scalar_one()
    )


def gain(child: Mapping[str, float], parent: Mapping[str, float]) -> float | None:
    """How much faster the child is: the geometric mean over the cases that both have a ratio in, on one board."""
    logs = [
        math.log(child[case] / parent[case])
        for case in child.keys() & parent.keys()
        if 0 < child[case] < math.inf and 0 < parent[case] < math.inf
    ]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def _in_chunks(connection: Connection, query: Any, ids: Sequence[str]) -> Iterator[Any]:
    for at in range(0, len(ids), _CHUNK):
        yield from connection.execute(query, {"ids": ids[at : at + _CHUNK]}).all()


def _depths(root: str, parents: Mapping[str, Sequence[str]], deepest: int) -> dict[str, int]:
    """By candidate, how many generations back it is the first time, in that order."""
    found, level, depth = {root: 0}, [root], 0
    while level and depth < deepest:
        depth += 1
        reached = dict.fromkeys(parent for name in level for parent in parents[name])
        level = [name for name in reached if name in parents and name not in found]
        found.update(dict.fromkeys(level, depth))
    return found


def _node(
    people: Mapping[str, _Person], ratios: Mapping[str, Mapping[str, float]], name: str, depth: int
) -> LineageNode:
    one = people[name]
    known = [people[parent] for parent in one.parents if parent in people]
    gains: list[float | None] = []
    if one.score is not None:
        gains = [
            gain(ratios[one.evaluation.id], ratios[parent.evaluation.id])
            for parent in known
            if parent.score is not None and parent.evaluation.board == one.evaluation.board
        ]
    return LineageNode(
        candidate=name, parents=tuple(one.parents), species=one.species, score=one.score,
        status=word(Status, one.evaluation.status) if one.evaluation else "", depth=depth, author=one.author,
        gain=min((each for each in gains if each is not None), default=None),
        changes=tuple(_changes(one, known[0])) if known else (),
        purpose=word(Purpose, one.evaluation.purpose) if one.evaluation else "",
    )  # fmt: skip


def _changes(one: _Person, parent: _Person) -> Iterable[str]:
    """What a candidate has other than its first parent: `THREADS 256 -> 512`, "source"."""
    if one.source != parent.source:
        yield "source"
    if one.values_json != parent.values_json:
        mine, other = _values(one.values_json), _values(parent.values_json)
        for gene in {**other, **mine}:
            if mine.get(gene) != other.get(gene):
                yield f"{gene} {other.get(gene, '-')} -> {mine.get(gene, '-')}"


@lru_cache(maxsize=4096)
def _values(values_json: str) -> dict[str, Value]:
    """Every candidate's genes are looked at as its own and as its child's parent's."""
    found: dict[str, Value] = json.loads(values_json)
    return found

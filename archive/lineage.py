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
from evo.archive.store import Archive
from evo.archive.views import LineageNode
from evo.records import Author, Status, Value

DEPTH = 50  # generations back
MOST = 300  # ancestors beside the line of first parents
_CHUNK = 500

# UNION visits an ancestor once, however many ways lead to it, since a row holds nothing of the way; rows come nearest
# first, and the walk ends at the limit.
_ANCESTORS = text(
    "WITH RECURSIVE walk(candidate) AS ("
    "  SELECT id FROM candidate WHERE id = :candidate"
    "  UNION"
    "  SELECT parent.parent FROM walk"
    "  JOIN proposal_parent parent ON parent.proposal = (SELECT min(id) FROM proposal WHERE candidate = walk.candidate)"
    ") SELECT candidate FROM walk LIMIT :most"
)
_LINE = text(
    "WITH RECURSIVE line(candidate, depth) AS ("
    "  SELECT id, 0 FROM candidate WHERE id = :candidate"
    "  UNION ALL"
    "  SELECT parent.parent, line.depth + 1 FROM line"
    "  JOIN proposal_parent parent ON parent.proposal = (SELECT min(id) FROM proposal WHERE candidate = line.candidate)"
    "  WHERE parent.position = 0 AND line.depth < :depth"
    ") SELECT candidate FROM line"
)
# Which evaluation and which proposal count is chosen here: a sort for every row costs the database more than the rows.
_CANDIDATES = text("SELECT id, species, source, values_json FROM candidate WHERE id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)
_ORIGINS = text(
    "SELECT p.candidate, p.id, p.author, p.model FROM proposal p"
    " WHERE p.candidate IN :ids ORDER BY p.candidate DESC, p.id DESC"
).bindparams(bindparam("ids", expanding=True))
_EVALUATIONS = text(
    "SELECT candidate, id, board, score, status, covered, filed_s FROM evaluation WHERE candidate IN :ids"
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
        line = connection.execute(_LINE, {"candidate": root, "depth": depth}).scalars().all()
        near = connection.execute(_ANCESTORS, {"candidate": root, "most": most}).scalars().all()
        people = _people(connection, list(dict.fromkeys((*line, *near))))
        scored = [person.evaluation.id for person in people.values() if person.score is not None]
        ratios: dict[str, dict[str, float]] = defaultdict(dict)
        for evaluation, case, ratio in _in_chunks(connection, _RATIOS, scored):
            ratios[evaluation][case] = ratio
    depths = _depths(root, {name: person.parents for name, person in people.items()}, depth)
    return [_node(people, ratios, name, at) for name, at in depths.items()]


@dataclass(slots=True)
class _Person:
    """A candidate with its origin's row and that of the evaluation that covers most, where there are such."""

    row: Any
    origin: Any = None
    evaluation: Any = None
    parents: list[str] = field(default_factory=list)

    @property
    def score(self) -> float | None:
        return self.evaluation.score if self.evaluation else None


def _people(connection: Connection, ids: Sequence[str]) -> dict[str, _Person]:
    people = {row.id: _Person(row) for row in _in_chunks(connection, _CANDIDATES, ids)}
    for row in _in_chunks(connection, _ORIGINS, ids):  # the first comes last
        people[row.candidate].origin = row
    for row in _in_chunks(connection, _EVALUATIONS, ids):
        person = people[row.candidate]
        if person.evaluation is None or _says(row) > _says(person.evaluation):
            person.evaluation = row
    of = {person.origin.id: person for person in people.values() if person.origin}
    for proposal, parent in _in_chunks(connection, _PARENTS, list(of)):
        of[proposal].parents.append(parent)
    return people


def _says(evaluation: Any) -> tuple[int, float, str]:
    return evaluation.covered, evaluation.filed_s, evaluation.id


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
    gains = [
        gain(ratios[one.evaluation.id], ratios[parent.evaluation.id])
        for parent in known
        if one.score is not None and parent.score is not None and parent.evaluation.board == one.evaluation.board
    ]
    return LineageNode(
        candidate=name, parents=tuple(one.parents), species=one.row.species, score=one.score,
        status=Status(one.evaluation.status) if one.evaluation else "", depth=depth,
        author=Author(one.origin.author, one.origin.model) if one.origin else Author(""),
        gain=min((each for each in gains if each is not None), default=None),
        changes=tuple(_changes(one.row, known[0].row)) if known else (),
    )  # fmt: skip


def _changes(row: Any, parent: Any) -> Iterable[str]:
    """What a candidate has other than its first parent: `THREADS 256 -> 512`, "source"."""
    if row.source != parent.source:
        yield "source"
    if row.values_json != parent.values_json:
        mine, other = _values(row.values_json), _values(parent.values_json)
        for gene in {**other, **mine}:
            if mine.get(gene) != other.get(gene):
                yield f"{gene} {other.get(gene, '-')} -> {mine.get(gene, '-')}"


@lru_cache(maxsize=4096)
def _values(values_json: str) -> dict[str, Value]:
    """Every candidate's genes are looked at as its own and as its child's parent's."""
    found: dict[str, Value] = json.loads(values_json)
    return found

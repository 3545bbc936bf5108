"""Lessons: kept with their evidence, found by scope and words, shared between archives."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, insert, select, text

from evo.archive import fulltext
from evo.archive.rows import pack_json
from evo.archive.tables import LESSON, LESSON_EVIDENCE
from evo.errors import UnknownNameError, UsageError
from evo.lesson import Evidence, Kind, Lesson, LessonWithEvidence, Origin, Scope, Standing
from evo.records import Values

TOKEN_CHARACTERS = 4  # an English token has about so many
_RANK = {Standing.SUPPORTED: 3.0, Standing.TENTATIVE: 2.0, Standing.DISPUTED: 1.0, Standing.RETIRED: 0.0}
_PASSED_OVER = 8  # lessons that did not fit any more, after which no shorter one is looked for
_POOL = 100  # lessons that are ranked, of each way to find them
_AFTER = "\U0010ffff"
_SCOPE = ("operator", "target", "species", "family", "dtype")
_PLAIN = ("id", "key", "claim", "direction", "effect", "low", "high", "pairs", "author", "reason")
_EVIDENCE = text(
    "SELECT evaluation, supports, effect FROM lesson_evidence WHERE lesson = :lesson ORDER BY supports DESC, evaluation"
)
_HERE = text(
    "SELECT e.id, e.candidate FROM lesson_evidence l JOIN evaluation e ON e.id = l.evaluation WHERE l.lesson = :lesson"
)
_FORGET = text("DELETE FROM lesson_evidence WHERE lesson = :lesson")
_IN_SCOPE = text(
    "SELECT * FROM lesson WHERE operator = :operator AND target = :target AND weight >= 1"
    f" ORDER BY weight DESC LIMIT {_POOL}"
)


def put(connection: Connection, lesson: Lesson, evidence: Iterable[Evidence]) -> Lesson:
    """Writes a lesson with exactly this evidence, in place of the one with its key; counts are taken from it."""
    kept = {each.evaluation: each for each in evidence}
    supporting = sum(each.supports for each in kept.values())
    lesson = replace(lesson, supporting=supporting, refuting=len(kept) - supporting)
    for old in connection.execute(text("SELECT id FROM lesson WHERE key = :key"), {"key": lesson.key}).scalars().all():
        connection.execute(_FORGET, {"lesson": old})
        connection.execute(text("DELETE FROM lesson WHERE id = :id"), {"id": old})
        fulltext.remove(connection, old)
    connection.execute(insert(LESSON), _row(lesson))
    if kept:
        rows = [
            {"lesson": lesson.id, "evaluation": e.evaluation, "supports": int(e.supports), "effect": e.effect}
            for e in kept.values()
        ]
        connection.execute(insert(LESSON_EVIDENCE), rows)
    fulltext.add(connection, lesson.id, _words(lesson))
    return lesson


def by_key(connection: Connection, key: str) -> LessonWithEvidence | None:
    found = connection.execute(select(LESSON).where(LESSON.c.key == key)).mappings().first()
    return _whole(connection, found) if found else None


def show(connection: Connection, prefix: str) -> LessonWithEvidence:
    """By id or unique prefix. Raises `UnknownNameError` for none, `UsageError` for several."""
    wanted = prefix.strip().lower()
    where = (LESSON.c.id >= wanted, LESSON.c.id < wanted + _AFTER)
    found = connection.execute(select(LESSON).where(*where).limit(2)).mappings().all() if wanted else []
    if not found:
        known = connection.execute(text("SELECT id FROM lesson ORDER BY id DESC LIMIT 3")).scalars().all()
        raise UnknownNameError("lesson id", prefix, known, fix="`evo lessons` lists them")
    if len(found) > 1 and found[0]["id"] != wanted:
        raise UsageError(f"{prefix!r} is the beginning of several lesson ids", fix="give more characters")
    return _whole(connection, found[0])


def listed(
    connection: Connection,
    operator: str | None = None,
    target: str | None = None,
    standing: str | None = None,
    kinds: Sequence[Kind] = (),
    limit: int | None = None,
) -> list[Lesson]:
    """Those that fit, the weightiest first; each name that is given narrows."""
    query = select(LESSON).order_by(LESSON.c.weight.desc(), LESSON.c.id).limit(limit)
    for column, wanted in (("operator", operator), ("target", target), ("standing", standing)):
        query = query if wanted is None else query.where(LESSON.c[column] == wanted)
    if kinds:
        query = query.where(LESSON.c.kind.in_([str(kind) for kind in kinds]))
    return [_lesson(row) for row in connection.execute(query).mappings()]


def relevant(
    connection: Connection,
    operator: str,
    target: str,
    question: str = "",
    genes: Values | None = None,
    budget_tokens: int = 800,
) -> list[Lesson]:
    """What to bear in mind, most relevant first, within a budget of tokens; retired lessons never.

    Found by scope (this operator or any, this target or any) and by the words of `question`; lessons of other operators
    only by words. `genes` are the values at hand: lessons about them come first.
    """
    fits = fulltext.matching(connection, " ".join([question, *_gene_words(genes or {})]), _POOL)
    rows: dict[str, RowMapping] = {}
    for op in {operator, ""}:
        for place in {target, ""}:
            found = connection.execute(_IN_SCOPE, {"operator": op, "target": place}).mappings().all()
            rows.update({row["id"]: row for row in found})
    missing = [name for name in fits if name not in rows]
    query = select(LESSON).where(LESSON.c.id.in_(bindparam("ids", expanding=True)), LESSON.c.weight >= 1)
    rows.update({row["id"]: row for row in connection.execute(query, {"ids": missing}).mappings().all()})
    best = max(fits.values(), default=1.0)

    def score(row: RowMapping) -> float:
        mine = json.loads(row["genes_json"])
        told = sum(1.0 + (value == (genes or {})[name]) for name, value in mine.items() if name in (genes or {}))
        near = 3.0 * (row["operator"] == operator) + 1.0 * (row["operator"] == "") + 1.5 * (row["target"] == target)
        fit = 3.0 * fits.get(row["id"], 0.0) / best if best > 0 else 0.0
        return float(near + fit + min(told, 3.0) + row["weight"])

    ranked = sorted(rows.values(), key=score, reverse=True)
    return within_budget((_lesson(row) for row in ranked), budget_tokens)


def within_budget(lessons: Iterable[Lesson], budget_tokens: int) -> list[Lesson]:
    """The first ones that fit together; one that is too long is passed over."""
    chosen: list[Lesson] = []
    missed = 0
    for lesson in lessons:
        cost = tokens(line(lesson))
        if cost <= budget_tokens:
            budget_tokens -= cost
            chosen.append(lesson)
        elif (missed := missed + 1) == _PASSED_OVER:
            break
    return chosen


def line(lesson: Lesson) -> str:
    """A lesson as one line of a prompt."""
    return f"[{lesson.kind}, {lesson.standing}, {lesson.origin}] {lesson.claim}"


def tokens(content: str) -> int:
    """About how many tokens a model reads it as."""
    return math.ceil(len(content) / TOKEN_CHARACTERS) + 1


def merge(connection: Connection, item: LessonWithEvidence) -> Lesson:
    """Takes in a lesson of another archive. Of two with one key the older id stays, the evidence of both, the effect
    that more pairs stand behind, and the newer opinion of it; doing it twice changes nothing."""
    theirs, mine = item.lesson, by_key(connection, item.lesson.key)
    if mine is None:
        same = connection.execute(select(LESSON.c.key).where(LESSON.c.id == theirs.id)).first()
        if same is not None:
            raise UsageError(f"lesson {theirs.id} is here with another key", fix="the file was changed: export it anew")
        return put(connection, theirs, item.evidence)
    ours = mine.lesson
    newer, older = (theirs, ours) if theirs.updated_s > ours.updated_s else (ours, theirs)
    measured = older if older.pairs > newer.pairs else newer
    merged = replace(
        newer, id=min(ours.id, theirs.id), created_s=min(ours.created_s, theirs.created_s), claim=measured.claim,
        effect=measured.effect, low=measured.low, high=measured.high, pairs=measured.pairs,
        direction=measured.direction,
    )  # fmt: skip
    return put(connection, merged, (*item.evidence, *mine.evidence))


def foreign_evidence(connection: Connection, item: LessonWithEvidence) -> list[Evidence]:
    """That of evaluations which this archive does not have."""
    return [each for each in item.evidence if each.evaluation not in item.here]


def _whole(connection: Connection, row: RowMapping) -> LessonWithEvidence:
    names = {"lesson": row["id"]}
    evidence = [
        Evidence(name, bool(supports), effect) for name, supports, effect in connection.execute(_EVIDENCE, names)
    ]
    here: Mapping[str, str] = {name: candidate for name, candidate in connection.execute(_HERE, names)}
    return LessonWithEvidence(_lesson(row), tuple(evidence), here)


def _words(lesson: Lesson) -> str:
    scope = lesson.scope
    return " ".join([lesson.claim, scope.operator, scope.target, scope.species, *_gene_words(lesson.genes)])


def _gene_words(genes: Values) -> list[str]:
    return [f"{name} {value}" for name, value in genes.items()]


def _row(lesson: Lesson) -> dict[str, Any]:
    row = {name: getattr(lesson, name) for name in (*_PLAIN, "supporting", "refuting", "created_s", "updated_s")}
    row |= {name: getattr(lesson.scope, name) for name in _SCOPE}
    row |= {name: str(getattr(lesson, name)) for name in ("kind", "origin", "standing")}
    weight = _RANK[lesson.standing]
    if lesson.standing is not Standing.RETIRED:
        weight += min(0.99, 5 * abs(lesson.effect or 0.0))
    return {**row, "genes_json": pack_json(dict(lesson.genes)), "weight": weight}


def _lesson(row: RowMapping) -> Lesson:
    return Lesson(
        **{name: row[name] for name in (*_PLAIN, "supporting", "refuting", "created_s", "updated_s")},
        kind=Kind(row["kind"]), origin=Origin(row["origin"]), standing=Standing(row["standing"]),
        scope=Scope(*(row[name] for name in _SCOPE)), genes=json.loads(row["genes_json"]),
    )  # fmt: skip

"""From measurements to lessons: new ones are made, old ones confirmed, doubted or retired, each with its evidence."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from evo.archive import lessons
from evo.archive.attribution import EVIDENCE, Effect, effects
from evo.archive.pitfalls import Pitfall, pitfalls, right_with
from evo.archive.store import Archive
from evo.ids import digest, new_id
from evo.lesson import CaseFacts, Evidence, Kind, Lesson, LessonWithEvidence, Origin, Scope, Standing
from evo.records import Values

ENOUGH = 10  # comparisons, or failed candidates, from which a lesson counts as supported
TESTS = 3  # of a hypothesis, before they decide
_DISPUTABLE = 0.2  # share of right candidates beyond which a pitfall is none


@dataclass(frozen=True, slots=True)
class Learned:
    """What learning changed: how many lessons are new, rose, fell, or were retired, and how many stand now."""

    new: int = 0
    raised: int = 0
    lowered: int = 0
    retired: int = 0
    standing: int = 0


_HEIGHT = {Standing.RETIRED: 0, Standing.DISPUTED: 1, Standing.TENTATIVE: 2, Standing.SUPPORTED: 3}


def learn(archive: Archive, operator: str, target: str, cases: Mapping[str, CaseFacts]) -> Learned:
    """Brings the measured lessons of an operator on a target up to date. `cases`: those that may be looked at."""
    with archive.reading() as connection:
        measured = effects(connection, operator, target, cases)
        failures = pitfalls(connection, operator, target, cases)
    with archive.writing() as connection:
        before = {lesson.key: lesson for lesson in _of(connection, operator, target)}
        seen = {_learn_effect(connection, effect, operator, target) for effect in measured if effect.significant}
        seen |= {_learn_pitfall(connection, failure, operator, target) for failure in failures}
        for lesson in before.values():
            if lesson.key not in seen:
                _review(connection, lesson, measured, target)
        after = {lesson.key: lesson for lesson in _of(connection, operator, target)}
    return _changes(before, after)


def record_hypothesis(
    archive: Archive,
    claim: str,
    *,
    scope: Scope,
    genes: Values | None = None,
    direction: int = 0,
    origin: Origin = Origin.HISTORIAN,
    author: str = "",
    kind: Kind = Kind.HYPOTHESIS,
) -> Lesson:
    """Writes down what somebody expects (`direction`: the sign of the predicted change of speed, 0 for none). The same
    words about the same scope are one lesson, whoever says them again."""
    key = _key(kind, scope, genes or {}, claim.strip())
    now = time.time()
    with archive.writing() as connection:
        known = lessons.by_key(connection, key)
        if known is not None:
            return known.lesson
        lesson = Lesson(
            new_id(), kind, claim.strip(), scope, origin, Standing.TENTATIVE, key, now, now, dict(genes or {}),
            direction, author=author, reason="not tested yet",
        )  # fmt: skip
        return lessons.put(connection, lesson, ())


def test_hypothesis(archive: Archive, lesson: str, evidence: Evidence) -> Lesson:
    """Adds the outcome of a test to a lesson (id or prefix); from `TESTS` on they decide how it stands."""
    with archive.writing() as connection:
        item = lessons.show(connection, lesson)
        kept = {each.evaluation: each for each in (*item.evidence, evidence)}
        good = sum(each.supports for each in kept.values())
        standing, reason = _judged(good, len(kept) - good)
        if item.lesson.standing is Standing.RETIRED and standing is Standing.TENTATIVE:
            standing, reason = Standing.RETIRED, item.lesson.reason
        changed = replace(item.lesson, standing=standing, reason=reason, updated_s=time.time())
        return lessons.put(connection, changed, kept.values())


def retire(archive: Archive, lesson: str, reason: str) -> Lesson:
    """A person's or a historian's verdict."""
    with archive.writing() as connection:
        item = lessons.show(connection, lesson)
        changed = replace(item.lesson, standing=Standing.RETIRED, reason=reason, updated_s=time.time())
        return lessons.put(connection, changed, item.evidence)


def percent(effect: float) -> str:
    """A log ratio for a person: +1.8 %."""
    return f"{100 * math.expm1(effect):+.1f} %"


def describe(effect: Effect) -> str:
    """`STORE=st.global.cs: +1.8 % (+1.4 % to +2.2 %), 31 pairs, only N >= 16384`."""
    where = f", only {effect.family}" if effect.family else ""
    interval = f"{percent(effect.low)} to {percent(effect.high)}"
    return (
        f"{effect.gene}={effect.value} in {effect.species}: {percent(effect.effect)} ({interval}),"
        f" {effect.pairs} pairs{where}"
    )


def _of(connection: Connection, operator: str, target: str) -> list[Lesson]:
    """Those of this target, and those that claim something of every target."""
    return [*lessons.listed(connection, operator, target), *lessons.listed(connection, operator, "")]


def _key(kind: Kind, scope: Scope, genes: Values, more: str) -> str:
    named = [f"{name}={value!r}" for name, value in sorted(genes.items())]
    place = (scope.operator, scope.target, scope.species, scope.family, scope.dtype)
    return digest([str(kind), *place, *named, more])[:32]


def _learn_effect(connection: Connection, effect: Effect, operator: str, target: str) -> str:
    scope = Scope(operator, target, effect.species, effect.family)
    genes = {effect.gene: effect.value}
    key = _key(Kind.EFFECT, scope, genes, "")
    standing = Standing.SUPPORTED if effect.pairs >= ENOUGH else Standing.TENTATIVE
    sign = 1 if effect.effect > 0 else -1
    known = lessons.by_key(connection, key)
    if known and known.lesson.direction == -sign:
        standing = Standing.DISPUTED
        reason = f"it used to be {percent(known.lesson.effect or 0.0)}: the sign has changed"
    else:
        reason = f"{effect.pairs} pairs, chance {effect.chance:.2g} after correction"
    _write(
        connection, known, kind=Kind.EFFECT, claim=describe(effect), scope=scope, key=key, genes=genes, direction=sign,
        standing=standing, reason=reason, effect=effect, pairs=effect.pairs, evidence=effect.evidence,
    )  # fmt: skip
    return key


def _learn_pitfall(connection: Connection, found: Pitfall, operator: str, target: str) -> str:
    scope = Scope(operator, target, found.species)
    key = _key(Kind.PITFALL, scope, found.genes, f"{found.status}: {found.message}")
    named = " ".join(f"{name}={value}" for name, value in found.genes.items())
    where = f" ({found.where})" if found.where else ""
    claim = f"{found.stage or 'run'}: {found.status} at {named or 'various genes'} in {found.species}{where}:"
    claim += f" {len(found.failed)} candidates, none with these genes was right" if named else (
        f" {len(found.failed)} candidates, with nothing in common that explains it"
    )  # fmt: skip
    evidence = [Evidence(evaluation, True) for evaluation in list(found.failed.values())[:EVIDENCE]]
    sure = named and len(found.failed) >= ENOUGH // 2
    _write(
        connection, lessons.by_key(connection, key), kind=Kind.PITFALL, claim=f"{claim}; e.g. {found.example}",
        scope=scope, key=key, genes=found.genes, direction=-1, pairs=len(found.failed), evidence=evidence,
        standing=Standing.SUPPORTED if sure else Standing.TENTATIVE, reason=f"{len(found.failed)} candidates failed so",
    )  # fmt: skip
    return key


def _write(
    connection: Connection,
    known: LessonWithEvidence | None,
    *,
    kind: Kind,
    claim: str,
    scope: Scope,
    key: str,
    genes: Values,
    direction: int,
    standing: Standing,
    reason: str,
    pairs: int,
    evidence: Iterable[Evidence],
    effect: Effect | None = None,
) -> None:
    """A measured lesson, new or in place of what was known; another archive's evidence stays with it."""
    now = time.time()
    lesson = Lesson(
        known.lesson.id if known else new_id(), kind, claim, scope, Origin.MEASURED, standing, key,
        known.lesson.created_s if known else now, now, dict(genes), direction, pairs=pairs, reason=reason,
    )  # fmt: skip
    if effect is not None:
        lesson = replace(lesson, effect=effect.effect, low=effect.low, high=effect.high)
    foreign = lessons.foreign_evidence(connection, known) if known else []
    if known and foreign and known.lesson.pairs > pairs:  # the other team saw more than this archive did
        old = known.lesson
        lesson = replace(lesson, claim=old.claim, effect=old.effect, low=old.low, high=old.high, pairs=old.pairs)
    if known and _same(known.lesson, lesson) and set(known.evidence) == {*evidence, *foreign}:
        return
    lessons.put(connection, lesson, (*foreign, *evidence))


def _same(one: Lesson, other: Lesson) -> bool:
    return replace(one, updated_s=0.0, supporting=0, refuting=0) == replace(
        other, updated_s=0.0, supporting=0, refuting=0
    )


# --- what is no longer found


def _review(connection: Connection, lesson: Lesson, measured: Iterable[Effect], target: str) -> None:
    """A lesson that the measurements do not show any more, or one that somebody wrote down."""
    if lesson.standing is Standing.RETIRED:
        return
    if lesson.kind is Kind.PITFALL and lesson.origin is Origin.MEASURED:
        _review_pitfall(connection, lesson)
    elif lesson.kind in (Kind.EFFECT, Kind.HYPOTHESIS) and len(lesson.genes) == 1 and lesson.direction:
        ((gene, value),) = lesson.genes.items()
        species = lesson.scope.species
        about = [e for e in measured if (e.gene, e.value) == (gene, value) and species in ("", e.species)]
        _review_effect(connection, lesson, about, "measured" if lesson.scope.target else f"measured on {target}")


def _review_pitfall(connection: Connection, lesson: Lesson) -> None:
    scope = lesson.scope
    right = right_with(connection, scope.operator, scope.target, scope.species, lesson.genes) if lesson.genes else {}
    if not right:
        return
    share = len(right) / (len(right) + lesson.pairs)
    standing = Standing.RETIRED if share > _DISPUTABLE else Standing.DISPUTED
    against = [Evidence(evaluation, False) for evaluation in list(right.values())[:EVIDENCE]]
    _change(connection, lesson, standing, f"{len(right)} candidates with these genes were right", against)


def _review_effect(connection: Connection, lesson: Lesson, about: list[Effect], how: str) -> None:
    surer = [effect for effect in about if effect.significant]
    measured = lesson.origin is Origin.MEASURED
    same = [effect for effect in about if effect.family == lesson.scope.family]
    if not (same or measured or lesson.scope.family) and len({effect.effect > 0 for effect in surer}) == 1:
        same = surer  # what is claimed of all cases was found of two ranges, of one sign in both
    if same:
        effect = max(same, key=lambda each: each.pairs)
        excluded = effect.high < 0 if lesson.direction > 0 else effect.low > 0
        agrees = effect.effect * lesson.direction > 0
        if effect.significant and agrees:
            _change(connection, lesson, Standing.SUPPORTED, f"{how}: {describe(effect)}", effect.evidence)
        elif excluded:
            turned = [replace(each, supports=not each.supports) for each in effect.evidence]
            elsewhere = not lesson.scope.target and lesson.supporting  # it holds on another target
            standing = Standing.DISPUTED if elsewhere else Standing.RETIRED
            _change(connection, lesson, standing, f"{how}: {describe(effect)}", turned)
        elif measured:
            reason = f"no longer clear: {describe(effect)}"
            _change(connection, lesson, Standing.DISPUTED, reason, effect.evidence if agrees else ())
    elif surer and measured:
        _change(connection, lesson, Standing.RETIRED, f"replaced by: {describe(surer[0])}", ())


def _change(
    connection: Connection, lesson: Lesson, standing: Standing, reason: str, evidence: Iterable[Evidence]
) -> None:
    known = lessons.by_key(connection, lesson.key)
    assert known is not None
    kept = {each.evaluation: each for each in (*known.evidence, *evidence)}
    if (standing, reason) == (lesson.standing, lesson.reason) and set(kept.values()) == set(known.evidence):
        return
    changed = replace(lesson, standing=standing, reason=reason, updated_s=time.time())
    lessons.put(connection, changed, kept.values())


def _judged(good: int, bad: int) -> tuple[Standing, str]:
    """How tests of a hypothesis decide."""
    count = f"{good} of {good + bad} tests support it"
    if good + bad < TESTS:
        return Standing.TENTATIVE, count
    if bad * 2 <= good:
        return Standing.SUPPORTED, count
    return (Standing.RETIRED if good * 2 <= bad else Standing.DISPUTED), count


def _changes(before: Mapping[str, Lesson], after: Mapping[str, Lesson]) -> Learned:
    moved = [(before[key], lesson) for key, lesson in after.items() if key in before]
    steps = [_HEIGHT[new.standing] - _HEIGHT[old.standing] for old, new in moved]
    fallen = [(old, new) for old, new in moved if _HEIGHT[new.standing] < _HEIGHT[old.standing]]
    retired = sum(new.standing is Standing.RETIRED for _, new in fallen)
    return Learned(
        new=len(after.keys() - before.keys()),
        raised=sum(step > 0 for step in steps),
        lowered=len(fallen) - retired,
        retired=retired,
        standing=sum(lesson.standing is not Standing.RETIRED for lesson in after.values()),
    )

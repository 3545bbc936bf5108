"""`evo lessons`: what was learned, with its evidence, for the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from evo import codec
from evo.app.memory.effects import case_facts
from evo.app.stand import find_target
from evo.archive import Archive, lessons
from evo.archive.learning import Learned, learn, record_hypothesis, retire
from evo.archive.ranking import boards
from evo.dtypes import ITEMSIZE
from evo.errors import UsageError
from evo.lesson import Kind, Lesson, LessonWithEvidence, Origin, Scope
from evo.plugins.manager import Plugins

FORMAT = "evo-lessons-1"
FAMILY = re.compile(rf"\w+ (>=|<) \d+|(not )?({'|'.join(ITEMSIZE)})")  # as `evo.archive.families` names them


def list_lessons(
    archive: str,
    operator: str | None = None,
    target: str | None = None,
    status: str | None = None,
    limit: int | None = None,
) -> list[Lesson]:
    """The weightiest first."""
    with Archive.open(archive, create=False, readonly=True) as store, store.reading() as connection:
        return lessons.listed(connection, operator, target, status, limit=limit)


def show_lesson(archive: str, prefix: str) -> LessonWithEvidence:
    """One lesson with its evidence."""
    with Archive.open(archive, create=False, readonly=True) as store, store.reading() as connection:
        return lessons.show(connection, prefix)


def add_lesson(
    archive: str, claim: str, scope: Scope, *, genes: Mapping[str, str] | None = None, direction: int = 0
) -> Lesson:
    """A person's lesson, marked so. With genes and a direction it is a hypothesis, which measurements will test."""
    if not claim.strip():
        raise UsageError("an empty lesson", fix='evo lessons add "st.global.cs helps where rows are long"')
    plugins = Plugins.load()
    if scope.operator:
        plugins.operator(scope.operator)
    if scope.target:
        scope = replace(scope, target=find_target(plugins, scope.target).name)
    if scope.family and not FAMILY.fullmatch(scope.family):
        raise UsageError(f"{scope.family!r} names no cases", fix='such as "N >= 16384", "N < 512", bf16 or "not fp32"')
    if direction and len(genes or {}) != 1:
        raise UsageError(
            f"a direction is of one gene's value, and {len(genes or {})} are given",
            fix="name one, as --gene STORE=st.global.cs.v4.b32: measurements test what it is worth alone",
        )
    kind = Kind.HYPOTHESIS if genes and direction else Kind.NOTE
    values = {name: int(value) if value.lstrip("-").isdecimal() else value for name, value in (genes or {}).items()}
    with Archive.open(archive) as store:
        return record_hypothesis(
            store, claim, scope=scope, genes=values, direction=direction, origin=Origin.PERSON, kind=kind
        )


def retire_lesson(archive: str, prefix: str, reason: str) -> Lesson:
    """A person takes a lesson out of use; it stays readable."""
    if not reason.strip():
        raise UsageError("a lesson is not retired without a reason", fix="--reason TEXT")
    with Archive.open(archive, create=False) as store:
        return retire(store, prefix, reason.strip())


def learn_lessons(archive: str, operator: str | None = None, target: str | None = None) -> dict[str, Learned]:
    """Learns anew from all that the archive holds; by "operator on target"."""
    plugins = Plugins.load()
    installed = {registered.name for registered in plugins.operators()}
    if operator is not None:
        plugins.operator(operator)
    with Archive.open(archive, create=False) as store:
        with store.reading() as connection:
            there = dict.fromkeys((b.operator, b.target) for b in boards(connection, operator=operator, target=target))
        return {
            f"{name} on {place}": learn(store, name, place, case_facts(plugins.operator(name), place))
            for name, place in there
            if name in installed  # only an operator knows which cases are hold-outs
        }


def export_lessons(archive: str, operator: str | None = None, target: str | None = None) -> dict[str, Any]:
    """All lessons with their evidence, as plain data for a file."""
    with Archive.open(archive, create=False, readonly=True) as store, store.reading() as connection:
        found = [lessons.show(connection, lesson.id) for lesson in lessons.listed(connection, operator, target)]
    plain = [{**asdict(item.lesson), "evidence": [asdict(each) for each in item.evidence]} for item in found]
    return {"format": FORMAT, "lessons": plain}


def import_lessons(archive: str, file: Path) -> list[Lesson]:
    """Takes in the lessons of a file that `export_lessons` made; all of them or none."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']!r}")
        items = [
            codec.loads(LessonWithEvidence, json.dumps({"lesson": rest, "evidence": evidence}))
            for entry in data["lessons"]
            for evidence, rest in [(entry["evidence"], {k: v for k, v in entry.items() if k != "evidence"})]
        ]
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}", fix="name a file of `evo lessons export`"
        ) from None
    except (ValueError, KeyError, TypeError) as error:  # not JSON, another format, a field that does not fit
        why = str(error).splitlines()[0]
        raise UsageError(f"{file} is no file of lessons: {why}", fix="make one by `evo lessons export FILE`") from None
    with Archive.open(archive) as store, store.writing() as connection:
        return [lessons.merge(connection, item) for item in items]

"""What was learned: the list of lessons, one lesson with its evidence, and what learning changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evo.archive.learning import Learned, percent
from evo.lesson import Lesson, LessonWithEvidence, Standing
from evo.report import notation
from evo.report.layout import assemble, command_line, table, text

STYLES = {Standing.SUPPORTED: "green", Standing.DISPUTED: "yellow", Standing.RETIRED: "dim"}


def lesson_table(lessons: Sequence[Lesson]) -> Table | Text:
    """One line a lesson, the weightiest first."""
    if not lessons:
        return text("no lessons that fit; `evo lessons learn` makes them from what was measured")
    result = table("lesson", "standing", "origin", "where", "claim", fold=["where", "claim"])
    for lesson in lessons:
        result.add_row(
            notation.short(lesson.id), text(lesson.standing, STYLES.get(lesson.standing, "")), str(lesson.origin),
            text(_where(lesson)), text(lesson.claim),
        )  # fmt: skip
    return result


def lesson_report(item: LessonWithEvidence, archive: str) -> Group:
    """A lesson, why it stands as it does, and its evidence; each row with the command that opens it."""
    lesson = item.lesson
    style = STYLES.get(lesson.standing, "")
    parts: list[RenderableType] = [
        assemble(("lesson", "bold"), f" {lesson.id}  ", (str(lesson.standing), style)),
        text(lesson.claim),
        text(f"{lesson.kind}, {lesson.origin}{f' ({lesson.author})' if lesson.author else ''}, {_where(lesson)}"),
    ]
    if lesson.reason:
        parts.append(text(f"why: {lesson.reason}"))
    parts.append(text(f"evidence: {lesson.supporting} for, {lesson.refuting} against"))
    if item.evidence:
        rows = table("evaluation", "says", "effect", "candidate", numbers=["effect"])
        for each in item.evidence:
            effect = "-" if each.effect is None else percent(each.effect)
            rows.add_row(
                text(each.evaluation), "for" if each.supports else "against", effect,
                notation.short(item.here[each.evaluation]) if each.evaluation in item.here else "in another archive",
            )  # fmt: skip
        parts += ["", rows]
        opened = next((each.evaluation for each in item.evidence if each.evaluation in item.here), None)
        if opened:
            where = "" if archive == "evo.db" else f" --archive {archive}"
            parts += ["", command_line(f"evo archive show {opened}{where}")]
    return Group(*parts)


def learned_lines(learned: Mapping[str, Learned]) -> Group:
    """What changed, a line for each operator and target."""
    if not learned:
        return Group(text("the archive holds nothing to learn from"))
    return Group(*(text(f"{place}: {learned_line(each)}") for place, each in learned.items()))


def learned_line(learned: Learned) -> str:
    moved = (
        ("new", learned.new),
        ("raised", learned.raised),
        ("lowered", learned.lowered),
        ("retired", learned.retired),
    )
    changes = ", ".join(f"{count} {what}" for what, count in moved if count) or "nothing new"
    return f"{changes}; {notation.count(learned.standing, 'lesson')} on record"


def _where(lesson: Lesson) -> str:
    scope = lesson.scope
    parts = [scope.operator or "any operator", scope.target, scope.species, scope.family, scope.dtype]
    return " ".join(part for part in parts if part)

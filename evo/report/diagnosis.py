"""Why something was rejected or not covered, in full but said once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding

from evo.records import CaseResult, Diagnosis
from evo.report.layout import Verbatim, assemble, text
from evo.report.notation import count

OPENING = 3  # lines of a log among which the one that the message quotes is seen at once
HOLDS_NOT = re.compile(r"(.* does not hold): .*", re.DOTALL)  # the values that follow differ from case to case


def diagnosis_report(diagnosis: Diagnosis) -> Group:
    """Where, the message, and the long text as it came. A log that opens with the message stands for it."""
    where = f"{diagnosis.stage}, {diagnosis.case}" if diagnosis.case else str(diagnosis.stage)
    head = assemble((f"{where}: ", "bold"), end="")
    detail = diagnosis.detail.rstrip()
    if not detail:
        return Group(assemble((f"{where}: ", "bold"), diagnosis.message))
    opening = detail.splitlines()[:OPENING]
    said, _, hint = diagnosis.message.rpartition("; ")
    if _quotes(diagnosis.message, opening):
        return Group(head, Verbatim(detail))
    if said and _quotes(said, opening):
        return Group(head, Verbatim(detail), text(hint))
    return Group(assemble((f"{where}: ", "bold"), diagnosis.message), Verbatim(detail))


def uncovered_report(cases: Sequence[CaseResult]) -> Group:
    """How many cases are not covered, and for every reason those that have it."""
    reasons: dict[str, list[str]] = {}
    for case in cases:
        message = case.diagnosis.message if case.diagnosis else "no reason given"
        held = HOLDS_NOT.fullmatch(message)
        reasons.setdefault(held[1] if held else message, []).append(case.case)
    parts: list[RenderableType] = [text(f"not covered: {count(len(cases), 'case')}")]
    for reason, names in reasons.items():
        parts.append(Padding(text(f"{reason}: {', '.join(names)}", "dim"), (0, 0, 0, 2), expand=False))
    return Group(*parts)


def _quotes(message: str, lines: Sequence[str]) -> bool:
    """Whether a line has all words of the message, in order; compilers put a severity between place and reason."""
    for line in lines:
        words = iter(_words(line))
        if all(word in words for word in _words(message)):
            return True
    return False


def _words(content: str) -> list[str]:
    return re.findall(r"\w+", content.casefold())

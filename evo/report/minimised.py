"""A winner without what does not pay: every edit with its worth."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from evo.engine.reduction import Weighed, Worth
from evo.report.layout import command_line, speed_up, table, text
from evo.report.notation import count


def minimised_report(edits: Sequence[Weighed], total: Worth, lines: int, before: int, file: str) -> Group:
    """The edits in the order in which they were weighed, and what the smallest source is like."""
    rows = table("edit", "what", "kept", "worth", "where", fold=["what", "worth", "where"])
    for each in edits:
        edit, worth = each.edit, each.worth
        what = f"{edit.before} -> {edit.after}" if edit.kind == "gene" else _hunk(edit.before, edit.after)
        value = text(worth.why) if worth.why else speed_up(worth.ratio, worth.low, worth.high)
        rows.add_row(text(edit.name), text(what), "yes" if each.kept else "no", value, text(worth.case))
    pay = count(len(edits), "edit pays", "edits pay")
    kept = sum(each.kept for each in edits)
    parts: list[RenderableType] = [rows, "", text(f"{kept} of {pay}; {count(lines, 'line')} of {before}")]
    if total.case:
        parts.append(text("smallest against winner: ").append_text(speed_up(total.ratio, total.low, total.high)))
    return Group(*parts, command_line(f"evo bench {file}"))


def _hunk(before: str, after: str) -> str:
    return f"{count(len(before.splitlines()), 'line')} -> {len(after.splitlines())}"

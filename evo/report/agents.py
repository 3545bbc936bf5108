"""What models did in a run, and what came of a replay."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table

from evo.engine.replaying import Replayed
from evo.engine.result import ArmSummary, Waiting
from evo.report import notation
from evo.report.layout import table, text
from evo.report.notation import count

SHOWN = 8  # prompts and calls that are named


def arms_table(arms: Sequence[ArmSummary]) -> Table:
    """Mutators have a share only; of models also what they did and cost."""
    numbers = ("share", "jobs", "new", "right", "known", "gain", "tokens", "USD")
    rows = table("arm", *numbers, numbers=numbers, fold=["arm"])
    for arm in arms:
        share = notation.share(arm.share)
        if not arm.jobs and not arm.calls:
            rows.add_row(text(arm.arm), share, *(["-"] * 7))
            continue
        usd = "unknown" if arm.usd is None else f"{arm.usd:.3f}"
        rows.add_row(
            text(arm.arm), share, str(arm.jobs), str(arm.proposals), str(arm.right), str(arm.known), f"{arm.gain:+.4f}",
            str(arm.tokens), usd,
        )  # fmt: skip
    return rows


def replayed_report(done: Replayed) -> Group:
    """Whether the way was the same, and where not."""
    said = "the same decisions" if done.same else "NOT the same decisions"
    parts = [
        text(f"replayed run {done.run}: {said}", "bold green" if done.same else "bold red"),
        text(
            f"{count(done.decisions, 'decision')} after {count(done.verdicts, 'verdict')}"
            f" and {count(done.exchanges, 'answer')}"
        ),
        text(f"recorded {done.recorded[:16]}, replayed {done.replayed[:16]} (SHA-256 over all decisions)", "dim"),
        text(f"{done.same_prompts} of {count(done.exchanges, 'prompt is', 'prompts are')} the same, byte for byte"),
    ]
    for title, named in (("others", done.other_prompts), ("calls that the record lacks", done.missing_calls)):
        if named:
            more = len(named) - SHOWN
            rest = f" and {more} more" if more > 0 else ""
            parts.append(text(f"{title}: {'; '.join(named[:SHOWN])}{rest}", "yellow"))
    if done.parted:
        parts.append(text(f"the ways part: {done.parted}", "red"))
    return Group(*parts)


def waiting_table(items: Sequence[Waiting]) -> Table:
    """What a person was asked for, and what was said."""
    rows = table("kind", "name", "ruling", "about", fold=["about"])
    for item in items:
        name = item.subject[:12] if item.kind == "finalist" else item.subject
        rows.add_row(item.kind, text(name), item.ruling, text(item.text))
    return rows

"""The report of `evo status`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType

from evo.archive.leaders import Leader
from evo.report import notation
from evo.report.layout import FLATTERS, NOT_FINAL, table, text


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands. `used` holds the share of every limit of the budget, `best` what leads by case, `open` how many
    proposals are in which state, `told` how many wait from outside."""

    run: str
    operator: str
    target: str
    command: str
    state: str  # "running", "stopping", "stopped", "killed", "done", "failed", "collecting"
    seconds: float
    evaluated: int
    duplicates: int
    rejected: Mapping[str, int]
    used: Mapping[str, float]
    left: str
    best: Mapping[str, Leader]
    open: Mapping[str, int]
    told: int
    banned: tuple[str, ...] = ()


def standing_report(standing: Standing) -> Group:
    """A few lines, and the leaders by case."""
    lines = [f"run {standing.run}: {standing.state}", f"  {standing.command}"]
    rejected = ", ".join(f"{count} {status}" for status, count in standing.rejected.items())
    duplicates = notation.count(standing.duplicates, "duplicate")
    lines.append(f"  {standing.evaluated} evaluated, {duplicates}" + (f", {rejected}" if rejected else ""))
    if standing.used:
        used = ", ".join(f"{share:.0%} of {limit}" for limit, share in standing.used.items())
        lines.append(f"  spent {used}; left {standing.left}")
    waiting = ", ".join(f"{count} {state}" for state, count in standing.open.items())
    lines += [f"  open: {waiting}"] if waiting else []
    lines += [f"  told and waiting: {standing.told}"] if standing.told else []
    lines += [f"  banned: {', '.join(standing.banned)}"] if standing.banned else []
    parts: list[RenderableType] = [text("\n".join(lines))]
    if standing.best:
        leaders = table("case", "ratio", "candidate", numbers=("ratio",), fold=("case",))
        for case, leader in standing.best.items():
            mark = "" if leader.final else f"{NOT_FINAL} "
            leaders.add_row(text(case), f"{mark}{leader.ratio:.3f}x", text(notation.short(leader.candidate)))
        parts += ["", leaders]
        parts += [text(FLATTERS)] if not all(leader.final for leader in standing.best.values()) else []
    return Group(*parts)

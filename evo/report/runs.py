"""Runs of an archive: the list, and one in full."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType

from evo.archive.views import RunRecord
from evo.report import notation
from evo.report.layout import command_line, listing, text

ID_LENGTH = 18  # of a time-ordered UUID: down to the millisecond, and 12 bits more
HEAD = ("run", "state", "operator", "target", "started")


def run_list(runs: Sequence[RunRecord]) -> Group:
    """A line for every run, and below it the command, which is too long for a column."""
    if not runs:
        return Group(text("the archive holds no run"))
    rows = [
        (run.id[:ID_LENGTH], run.state, run.operator, run.target, f"{_local(run.started_s):%Y-%m-%d %H:%M}")
        for run in runs
    ]
    head, rule, *lines = listing(HEAD, rows)
    parts: list[RenderableType] = [head, rule]
    for run, line in zip(runs, lines, strict=True):
        parts += [line, command_line(run.command, "dim")]
    return Group(*parts)


def run_record(run: RunRecord) -> Group:
    """What is known of a run, save what it found."""
    lasted = "" if run.ended_s is None else f", {notation.duration(run.ended_s - run.started_s)}"
    started = f"{_local(run.started_s):%Y-%m-%d %H:%M:%S %Z}"
    again = f"; `evo resume {run.id[:ID_LENGTH]}` goes on with it" if run.state in ("killed", "stopped") else ""
    return Group(
        text(f"{run.operator} on {run.target} ({run.device}), yardstick: {run.yardstick}"),
        text(f"{run.state}{again}, started {started}{lasted}, budget {run.budget}, seed {run.seed}"),
        text(f"cases: {', '.join(run.cases)}"),
    )


def _local(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).astimezone()

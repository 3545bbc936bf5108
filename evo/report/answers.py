"""Tables of what was asked: failures, rows of a query, problems of an archive."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from evo.archive.asking import Rows
from evo.archive.care import Problem
from evo.archive.failing import FailureGroup
from evo.report import notation
from evo.report.layout import assemble, table, text

LONGEST = 60  # characters of one cell
_ID = re.compile(r"[0-9a-f]{64}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def failure_table(groups: Sequence[FailureGroup]) -> Table | Text:
    """One row a diagnosis; `evo archive show` opens the example."""
    if not groups:
        return text("no failures that fit")
    result = table(
        "count", "status", "diagnosis", "species", "example", numbers=["count"], fold=["diagnosis", "species"]
    )
    for group in groups:
        species = notation.counts(dict(group.species))
        stage = f"{group.stage}: " if group.stage else ""
        result.add_row(
            str(group.evaluations),
            text(group.status),
            text(stage + group.diagnosis),
            text(species),
            notation.short(group.example),
        )
    return result


def answer_table(found: Rows) -> Table | Text:
    """Long values are cut: --json and --csv have them whole."""
    if not found.rows:
        return text("no rows")
    kinds = list(zip(*found.rows, strict=True))
    numbers = [name for name, values in zip(found.columns, kinds, strict=True) if all(map(_is_number, values))]
    result = table(*found.columns, numbers=numbers, fold=[name for name in found.columns if name not in numbers])
    for row in found.rows:
        result.add_row(*(text(_cell(value)) for value in row))
    return result


def problem_table(problems: Sequence[Problem]) -> Group | Text:
    if not problems:
        return text("the archive is whole", "green")
    parts = []
    for problem in problems:
        style = "red" if problem.harm == "damage" else "yellow"
        parts.append(assemble((f"{problem.harm:<7}", style), f" {problem.count} x {problem.what}"))
        parts += [text(f"        {where}", "dim") for where in problem.where[:5]]
    return Group(*parts)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 and math.isfinite(value) else f"{value:.3f}"
    shown = str(value).replace("\n", " ")
    if _ID.fullmatch(shown):
        return notation.short(shown)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 3]}..."

"""The Pareto front: one record a candidate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType

from evo.records import Purpose, Values
from evo.report import notation
from evo.report.layout import FLATTERS, marked, table, text


@dataclass(frozen=True, slots=True)
class FrontRow:
    """`ratio` is the geometric mean over `cases` timed ones; `registers`, `workspace_bytes` (scratch) and `error_rms`
    (relative) are the largest over the cases."""

    candidate: str
    species: str
    values: Values
    ratio: float
    cases: int
    registers: int
    workspace_bytes: int
    error_rms: float
    purpose: Purpose


def front_table(rows: Sequence[FrontRow]) -> RenderableType:
    if not rows:
        return text("the archive holds no timed candidate that fits")
    numbers = ["geomean", "cases", "registers", "workspace", "error"]
    result = table("candidate", *numbers, "species", numbers=numbers, fold=["species"])
    for row in rows:
        error = f"{row.error_rms:.1e}" if math.isfinite(row.error_rms) else "-"
        result.add_row(
            notation.short(row.candidate), marked(row.ratio, final=row.purpose is not Purpose.SEARCH), str(row.cases),
            str(row.registers), notation.size(row.workspace_bytes), error, text(row.species),
        )  # fmt: skip
    rough = any(row.purpose is Purpose.SEARCH for row in rows)
    return Group(result, *([text(FLATTERS, "dim")] if rough else []))

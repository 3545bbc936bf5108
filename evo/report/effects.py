"""What gene values do to the speed: one record a row, the same in tables, in CSV and in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from evo.lesson import Evidence
from evo.records import Value
from evo.report.layout import LOSS, WIN, table, text
from evo.report.notation import count

CSV = ("operator", "target", "species", "gene", "value", "percent", "low", "high", "pairs", "family", "chance",
       "significant")  # fmt: skip
NOTE = "95 % intervals; significant: five pairs or more, false discoveries held at 5 % (Benjamini-Hochberg)"


@dataclass(frozen=True, slots=True)
class CaseRow:
    """An effect in one case, in percent of speed; None where there is no interval."""

    case: str
    percent: float
    low: float | None
    high: float | None
    pairs: int


@dataclass(frozen=True, slots=True)
class EffectRow:
    """What a gene's value does to the speed, in percent, against the gene's other values in otherwise equal candidates.

    `family`: the cases that it holds for, "" for all. `chance`: the p-value after correction for all values looked at;
    `significant` also asks for enough pairs.
    """

    operator: str
    target: str
    species: str
    gene: str
    value: Value
    percent: float
    low: float
    high: float
    pairs: int
    family: str
    chance: float
    significant: bool
    cases: tuple[CaseRow, ...]
    evidence: tuple[Evidence, ...]


def effects_table(rows: Sequence[EffectRow], *, every: bool = False) -> Group:
    """One table an operator and target; without `every` only the significant rows, and how many there are beside."""
    parts: list[RenderableType] = []
    for (operator, target), group in groupby(rows, key=lambda row: (row.operator, row.target)):
        mine = list(group)
        shown = mine if every else [row for row in mine if row.significant]
        parts += ["", text(f"{operator} on {target}", "bold")]
        if shown:
            result = table(
                "species", "gene", "value", "speed", "+-", "pairs", "cases", numbers=["speed", "+-", "pairs"],
                fold=["value", "cases"],
            )  # fmt: skip
            for row in shown:
                result.add_row(text(row.species), text(row.gene), text(str(row.value)), *_numbers(row))
            parts.append(result)
        if len(shown) < len(mine):
            hidden = count(len(mine) - len(shown), "value more shows", "values more show")
            parts.append(text(f"{hidden} nothing sure; see them with --all", "dim"))
    if not parts:
        return Group(text("no two timed candidates differ by one gene only: nothing to compare yet"))
    return Group(*parts[1:], text(NOTE, "dim"))


def _numbers(row: EffectRow) -> tuple[Text, Text, Text, Text]:
    style = (WIN if row.percent > 0 else LOSS) if row.significant else "dim"
    half = (row.high - row.low) / 2
    where = f"only {row.family}" if row.family else ""
    return text(f"{row.percent:+.1f} %", style), text(f"{half:.1f} %"), text(str(row.pairs)), text(where)

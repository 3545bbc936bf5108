"""The table of `evo genes`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group

from evo.report import notation
from evo.report.layout import table, text
from evo.report.rows import GeneRow


def genes_table(rows: Sequence[GeneRow], case: str) -> Group:
    """Every place with the choices that change the code, and how many others do not build or change nothing."""
    if not rows:
        return Group(
            text(
                "nothing was found that evo knows how to vary in this source: constants, unroll factors, PTX modifiers"
            ),
            text("declare genes by hand: docs/genome.md says how", "dim"),
        )
    columns = ("line", "gene", "kind", "choices", "do not build", "change nothing")
    result = table(*columns, numbers=("line", "do not build", "change nothing"), fold=("choices",))
    for row in rows:
        result.add_row(
            str(row.line), text(row.gene or "-"), text(row.kind), text(", ".join(map(str, row.choices))),
            str(len(row.refused) or ""), str(len(row.idle) or ""),
        )  # fmt: skip
    lifted = sum(len(row.choices) > 1 for row in rows)
    places = notation.count(len(rows), "place")
    return Group(text(f"{places} can vary, of which {lifted} make a difference, built for case {case}"), "", result)

"""Two candidates side by side."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evo.archive.comparing import CasePair, Comparison
from evo.records import Purpose, Status
from evo.report import notation
from evo.report.layout import FLATTERS, assemble, listed, marked, speed_up, table, text


def comparison_report(found: Comparison) -> Group:
    """Names, genes that differ, times, and the sources' difference."""
    names = [f"{notation.short(each.id)}  {each.species} on {each.target}" for each in (found.one, found.other)]
    parts: list[RenderableType] = [assemble(("A", "bold"), f" {names[0]}\n", ("B", "bold"), f" {names[1]}"), ""]
    parts.append(_genes(found) if found.genes else text("the same genes"))
    if found.cases:
        parts += ["", _times(found)]
        if found.comparable:
            parts.append(text("B over A: by what each gained over the same yardstick, measured beside it", "dim"))
        if not found.comparable:
            parts.append(text("not timed against one yardstick under one protocol: their times do not compare", "dim"))
        elif found.gain is not None:
            parts.append(text(f"B is {notation.ratio(found.gain)} as fast as A, over the cases of both", "bold"))
        if Purpose.SEARCH in (found.purpose, found.other_purpose):
            parts.append(text(FLATTERS, "dim"))
    parts.append("")
    parts.append(listed(found.source, "diff") if found.source else text("the same source"))
    return Group(*parts)


def _genes(found: Comparison) -> Table:
    result = table("gene", "A", "B", fold=["A", "B"])
    for name, values in found.genes.items():
        result.add_row(text(name), *(text("-" if value is None else str(value)) for value in values))
    return result


def _times(found: Comparison) -> Table:
    columns = ("A", "B", "A's ratio", "B's ratio", "B over A")
    result = table("case", *columns, numbers=columns, fold=["case"])
    final = found.purpose is not Purpose.SEARCH, found.other_purpose is not Purpose.SEARCH
    for pair in found.cases:
        if {pair.status, pair.other_status} <= {None, Status.UNCOVERED}:
            continue
        result.add_row(text(pair.case), *_cells(pair, *final))
    return result


def _cells(pair: CasePair, final: bool, other_final: bool) -> list[Text]:
    times = [
        text(notation.time(time_us) if time_us is not None else str(status or "-"))
        for time_us, status in ((pair.time_us, pair.status), (pair.other_time_us, pair.other_status))
    ]
    ratios = [
        text(marked(ratio, final=sure) if ratio is not None else "-")
        for ratio, sure in ((pair.ratio, final), (pair.other_ratio, other_final))
    ]
    if pair.gain is None or pair.low is None or pair.high is None:
        return [*times, *ratios, text("-")]
    return [*times, *ratios, speed_up(pair.gain, pair.low, pair.high, final=final and other_final)]

"""Certified times beside those that others' kernels are on record with."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from evo.certificate import Certificate, Elsewhere
from evo.report import notation
from evo.report.layout import table, text
from evo.report.notation import count


def recorded_parts(certificates: Sequence[Certificate]) -> list[RenderableType]:
    """By case the best on record over the time certified here, then each opponent's spread; nothing without a record.

    Quotients of medians that were taken apart, so they have no interval, and are in no total of a certificate.
    """
    times = {c.case: c.measurement.time_us for each in certificates for c in each.cases if c.measurement}
    best: dict[str, Elsewhere] = {}
    quotients: dict[str, list[float]] = {}
    for entry in sorted({entry for each in certificates for entry in each.recorded}, key=lambda entry: entry.time_us):
        best.setdefault(entry.case, entry)
        quotients.setdefault(entry.opponent, []).append(entry.time_us / times[entry.case])
    if not best:
        return []
    columns = ("case", "on record", "of", "here", "record / here")
    rows = table(*columns, numbers=("on record", "here", "record / here"), fold=("case", "of"))
    for case, time_us in times.items():
        if known := best.get(case):
            theirs, quotient = notation.time(known.time_us), notation.ratio(known.time_us / time_us)
            rows.add_row(text(case), theirs, text(known.opponent), notation.time(time_us), text(quotient))
    ratios = [entry.time_us / times[case] for case, entry in best.items()]
    said = {"the best on record": ratios, **(quotients if len(quotients) > 1 else {})}
    totals = [
        text(f"{name}: {notation.spread(values)}   over {count(len(values), 'case')}") for name, values in said.items()
    ]
    sources = dict.fromkeys(entry.provenance for entry in best.values())
    return [
        "", text("others, as they were recorded elsewhere by the same protocol; not measured here", "bold"), rows,
        *totals,
        text("record / here: of two medians taken apart, so without an interval", "dim"),
        *(text(f"on record: {source}", "dim") for source in sources),
    ]  # fmt: skip

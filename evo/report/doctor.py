"""What `evo doctor` says: a line for every finding, and below what to do about those that are not well."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from evo.fitness.findings import Finding, Health
from evo.report import notation
from evo.report.layout import assemble, table, text, unbroken

STYLES = {Health.OK: "green", Health.WARNING: "yellow", Health.PROBLEM: "red", Health.SKIPPED: "dim"}
LONG = (Health.PROBLEM, Health.WARNING)


def doctor_report(findings: Sequence[Finding]) -> Group:
    """A table for each part in the order found, then problems and warnings in full, then the count."""
    rows = table("part", "what", "state", "seen", fold=["seen"])
    for part, group in groupby(findings, key=lambda finding: finding.part):
        for number, finding in enumerate(group):
            rows.add_row(
                text("" if number else part, "bold"), text(finding.what), text(finding.state, STYLES[finding.state]),
                text(finding.seen, "dim" if finding.state is Health.SKIPPED else ""),
            )  # fmt: skip
    parts: list[RenderableType] = [rows]
    for state in LONG:
        for finding in (finding for finding in findings if finding.state is state):
            parts += ["", *_long(finding)]
    return Group(*parts, "", _count(findings))


def _long(finding: Finding) -> list[RenderableType]:
    head = assemble((f"{finding.state}: ", STYLES[finding.state]), (f"{finding.part}, {finding.what}", "bold"))
    lines: list[RenderableType] = [head, text(f"  {finding.seen}")]
    lines += [text(f"    {detail}", "dim") for detail in finding.details]
    return [*lines, *([unbroken(f"  -> {line}") for line in finding.fix.splitlines()])]


def _count(findings: Sequence[Finding]) -> Text:
    number = {f"{state}s": sum(f.state is state for f in findings) for state in LONG}
    if not any(number.values()):
        return text("all is well", "bold green")
    return text(notation.counts(number), "bold")

"""The report of `evo sanitize`: which tools ran, and what they found."""

from __future__ import annotations

from rich.console import Group, RenderableType

from evo.fitness.cuda.sanitizer import SanitizerReport
from evo.report.layout import table, text, unbroken
from evo.report.notation import count


def sanitizer_report(report: SanitizerReport) -> Group:
    """A headline, a row a finding, and why tools did not run."""
    ran = f"{', '.join(report.tools) or 'no tool'} ran on {', '.join(report.cases)}"
    errors = count(len(report.errors), "kind of error", "kinds of error") if report.errors else "not clean"
    verdict = "clean" if report.clean else errors
    parts: list[RenderableType] = [unbroken(verdict, "bold green" if report.clean else "bold red"), text(ran, "dim")]
    if report.findings:
        rows = table("tool", "level", "kernel", "count", "what", numbers=["count"], fold=["what"])
        for finding in report.findings:
            style = "red" if finding.level == "error" else "yellow"
            rows.add_row(
                text(finding.tool), text(finding.level, style), text(finding.kernel), str(finding.count),
                text(finding.message),
            )  # fmt: skip
        parts += ["", rows]
    parts += [text(f"{tool} did not run: {why}", "yellow") for tool, why in report.missing.items()]
    return Group(*parts)

"""`evo doctor`: this machine, and an operator's gate."""

from __future__ import annotations

from typing import Annotated

import typer

from evo.cli import options


def doctor(
    target: options.Target = "auto",
    operator: Annotated[
        str, typer.Option("--operator", "-o", help="Also try this operator's gate: null kernels, oracle, zoo.")
    ] = "",
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Say what keeps this machine from measuring well, and (with --operator, in minutes) whether a gate can be fooled.
    Exit 1 on a problem."""
    from evo import app
    from evo.cli import output

    with output.doing("looking") as say:
        findings = app.doctor(target, operator, archive, say)
    if as_json:
        output.print_json(findings)
    else:
        from evo.report.doctor import doctor_report

        output.print_table(doctor_report(findings))
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)

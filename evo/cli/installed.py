"""`evo operators`, `evo targets`, `evo baselines`: what is installed, and from which distribution."""

from __future__ import annotations

from typing import Annotated

import typer

from evo.cli import options


def operators(as_json: options.Json = False) -> None:
    """List the operators that can be evolved."""
    from evo import app
    from evo.cli import output

    rows = app.list_operators()
    if as_json:
        output.print_json(rows)
    else:
        from evo.report.tables import operator_table

        output.print_table(operator_table(rows))


def targets(as_json: options.Json = False) -> None:
    """List the targets, and what this machine can do with each."""
    from evo import app
    from evo.cli import output

    rows = app.list_targets()
    if as_json:
        output.print_json(rows)
    else:
        from evo.report.tables import target_table

        output.print_table(target_table(rows))


def baselines(
    operator: Annotated[str | None, typer.Option("--operator", "-o", help="Only this operator's.")] = None,
    target: options.Target = "auto",
    as_json: options.Json = False,
) -> None:
    """List the implementations to beat, and how to install those that are missing."""
    from evo import app
    from evo.cli import output

    rows = app.list_baselines(operator, target)
    if as_json:
        output.print_json(rows)
    else:
        from evo.report.tables import baseline_table

        output.print_table(baseline_table(rows))

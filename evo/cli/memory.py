"""`evo archive effects`, `front` and `minimise`: what earlier runs taught."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evo.cli import options

Csv = Annotated[bool, typer.Option("--csv", help="Print CSV on standard output, and nothing else there.")]
OperatorName = Annotated[str, typer.Option("--operator", "-o", help="`evo operators` lists them.")]


def effects(
    operator: OperatorName,
    target: Annotated[str | None, typer.Option("--target", "-t", help="Only this target.")] = None,
    gene: Annotated[str | None, typer.Option("--gene", "-g", metavar="NAME", help="Only this gene.")] = None,
    case: Annotated[str | None, typer.Option("--case", help="In this case alone.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also values that show nothing sure.")] = False,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
    as_csv: Csv = False,
) -> None:
    """What each gene value does to the speed, from pairs of candidates that differ by nothing else."""
    from evo.app.memory.effects import archive_effects
    from evo.cli import output
    from evo.report.effects import CSV, effects_table

    rows = archive_effects(archive, operator, target, gene, case)
    if as_json:
        output.print_json(rows)
    elif as_csv:
        output.print_csv([[getattr(row, name) for name in CSV] for row in rows], CSV)
    else:
        output.print_table(effects_table(rows, every=every))


def front(
    operator: OperatorName,
    target: Annotated[str, typer.Option("--target", "-t", help="A target's name.")],
    case: Annotated[str | None, typer.Option("--case", help="In this case alone.")] = None,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Candidates that nobody beats in speed, registers, workspace and precision at once."""
    from evo.app.memory.front import archive_front
    from evo.cli import output
    from evo.report.front import front_table

    rows = archive_front(archive, operator, target, case)
    if as_json:
        output.print_json(rows)
    else:
        output.print_table(front_table(rows))


def minimise(
    identity: Annotated[str, typer.Argument(metavar="ID", help="A candidate; any unique prefix.")],
    cases: options.Cases = None,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Fresh processes for every edit.")] = 3,
    pairs: Annotated[int, typer.Option("--pairs", min=4, help="Of each session.")] = 16,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", callback=options.new_file, help="Where the smallest source goes."),
    ] = None,
    archive: options.Archive = "evo.db",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Take out of a winner whatever does not pay, and say what each remaining edit is worth."""
    from evo.app.memory.minimise import minimise as run
    from evo.cli import output
    from evo.report.minimised import minimised_report

    found = run(
        archive, identity, cases=tuple(cases or ()), sessions=sessions, pairs=pairs, out=out, say=output.sayer(quiet)
    )
    if as_json:
        output.print_json(found)
    else:
        output.print_table(minimised_report(found.edits, found.total, found.lines, found.lines_before, found.file))

"""`evo archive ...`: what earlier runs found."""

from __future__ import annotations

from typing import Annotated

import typer

from evo.cli import options

app = typer.Typer(help="Look at what earlier runs found.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="A candidate, run or evaluation; any unique prefix.")]


@app.command()
def top(
    operator: Annotated[str | None, typer.Option("--operator", "-o", help="Only this operator.")] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="Only this target.")] = None,
    case: Annotated[str | None, typer.Option("--case", help="Only this case.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many rows.")] = 20,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """The fastest candidates of each case."""
    from evo import app as evo
    from evo.cli import output

    rows = evo.archive_top(archive, operator, target, case, limit)
    if as_json:
        output.print_json(rows)
    else:
        from evo.report.archive import top_table

        output.print_table(top_table(rows))


@app.command()
def runs(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many runs.")] = 20,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """The runs: state, operator, target, start and command. `evo resume` takes their ids."""
    from evo import app as evo
    from evo.cli import output

    records = evo.archive_runs(archive, limit)
    if as_json:
        output.print_json(records)
    else:
        from evo.report.runs import run_list

        output.print_table(run_list(records))


@app.command()
def show(identity: Id, archive: options.Archive = "evo.db", as_json: options.Json = False) -> None:
    """One candidate in full: genes, cases, source."""
    from evo import app as evo
    from evo.cli import output

    found = evo.archive_show(archive, identity)
    if as_json:
        output.print_json(found)
    else:
        from evo.report.archive import shown_report

        output.print_table(shown_report(found))


@app.command()
def lineage(identity: Id, archive: options.Archive = "evo.db", as_json: options.Json = False) -> None:
    """Where a candidate comes from: its parents, theirs, and who proposed each."""
    from evo import app as evo
    from evo.cli import output

    nodes = evo.archive_lineage(archive, identity)
    if as_json:
        output.print_json(nodes)
    else:
        from evo.report.archive import lineage_tree

        output.print_table(lineage_tree(nodes))

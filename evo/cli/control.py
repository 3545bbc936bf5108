"""`evo status`, `inject`, `ban`, `stop`: speak to a run that goes on in another process."""

from __future__ import annotations

from typing import Annotated

import typer

from evo.cli import options

Run = Annotated[str, typer.Option("--run", metavar="RUN", help="By default the one that is going on.")]


def status(
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="By default the one that goes on, or the newest.")] = "",
    same: Annotated[str, typer.Option("--run", metavar="RUN", help="The same, as other commands have it.")] = "",
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """How a run stands: what it has spent, found and rejected, and what waits."""
    from evo import app
    from evo.cli import output

    standing = app.status(archive, run or same)
    if as_json:
        output.print_json(standing)
    else:
        from evo.report.standing import standing_report

        output.print_table(standing_report(standing))


def inject(
    file: options.File,
    run: Run = "",
    gene: options.Genes = None,
    note: Annotated[str, typer.Option("--note", help="What it is and why it should be good.")] = "",
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Hand a genome file to a run that is going on; it is evaluated next."""
    genes = options.genes(gene)
    from evo import app
    from evo.cli import output

    told = app.inject(archive, file, run=run, genes=genes, note=note)
    if as_json:
        output.print_json(told)
    else:
        from evo.cli.asking import told_line

        output.echo(told_line(told))


def ban(
    gene: Annotated[str, typer.Argument(metavar="GENE=VALUE", help="A gene and the value that it shall not have.")],
    run: Run = "",
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Have a run propose nothing more with a gene value. What was measured stays."""
    ((name, value),) = options.genes([gene]).items()
    from evo import app
    from evo.cli import output

    banned = app.ban(archive, name, value, run=run)
    if as_json:
        output.print_json({"run": banned, "gene": name, "value": value})
    else:
        output.echo(f"run {banned} will not propose {name}={value} any more")


def stop(run: Run = "", archive: options.Archive = "evo.db", as_json: options.Json = False) -> None:
    """End a run that is going on, with its table; `evo resume` goes on with it."""
    from evo import app
    from evo.cli import output

    stopped = app.stop(archive, run=run)
    if as_json:
        output.print_json({"run": stopped})
    else:
        output.echo(f"run {stopped} was asked to stop")

"""`evo sanitize`: NVIDIA's compute-sanitizer on one candidate."""

from __future__ import annotations

from typing import Annotated

import typer

from evo.cli import options


def sanitize(
    identity: Annotated[str, typer.Argument(metavar="FILE|ID", help="A genome file, or a candidate of the archive.")],
    tool: Annotated[
        list[str] | None,
        typer.Option("--tool", metavar="NAME", help="memcheck, racecheck, initcheck or synccheck. Default: all."),
    ] = None,
    target: options.Target = "auto",
    gene: options.Genes = None,
    case: options.Cases = None,
    limit: Annotated[float, typer.Option("--limit", min=1, help="Seconds for each tool.")] = 120.0,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Look for races, uninitialised reads and accesses out of bounds. Exit 1 for an error or a tool that fails."""
    genes = options.genes(gene)
    from evo.app.trust.sanitize import sanitize as run
    from evo.cli import output

    report = run(
        identity, target=target, genes=genes, cases=tuple(case or ()), tools=tuple(tool or ()), limit_s=limit,
        archive=archive,
    )  # fmt: skip
    if as_json:
        output.print_json(report)
    else:
        from evo.report.sanitizer import sanitizer_report

        output.print_table(sanitizer_report(report))
    if not report.clean:
        raise typer.Exit(1)

"""`evo genes FILE`: what can vary in a source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evo.cli import options


def genes(
    file: options.File,
    target: options.Target = "auto",
    case: options.Cases = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", callback=options.new_file, help="Write the genome with its new genes there."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Find what can vary in a genome's source, and prove it by building every choice. Needs no device."""
    from evo import app
    from evo.cli import output

    with output.doing("building") as say:
        found = app.discover_genes(file, target=target, cases=tuple(case or ()), say=say)
    if out is not None:
        out.write_text(found.source)
    if as_json:
        output.print_json(found)
    else:
        from evo.report.genes import genes_table

        output.print_table(genes_table(found.rows, found.case))

"""`evo check` and `evo bench`: one genome file, with no run and no archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from evo.cli import options

if TYPE_CHECKING:
    from evo.records import Evaluation


def check(
    file: options.File,
    target: options.Target = "auto",
    gene: options.Genes = None,
    case: options.Cases = None,
    build_only: Annotated[bool, typer.Option("--build-only", help="Build and inspect; needs no device.")] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Build one genome file, inspect its machine code and check its results against the truth."""
    genes = options.genes(gene)
    from evo import app
    from evo.cli import output

    evaluation = app.check(
        file, target=target, genes=genes, cases=tuple(case or ()), build_only=build_only, say=output.sayer(quiet)
    )
    _show(evaluation, as_json)


def bench(
    file: options.File,
    target: options.Target = "auto",
    gene: options.Genes = None,
    case: options.Cases = None,
    against: Annotated[
        str, typer.Option("--against", metavar="NAME", help="A baseline or a genome file. Default: the yardstick.")
    ] = "",
    protocol: options.Protocol = "",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Check one genome file, then time it in pairs against an opponent."""
    genes = options.genes(gene)
    from evo import app
    from evo.cli import output

    evaluation = app.bench(
        file, target=target, genes=genes, cases=tuple(case or ()), against=against, protocol=protocol,
        say=output.sayer(quiet),
    )  # fmt: skip
    _show(evaluation, as_json)


def _show(evaluation: Evaluation, as_json: bool) -> None:
    from evo.cli import output
    from evo.records import Status

    if as_json:
        output.print_json(evaluation)
    else:
        from evo.report.evaluation import evaluation_report

        output.print_table(evaluation_report(evaluation))
    if evaluation.status is not Status.OK:
        raise typer.Exit(1)

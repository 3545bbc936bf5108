"""The command tree, and what becomes of errors."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from evo.cli import (
    agents,
    archive,
    asking,
    control,
    doctor,
    genes,
    genome,
    installed,
    lessons,
    mcp,
    memory,
    output,
    run,
    sanitize,
    trust,
)
from evo.errors import EvoError


class Verbs(TyperGroup):
    """Shows a person's mistake as a message and its fix, and that Ctrl-C arrived; a bug keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EvoError as error:
            sys.stdout.flush()
            output.echo(f"error: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt as interrupt:  # its text, if any, says how to go on
            sys.stdout.flush()
            output.echo(": ".join(filter(None, ("interrupted", str(interrupt)))), err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Verbs,
    help="Makes GPU kernels better by evolution: proposes, builds, checks and times candidates, keeps the best.",
    epilog="Start here: evo run --operator rmsnorm",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from importlib import metadata

        try:
            output.echo(f"evo {metadata.version('evo-kernels')}")
        except metadata.PackageNotFoundError:
            output.echo("evo (not installed)")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Only carries the options that belong to no command; its help is the app's."""


app.command(rich_help_panel="Evolve")(run.run)
app.command(rich_help_panel="Evolve")(run.resume)
app.command(rich_help_panel="Evolve")(control.status)
app.command(rich_help_panel="Evolve")(control.stop)
app.command(rich_help_panel="Evolve")(control.inject)
app.command(rich_help_panel="Evolve")(control.ban)
app.command(rich_help_panel="Ask and tell")(asking.ask)
app.command(rich_help_panel="Ask and tell")(asking.tell)
app.command(rich_help_panel="Ask and tell")(asking.evaluate)
app.command(rich_help_panel="Ask and tell")(mcp.mcp)
app.command(rich_help_panel="Agents")(agents.prompt)
app.command(rich_help_panel="Agents")(agents.approve)
app.command(rich_help_panel="Agents")(agents.veto)
app.command(rich_help_panel="One genome file")(genome.check)
app.command(rich_help_panel="One genome file")(genome.bench)
app.command(rich_help_panel="One genome file")(genes.genes)
app.command(rich_help_panel="What is installed")(doctor.doctor)
app.command(rich_help_panel="Trust")(trust.certify)
app.command(rich_help_panel="Trust")(trust.replay)
app.command(rich_help_panel="Trust")(sanitize.sanitize)
app.command(rich_help_panel="What is installed")(installed.operators)
app.command(rich_help_panel="What is installed")(installed.targets)
app.command(rich_help_panel="What is installed")(installed.baselines)
archive.app.command()(memory.effects)
archive.app.command()(memory.front)
archive.app.command()(memory.minimise)
app.add_typer(lessons.app, name="lessons", rich_help_panel="What was found")
app.add_typer(archive.app, name="archive", rich_help_panel="What was found")

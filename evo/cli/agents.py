"""`evo prompt`, `evo approve` and `evo veto`: what agents are sent, and what a person says to their plans."""

from __future__ import annotations

from typing import Annotated

import typer

from evo.cli import options

Subject = Annotated[str, typer.Argument(metavar="[NAME]", help="A direction or a candidate; any unique beginning.")]
Run = Annotated[str, typer.Option("--run", metavar="RUN", help="The run, by the beginning of its id; else the newest.")]
Reason = Annotated[str, typer.Option("--reason", help="For the record.")]


def prompt(
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", help="Its id; any unique beginning.")],
    prompts: options.Prompts = "",
    profile: Annotated[bool, typer.Option("--profile", help="With counters of Nsight Compute, taken now.")] = False,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Print exactly what a model would be sent to improve a candidate."""
    from evo import app
    from evo.cli import output

    request = app.prompt(archive, candidate, prompts, profiled=profile)
    if as_json:
        output.print_json(request)
    else:
        output.exact(request.system)
        output.exact(request.messages[0].text, nl=False)


def approve(
    subject: Subject = "",
    run: Run = "",
    reason: Reason = "",
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Approve a plan or a finalist of a run with --approve; without a name, list what waits."""
    from evo import app
    from evo.cli import output
    from evo.report.agents import waiting_table

    found = [app.rule(archive, run, subject, "approve", reason)] if subject else app.asked_for(archive, run)
    if as_json:
        output.print_json(found)
    else:
        output.print_table(waiting_table(found))


def veto(
    subject: Annotated[str, typer.Argument(metavar="NAME", help="A direction or a candidate; any unique beginning.")],
    run: Run = "",
    reason: Reason = "",
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Turn down a plan or a finalist of a run with --approve."""
    from evo import app
    from evo.cli import output
    from evo.report.agents import waiting_table

    found = [app.rule(archive, run, subject, "veto", reason)]
    if as_json:
        output.print_json(found)
    else:
        output.print_table(waiting_table(found))

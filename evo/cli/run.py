"""`evo run` and `evo resume`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evo.cli import options

if TYPE_CHECKING:
    from evo.app import Settings
    from evo.engine.result import Progress, Result

Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture",
        metavar="FILE.svg",
        callback=options.new_file,
        help="Also draw the end of the run into an SVG file.",
    ),
]


def run(
    operator: Annotated[str, typer.Option("--operator", "-o", help="What to evolve; `evo operators` lists them.")],
    target: options.Target = "auto",
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            "-b",
            metavar="KEY=N,...",
            help="evaluations, minutes, gpu_minutes, tokens, usd; stall: evaluations without a gain.",
        ),
    ] = "minutes=1",
    cases: Annotated[
        list[str] | None,
        typer.Option(
            "--cases", metavar="PATTERN", help="Only cases whose name matches, as in shells; may be repeated."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the search's own random numbers.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not start from what the archive holds.")] = False,
    protocol: options.Protocol = "",
    holdout: Annotated[
        bool, typer.Option("--holdout", help="Check and time the winners on the operator's hold-out cases too.")
    ] = False,
    llm: options.Llm = None,
    approve: Annotated[
        str, typer.Option("--approve", metavar="WHAT", help="plan, finalists: wait for a person; see evo approve.")
    ] = "",
    prompts: options.Prompts = "",
    agents: Annotated[int, typer.Option("--agents", min=1, help="Jobs in flight, of each model.")] = 4,
    archive: options.Archive = "evo.db",
    picture: Picture = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Evolve an operator's kernels on a target, and report the best per case. Ctrl-C ends early, with the table."""
    _expect_svg(picture)
    from evo import app

    models = app.AgentSettings(tuple(llm or ()), tuple(filter(None, approve.split(","))), prompts, agents)
    settings = app.Settings(
        operator=operator,
        target=target,
        budget=budget,
        cases=tuple(cases or ()),
        seed=seed,
        fresh=fresh,
        archive=archive,
        protocol=protocol,
        holdout=holdout,
        agents=models,
    )
    if models.replayed:
        _replay(settings, as_json=as_json)
        return
    _follow(lambda observe: app.run(settings, observe), quiet=quiet, as_json=as_json, picture=picture)


def _replay(settings: Settings, *, as_json: bool) -> None:
    """Exit 1 when the run takes another way than its record."""
    from evo import app
    from evo.cli import output
    from evo.report.agents import replayed_report

    done = app.replay_run(settings)
    if as_json:
        output.print_json(done)
    else:
        output.print_table(replayed_report(done))
    if not done.same:
        raise typer.Exit(1)


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, any unique prefix; see: evo archive runs.")],
    archive: options.Archive = "evo.db",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Go on with a run that was stopped or killed."""
    from evo import app

    _follow(lambda observe: app.resume(run, archive, observe), quiet=quiet, as_json=as_json)


def _expect_svg(picture: Path | None) -> None:
    """Refuses a picture that could not be drawn before the run, not after it."""
    if picture is None:
        return
    if picture.suffix.lower() != ".svg":
        raise typer.BadParameter(f"{str(picture)!r} does not end in .svg", param_hint="--picture")


def _follow(
    start: Callable[[Callable[[Progress], None]], Result], *, quiet: bool, as_json: bool, picture: Path | None = None
) -> None:
    """Runs with live progress on standard error, then prints the result. Exit 1 when nothing was found."""
    from evo.cli import output
    from evo.report.live import watch
    from evo.report.summary import summary

    with watch(output.progress_console(), quiet=quiet) as observer:
        result = start(observer)
    if as_json:
        output.print_json(result)
    else:
        output.print_table(summary(result))
    if picture is not None:
        from evo.report.picture import draw

        draw(picture, f"evo run --operator {result.operator}", observer.last, result)
    if not result.winner:
        raise typer.Exit(1)

"""`evo lessons ...`: what was learned from all runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from evo.cli import options
from evo.lesson import Standing

app = typer.Typer(help="What was learned, with its evidence.", invoke_without_command=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="A lesson; any unique prefix.")]
Operator = Annotated[str | None, typer.Option("--operator", "-o", help="Only of this operator.")]
Target = Annotated[str | None, typer.Option("--target", "-t", help="Only of this target.")]
ADD_SCOPE = "Where it holds; everywhere when left out."


class Direction(StrEnum):
    faster = "faster"
    slower = "slower"


@app.callback()
def lessons(
    context: typer.Context,
    operator: Operator = None,
    target: Target = None,
    status: Annotated[Standing | None, typer.Option("--status", help="Only those that stand so.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=options.MOST, help="At most so many rows.")] = 50,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """List the lessons, the weightiest first."""
    if context.invoked_subcommand is not None:
        return
    from evo.app.memory.lessons import list_lessons
    from evo.cli import output

    found = list_lessons(archive, operator, target, str(status) if status else None, limit)
    if as_json:
        output.print_json(found)
    else:
        from evo.report.lessons import lesson_table

        output.print_table(lesson_table(found))


@app.command()
def show(identity: Id, archive: options.Archive = "evo.db", as_json: options.Json = False) -> None:
    """One lesson with its evidence, each row of which `evo archive show` opens."""
    from evo.app.memory.lessons import show_lesson
    from evo.cli import output

    found = show_lesson(archive, identity)
    if as_json:
        output.print_json(found)
    else:
        from evo.report.lessons import lesson_report

        output.print_table(lesson_report(found, archive))


@app.command()
def add(
    claim: Annotated[str, typer.Argument(metavar="TEXT", help="What you know, in a sentence.")],
    operator: Annotated[str, typer.Option("--operator", "-o", help=ADD_SCOPE)] = "",
    target: Annotated[str, typer.Option("--target", "-t", help=ADD_SCOPE)] = "",
    species: Annotated[str, typer.Option("--species", help=ADD_SCOPE)] = "",
    family: Annotated[str, typer.Option("--family", help='The cases it holds for, such as "N >= 16384".')] = "",
    gene: options.Genes = None,
    direction: Annotated[
        Direction | None, typer.Option("--direction", help="What the genes do: then measurements will test it.")
    ] = None,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Write down a lesson of your own; it is marked as a person's."""
    from evo.app.memory.lessons import add_lesson
    from evo.cli import output
    from evo.lesson import Scope
    from evo.report.lessons import lesson_table

    sign = {Direction.faster: 1, Direction.slower: -1, None: 0}[direction]
    scope = Scope(operator, target, species, family)
    lesson = add_lesson(archive, claim, scope, genes=options.genes(gene), direction=sign)
    if as_json:
        output.print_json(lesson)
    else:
        output.print_table(lesson_table([lesson]))


@app.command()
def retire(
    identity: Id,
    reason: Annotated[str, typer.Option("--reason", help="Why; it stays with the lesson.")],
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Take a lesson out of use; it stays readable."""
    from evo.app.memory.lessons import retire_lesson
    from evo.cli import output
    from evo.report.lessons import lesson_table

    lesson = retire_lesson(archive, identity, reason)
    if as_json:
        output.print_json(lesson)
    else:
        output.print_table(lesson_table([lesson]))


@app.command()
def learn(
    operator: Operator = None,
    target: Target = None,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Learn anew from all that the archive holds; every run does so at its end."""
    from evo.app.memory.lessons import learn_lessons
    from evo.cli import output

    learned = learn_lessons(archive, operator, target)
    if as_json:
        output.print_json(learned)
    else:
        from evo.report.lessons import learned_lines

        output.print_table(learned_lines(learned))


@app.command("export")
def export_(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Standard output when left out.")] = None,
    operator: Operator = None,
    target: Target = None,
    archive: options.Archive = "evo.db",
) -> None:
    """Write the lessons with their evidence as JSON, for another team."""
    from evo.app.memory.lessons import export_lessons
    from evo.cli import output
    from evo.errors import UsageError
    from evo.report.printable import json_text

    content = json_text(export_lessons(archive, operator, target)) + "\n"
    if file is None:
        output.echo(content, nl=False)
        return
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}", fix="name a file that you may write") from error


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `evo lessons export` wrote.")],
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Take in another team's lessons: ids stay, evidence is united, and doing it twice changes nothing."""
    from evo.app.memory.lessons import import_lessons
    from evo.cli import output
    from evo.report.lessons import lesson_table

    found = import_lessons(archive, file)
    if as_json:
        output.print_json(found)
    else:
        output.print_table(lesson_table(found))

"""`evo archive check | upgrade | vacuum | merge | backup`: care of the archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evo.cli import options


def check(archive: options.Archive = "evo.db", as_json: options.Json = False, as_csv: options.Csv = False) -> None:
    """Whether the archive is whole: file, references, orphans, every blob. Exit code 1 when it is damaged."""
    from evo import app as evo
    from evo.cli import output

    problems = evo.archive_check(archive)
    if as_json or as_csv:
        (output.print_json if as_json else output.print_csv)(problems)
    else:
        from evo.report.answers import problem_table

        output.print_table(problem_table(problems))
    if any(problem.harm == "damage" for problem in problems):
        raise typer.Exit(1)


def upgrade(archive: options.Archive = "evo.db") -> None:
    """Bring an archive of an older evo up to date. After that an older evo cannot read it."""
    from evo import app as evo
    from evo.cli import output

    output.echo(f"{archive} has schema {evo.archive_upgrade(archive)}")


def vacuum(archive: options.Archive = "evo.db", as_json: options.Json = False) -> None:
    """Remove what nothing refers to, and make the file as small as its contents. Takes as much free disk meanwhile."""
    from evo import app as evo
    from evo.cli import output
    from evo.report import notation

    done = evo.archive_vacuum(archive)
    if as_json:
        output.print_json(done)
    else:
        sources, builds = notation.count(done.sources, "source"), notation.count(done.builds, "build")
        sizes = f"{notation.size(done.before_bytes)} -> {notation.size(done.after_bytes)}"
        output.echo(f"{sizes}; removed {sources} and {builds} that nothing referred to")


def merge(
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The archive to take in; it stays as it is.")],
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Take all of another archive into this one. Nothing is lost or doubled; merging again changes nothing."""
    from evo import app as evo
    from evo.cli import output
    from evo.wording import count

    done = evo.archive_merge(archive, other)
    if as_json:
        output.print_json(done)
    else:
        names = ("run", "candidate", "proposal", "evaluation", "lesson")
        output.echo("new: " + ", ".join(count(getattr(done, f"{name}s"), name) for name in names))
        output.echo(f"gone on since: {done.advanced}")


def backup(
    to: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Copy the archive into a new SQLite file, while runs go on writing to it."""
    from evo import app as evo
    from evo.cli import output
    from evo.report import notation

    size = evo.archive_backup(archive, to)
    if as_json:
        output.print_json({"file": str(to), "bytes": size})
    else:
        output.echo(f"{to}: {notation.size(size)}")

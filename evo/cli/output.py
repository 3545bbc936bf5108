"""Where output goes: data and tables to standard output, progress and errors to standard error."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, RenderableType


def echo(content: str, *, err: bool = False, nl: bool = True) -> None:
    """Text for people, whoever wrote it."""
    import typer

    from evo.report.printable import printable

    typer.echo(printable(content), err=err, nl=nl)


def exact(content: str, *, nl: bool = True) -> None:
    """Text to be taken over as it is, save on a terminal, which would obey what is hidden in it."""
    import typer

    if sys.stdout.isatty():
        echo(content, nl=nl)
    else:
        typer.echo(content, nl=nl)


def print_json(data: Any) -> None:
    """One JSON object (of a record) or array (of records) on standard output, and nothing else there."""
    from evo.codec import dumps
    from evo.report.printable import json_text

    value = [json.loads(dumps(item)) for item in data] if isinstance(data, list | tuple) else json.loads(dumps(data))
    sys.stdout.write(json_text(value) + "\n")


def print_csv(records: Sequence[Any], columns: Sequence[str] = ()) -> None:
    """Records of one kind as CSV with a head; `columns` names those of rows that are no records. What has parts is
    JSON."""
    import csv

    from evo.codec import plain

    rows = [plain(record) for record in records]
    rows = [dict(zip(columns, row, strict=True)) if columns else row for row in rows]
    names = list(columns) or list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if names:
        writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])


def _cell(value: Any) -> Any:
    """Strings as they are, save on a terminal, which would obey what is hidden in them."""
    from evo.report.printable import printable

    cell = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
    return printable(cell) if isinstance(cell, str) and sys.stdout.isatty() else cell


def print_table(*parts: RenderableType) -> None:
    """Renders to standard output, as wide as the terminal (80 columns where there is none)."""
    from rich.console import Console

    console = Console()
    for part in parts:
        console.print(part, crop=False)


def progress_console() -> Console:
    """Standard error, so that progress never mixes with data."""
    from rich.console import Console

    return Console(stderr=True)


def sayer(quiet: bool) -> Callable[[str], None]:
    """Prints what is being done, a line each on standard error."""
    from evo.report.layout import text

    console = progress_console()
    return lambda message: None if quiet else console.print(text(message, "dim"), soft_wrap=True)


@contextmanager
def doing(what: str) -> Iterator[Callable[[str], None]]:
    """What is being done: one line that changes on a terminal, else a line each on standard error."""
    from evo.report.layout import text

    console = progress_console()
    if console.is_terminal:
        with console.status(what) as status:
            yield lambda message: status.update(text(message))
    else:
        yield sayer(quiet=False)

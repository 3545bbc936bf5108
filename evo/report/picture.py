"""A run as a picture: how it ended, as one SVG file that loads nothing from elsewhere."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from evo.engine.result import Progress, Result
from evo.errors import UsageError
from evo.report.layout import text
from evo.report.live import progress_view
from evo.report.summary import summary

WIDTH = 84  # columns
FONT_FACES = re.compile(r"@font-face\s*\{[^}]*\}\s*")  # rich's template fetches a web font; any monospace font will do


def draw(path: Path, command: str, progress: Progress | None, result: Result) -> None:
    """Writes the command, the last progress (without cases: they follow) and the summary.

    Raises `UsageError` when the file cannot be written.
    """
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text(f"$ {command}", "bold"))
    if progress is not None:
        console.print(progress_view(progress, rows=0))
    console.print()
    console.print(summary(result))
    drawing = FONT_FACES.sub("", console.export_svg(title="evo", theme=MONOKAI, unique_id="evo"))
    try:
        path.write_text(drawing, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write the picture {path}: {error.strerror}", fix="name a file in a folder that you may write to"
        ) from error

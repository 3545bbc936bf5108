"""Where output goes: data and tables to standard output, progress and errors to standard error."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def print_json(data: Any) -> None:
    """One JSON object (of a record) or array (of records) on standard output, and nothing else there."""
    from evo.codec import dumps

    value = [json.loads(dumps(item)) for item in data] if isinstance(data, list | tuple) else json.loads(dumps(data))
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


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

"""The one look of all tables: no boxes, a rule under the head, numbers to the right, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table
from rich.text import Text

LOSS, WIN, EVEN = "red", "green", "default"
LIGHT = "light: share of the roofline at the copy rate measured on this device"


def table(*columns: str, title: str = "", numbers: Iterable[str] = (), fold: Iterable[str] = ()) -> Table:
    """An empty table. Columns in `numbers` are right-aligned and never wrapped; those in `fold` give way first."""
    result = Table(
        box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False,
        show_edge=False, padding=(0, 1, 0, 0), header_style="bold",
    )  # fmt: skip
    right, soft = set(numbers), set(fold)
    for name in columns:
        result.add_column(name, justify="right" if name in right else "left", no_wrap=name not in soft, overflow="fold")
    return result


def text(content: str, style: str = "") -> Text:
    """Literal text: brackets in it are not markup."""
    return Text(content, style=style)


def command_line(command: str) -> Text:
    """A command to copy: never broken, however long."""
    return Text(f"  {command}", no_wrap=True, overflow="ignore")


def verdict(low: float, high: float) -> str:
    """The style of a speed-up: a win or a loss only where the whole interval says so."""
    if low > 1.0:
        return WIN
    return LOSS if high < 1.0 else EVEN

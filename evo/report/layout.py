"""The one look of all tables: no boxes, a rule under the head, numbers to the right, readable at 80 columns.

Reports make their texts here and nowhere else, since here they are made `printable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import StyleType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from evo.report import notation
from evo.report.printable import one_line, printable

LOSS, WIN, EVEN = "red", "green", "default"
LIGHT = "light: share of the roofline at the copy rate measured on this device"
QUOTIENT = "speed-up: of interleaved pairs, so not the quotient of the two times, which are medians of their own"
NOT_FINAL = "~"
FLATTERS = f"{NOT_FINAL} the search's own number: it may flatter"


class Verbatim:
    """Lines as they came, however wide: tabs, blanks and carets stay in place. Not for tables."""

    def __init__(self, content: str) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(printable(self.content) + "\n")


class Rows(Table):
    """A table whose cells are literal where they are plain strings."""

    def add_row(
        self, *renderables: RenderableType | None, style: StyleType | None = None, end_section: bool = False
    ) -> None:
        cells = (text(cell) if isinstance(cell, str) else cell for cell in renderables)
        super().add_row(*cells, style=style, end_section=end_section)


def table(*columns: str, title: str = "", numbers: Iterable[str] = (), fold: Iterable[str] = ()) -> Table:
    """An empty table. Columns in `numbers` are right-aligned and never wrapped; those in `fold` give way first."""
    result = Rows(
        box=box.SIMPLE_HEAD, title=text(title) if title else None, title_justify="left", title_style="bold",
        pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="bold",
    )  # fmt: skip
    right, soft = set(numbers), set(fold)
    for name in columns:
        justify: JustifyMethod = "right" if name in right else "left"
        result.add_column(text(name), justify=justify, no_wrap=name not in soft, overflow="fold")
    return result


def listing(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Text]:
    """The head, a rule and a line for every row, aligned like a table's: for rows that other lines stand between, or
    whose last cell is cut where the terminal ends."""
    written = [[one_line(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*written, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in written]
    rule = Text("\u2500" * max(map(len, lines)), no_wrap=True, overflow="crop")
    top, *below = (Text(line, no_wrap=True, overflow="ellipsis") for line in lines)
    top.stylize("bold")
    return [top, rule, *below]


def text(content: str, style: str = "") -> Text:
    """Literal text: brackets in it are not markup."""
    return Text(printable(content), style=style)


def assemble(*parts: str | tuple[str, str], end: str = "\n") -> Text:
    """Literal text of several styles, each part alone or with its style."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((printable(content), style) for content, style in pairs), end=end)


def unbroken(content: str, style: str = "") -> Text:
    """Literal text with what is to be copied whole, such as paths: never folded, however long."""
    return Text(printable(content), style=style, no_wrap=True, overflow="ignore")


def listed(source: str, lexer: str) -> Syntax:
    """A source in the colours of its language."""
    return Syntax(printable(source), lexer, background_color="default", word_wrap=True)


def command_line(command: str, style: str = "") -> Text:
    """A command to copy."""
    return unbroken(f"  {command}", style)


def speed_up(ratio: float, low: float, high: float, *, final: bool = True) -> Text:
    """A ratio with its interval, in the colour of its verdict; marked unless it was measured after the search."""
    written = notation.ratio_interval(ratio, low, high)
    return text(written if final else f"{NOT_FINAL} {written}", verdict(low, high))


def marked(ratio: float, *, final: bool) -> str:
    """A ratio alone, marked as `speed_up` does."""
    written = notation.ratio(ratio)
    return written if final else f"{NOT_FINAL} {written}"


def verdict(low: float, high: float) -> str:
    """The style of a speed-up: a win or a loss only where the whole interval says so."""
    if low > 1.0:
        return WIN
    return LOSS if high < 1.0 else EVEN

"""Progress of a run while it goes: a live display on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from evo.engine.result import Progress
from evo.report import notation
from evo.report.layout import assemble, speed_up, table, text

LINE_EVERY_S = 5.0
FRAME_LINES = 10  # of the display that are not rows of cases
CLOCK = re.compile(r"\d+:\d\d")


class Watch:
    """Called with each `Progress`, from one thread. This one shows nothing; it remembers the last one."""

    def __init__(self) -> None:
        self.last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        self.last = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing was started."""


class Lines(Watch):
    """One plain line every few seconds, and at once when the phase, the message or the step changes."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._console = console
        self._clock = clock
        self._due = float("-inf")

    def __call__(self, progress: Progress) -> None:
        before, self.last = self.last, progress
        if progress.message and (before is None or before.message != progress.message):
            self._print(progress.message)
        now = self._clock()
        if progress.step and (before is None or before.step != progress.step):
            self._due = now + LINE_EVERY_S
            self._print(f"[{notation.duration(progress.seconds)}] {progress.step}")
        if now >= self._due or before is None or before.phase != progress.phase:
            self._due = now + LINE_EVERY_S
            self._print(progress_line(progress))

    def _print(self, line: str) -> None:
        self._console.print(text(line), soft_wrap=True)


class Terminal(Watch):
    """A display that is redrawn in place and leaves nothing behind but the messages."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._live = Live(console=console, transient=True, refresh_per_second=8, get_renderable=self._render)

    def __call__(self, progress: Progress) -> None:
        before, self.last = self.last, progress
        if progress.message and (before is None or before.message != progress.message):
            self._live.console.print(text(progress.message))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        if self.last is None:
            return text("preparing ...")
        return progress_view(self.last, rows=max(3, self._live.console.height - FRAME_LINES))


def watch(console: Console, *, quiet: bool = False) -> Watch:
    """The display that fits the console."""
    if quiet:
        return Watch()
    return Terminal(console) if console.is_terminal else Lines(console)


def progress_line(progress: Progress) -> str:
    """`[12 s] search: 123 evaluated, ...`: all of a snapshot in one line of plain text."""
    duplicates = f", {notation.count(progress.duplicates, 'duplicate')}" if progress.duplicates else ""
    rejected = f"; rejected: {notation.counts(progress.rejected)}" if progress.rejected else ""
    best = f"; {notation.spread(b.ratio for b in progress.best.values())}" if progress.best else ""
    left = f"; {progress.step or _left(progress)}"
    return (
        f"[{notation.duration(progress.seconds)}] {progress.phase}: {progress.evaluated} evaluated{duplicates}, "
        f"{progress.in_flight} in flight{rejected}{best}{left}"
    )


def progress_view(progress: Progress, rows: int) -> Group:
    """The live display, with at most `rows` cases (0: without their table)."""
    head = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(total=1.0, completed=min(1.0, max(0.0, progress.fraction)), width=30)
    head.add_row(text(progress.phase, "bold"), bar, text(_left(progress)))
    duplicates = notation.count(progress.duplicates, "duplicate")
    totals = f"{progress.evaluated} evaluated   {duplicates}   {progress.in_flight} in flight"
    parts: list[RenderableType] = [
        head,
        text(f"{totals}   {notation.duration(progress.seconds)}"),
        assemble(("rejected: ", "dim"), notation.counts(progress.rejected)),
    ]
    parts += [text(progress.step)] if progress.step else []
    if progress.best and rows:
        parts += ["", _best_table(progress, rows), text(notation.spread(b.ratio for b in progress.best.values()))]
    return Group(*parts)


def _left(progress: Progress) -> str:
    """The engine says "0:48", "120 evaluations" or "no limit". Part of the minutes is kept back for the finals, so the
    time left is said to be the search's."""
    if progress.phase == "finals":
        return "the best are measured again"
    if progress.left == "no limit":
        return progress.left
    return f"{progress.left} of the search left" if CLOCK.fullmatch(progress.left) else f"{progress.left} left"


def _best_table(progress: Progress, rows: int) -> Table:
    result = table("case", "time", "speed-up", "species", numbers=["time", "speed-up"], fold=["species", "case"])
    for case, best in list(progress.best.items())[:rows]:
        result.add_row(
            text(case), notation.time(best.time_us), speed_up(best.ratio, best.low, best.high), text(best.species)
        )
    hidden = len(progress.best) - rows
    if hidden > 0:
        result.add_row(text(f"and {hidden} more", "dim"))
    return result

"""The final table of a run: wins and losses alike, and where everything lies."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evo.engine.result import Result
from evo.records import BLAMELESS
from evo.report import notation
from evo.report.agents import arms_table
from evo.report.layout import (
    FLATTERS,
    LIGHT,
    NOT_FINAL,
    QUOTIENT,
    assemble,
    command_line,
    speed_up,
    table,
    text,
    unbroken,
)

DEFAULT_ARCHIVE = "evo.db"
INTERRUPTED = "interrupted"  # the engine's note on a run that was asked to stop


def summary(result: Result) -> Group:
    """Per case the yardstick and the portfolio's best, who won with which genes, what was rejected, what to do next."""
    ranks = _ranks(result)
    title = f"{result.operator} on {result.target} ({result.device}), yardstick: {result.yardstick}"
    parts: list[RenderableType] = [text(title, "bold"), "", _cases(result, ranks), "", _total(result)]
    if any(case.candidate and not case.final for case in result.cases):
        parts.append(text(FLATTERS, "dim"))
    if ranks:
        parts.append(text(QUOTIENT, "dim"))
    if any(case.light_share for case in result.cases):
        parts.append(text(LIGHT, "dim"))
    parts += _searched(result)
    if ranks:
        parts += ["", _winners(result, ranks)]
    if result.holdout:
        parts += ["", text("hold-out cases, which the search never saw", "bold"), _holdout(result, ranks)]
    if result.arms:
        parts += ["", text("who proposed, and how the budget is shared now", "bold"), arms_table(result.arms)]
    duplicates = notation.count(result.duplicates, "duplicate")
    spent = f"{result.evaluated} evaluated, {duplicates}, in {notation.duration(result.seconds)}"
    parts += ["", text(spent), assemble("rejected: ", notation.counts(result.rejected))]
    parts += [assemble(("note: ", "yellow"), note) for note in result.notes]
    parts += [_stored(result), "", _next(result)]
    return Group(*parts)


def _ranks(result: Result) -> dict[str, str]:
    """A letter for every candidate of the portfolio, in the order of the cases: A, B, ... Z, AA, AB, ..."""
    ranks: dict[str, str] = {}
    for case in result.cases:
        if case.candidate and case.candidate not in ranks:
            tens, ones = divmod(len(ranks), 26)
            ranks[case.candidate] = (chr(64 + tens) if tens else "") + chr(65 + ones)
    return ranks


def _cases(result: Result, ranks: dict[str, str]) -> Table:
    columns = ("case", "yardstick", "best", "speed-up", "light", "by")
    rows = table(*columns, numbers=["yardstick", "best", "speed-up", "light"], fold=["case"])
    empty = ("no time" if _unsteady(result) else "no right candidate") if result.rejected else "not covered"
    empty = "no time" if ranks else empty
    for case in result.cases:
        yardstick = notation.time(case.yardstick_us)
        if not case.candidate:
            rows.add_row(text(case.case), yardstick, "-", text(empty, "dim"), "-", "-")
            continue
        rows.add_row(
            text(case.case), yardstick, notation.time(case.best_us),
            speed_up(case.ratio, case.low, case.high, final=case.final), notation.share(case.light_share),
            ranks[case.candidate],
        )  # fmt: skip
    return rows


def _unsteady(result: Result) -> bool:
    """Nobody was found wrong: whatever was turned down was not timed well enough, or not at all."""
    return bool(result.rejected) and set(result.rejected) <= set(BLAMELESS)


def _total(result: Result) -> Group:
    covered = [case for case in result.cases if case.candidate]
    spread = notation.spread(case.ratio for case in covered)
    total = text(f"{spread}   over {len(covered)} of {notation.count(len(result.cases), 'case')}", "bold")
    if not covered or any(case.low > 1 for case in covered):
        return Group(total)
    return Group(total, text("no case is faster than its yardstick for certain; a larger --budget searches further"))


def _searched(result: Result) -> list[RenderableType]:
    """What the search had said of the same candidates, where the final number is another."""
    said = [
        f"{case.case} {NOT_FINAL}{notation.ratio(case.searched_ratio)}"
        for case in result.cases
        if case.final and case.searched_ratio and notation.ratio(case.searched_ratio) != notation.ratio(case.ratio)
    ]
    return [text(f"search said: {', '.join(said)}", "dim")] if said else []


def _holdout(result: Result, ranks: dict[str, str]) -> Table:
    columns = ("case", "yardstick", "time", "speed-up", "by")
    rows = table(*columns, numbers=columns[1:4], fold=["case"])
    for row in result.holdout:
        timed = row.time_us > 0
        outcome = speed_up(row.ratio, row.low, row.high) if timed else text(row.status, "dim")
        if not timed and row.status not in ("ok", "uncovered"):
            outcome = text(row.status, "red")
        by = ranks.get(row.candidate, notation.short(row.candidate))
        rows.add_row(text(row.case), notation.time(row.yardstick_us), notation.time(row.time_us), outcome, by)
    return rows


def _winners(result: Result, ranks: dict[str, str]) -> Table:
    rows = table("by", "candidate", "species", "genes", fold=["species", "genes"])
    chosen = {case.candidate: case for case in result.cases}
    for candidate, letter in ranks.items():
        case = chosen[candidate]
        rows.add_row(letter, notation.short(candidate), text(case.species), text(notation.genes(case.values or {})))
    return rows


def _stored(result: Result) -> Text:
    if not result.winner:
        why = "no candidate was right" if result.evaluated else "nothing was evaluated within the budget"
        if _unsteady(result):
            why = "no candidate could be timed well enough"
        return unbroken(f"{why}: no winner was written\narchive: {_here(result.archive)}", "red")
    return unbroken(f"winner: {_here(result.winner)}\narchive: {_here(result.archive)}")


def _next(result: Result) -> Group:
    """Commands as they can be pasted."""
    where = _here(result.archive)
    archive = "" if where == DEFAULT_ARCHIVE else f" --archive {shlex.quote(where)}"
    commands = []
    if INTERRUPTED in result.notes:
        commands.append(f"evo resume {notation.short(result.run)}{archive}   # goes on from here")
    leader = next((case.candidate for case in result.cases if case.candidate), "")
    if result.winner and leader:
        commands += [
            f"evo bench {shlex.quote(_here(_genome_file(result.winner, leader)))} --target {result.target}",
            f"evo certify {shlex.quote(_here(result.winner))} --target {result.target}",
            f"evo archive show {notation.short(leader)}{archive}",
            f"evo archive top --operator {result.operator} --target {result.target}{archive}",
            f"evo run --operator {result.operator} --target {result.target}{archive}   # starts from these",
        ]
    else:
        commands.append(f"evo archive show {notation.short(result.run)}{archive}")
    return Group(text("next:", "dim"), *(command_line(command) for command in commands))


def _genome_file(winner: str, candidate: str) -> str:
    """The candidate's file, where `winner` is the folder that holds one for every candidate of the portfolio."""
    return str(next(Path(winner).glob(f"*{candidate[:8]}*"), winner))


def _here(path: str) -> str:
    """Relative to the working folder where it lies in it."""
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path

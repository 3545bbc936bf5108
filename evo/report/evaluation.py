"""The report of `evo check` and `evo bench`: one evaluation, with its diagnosis in full."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evo.records import CaseResult, Evaluation, Purpose, Status, Timing
from evo.report import notation
from evo.report.builds import flag_lines, has_facts, kernel_table, opcode_lines
from evo.report.diagnosis import diagnosis_report, uncovered_report
from evo.report.layout import FLATTERS, QUOTIENT, speed_up, table, text, unbroken

HEAD_WIDTH = 80  # columns, beyond which the times go to a line of their own


def evaluation_report(evaluation: Evaluation, *, archived: bool = False) -> Group:
    """Status, why, what was built, and every case; parts that the evaluation does not have are left out.

    `archived`: one of many, so opcodes, and kernels of which no fact is known, are left out too.
    """
    covered = [case for case in evaluation.cases if case.status is not Status.UNCOVERED]
    uncovered = [case for case in evaluation.cases if case.status is Status.UNCOVERED]
    timed = [(case.case, case.timing) for case in covered if case.timing]
    parts: list[RenderableType] = [_headline(evaluation)]
    reasons = dict.fromkeys([evaluation.diagnosis, *(case.diagnosis for case in covered)])
    parts += [diagnosis_report(reason) for reason in reasons if reason is not None]
    parts += _built(evaluation, archived)
    if covered:
        parts += ["", _checks(covered, built_only=not evaluation.device)]
    if timed:
        total = notation.spread(timing.ratio for _, timing in timed)
        final = evaluation.purpose is not Purpose.SEARCH
        parts += ["", *_times(timed, final=final)]
        parts.append(text(f"{total}   over {notation.count(len(timed), 'timed case')}", "bold"))
        parts.append(text(QUOTIENT, "dim"))
        parts += [] if final else [text(FLATTERS, "dim")]
    if uncovered:
        parts += ["", uncovered_report(uncovered)]
    return Group(*parts)


def _headline(evaluation: Evaluation) -> Text:
    good = evaluation.status is Status.OK
    line = unbroken(_status(evaluation.status, not evaluation.device))
    line.stylize("bold green" if good else "bold red")
    line.append_text(text(f"  candidate {notation.short(evaluation.candidate)}"))
    if evaluation.device:
        line.append_text(text(f" on {evaluation.device}"))
    spent = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in evaluation.seconds.items())
    if spent:
        fits = len(line) + len(spent) + 4 <= HEAD_WIDTH
        line.append_text(text(f"{'  ' if fits else chr(10)}({spent})", "dim"))
    return line


def _built(evaluation: Evaluation, archived: bool) -> list[RenderableType]:
    builds = [build for build in evaluation.builds if build.kernels]
    opcodes = [] if archived else opcode_lines(builds)
    parts: list[RenderableType] = []
    if has_facts(builds) or (builds and not archived and not opcodes):
        parts += ["", kernel_table(builds)]
    parts += ["", *opcodes] if opcodes else []
    flags = flag_lines(builds)
    return [*parts, "", *flags] if flags else parts


def _checks(cases: Sequence[CaseResult], *, built_only: bool) -> Table:
    compared = any(case.deviation for case in cases)
    errors = ("error: rms", "largest") if compared else ()
    result = table("case", "status", *errors, numbers=errors, fold=["case"])
    for case in cases:
        style = "green" if case.status is Status.OK else "red"
        status = text(_status(case.status, built_only), style)
        result.add_row(text(case.case), status, *(_deviation(case) if compared else ()))
    return result


def _times(timings: Sequence[tuple[str, Timing]], *, final: bool) -> list[RenderableType]:
    """A table, under its opponent's name when all cases have the same one."""
    opponents = {timing.opponent for _, timing in timings}
    same = len(opponents) == 1
    columns = ("case", "opponent", "time", "speed-up", "light", "pairs")
    result = table(*columns, numbers=columns[1:], fold=columns[:2])
    for name, timing in timings:
        result.add_row(
            text(name),
            text(notation.time(timing.opponent_us) + ("" if same else f" {Path(timing.opponent).name}")),
            notation.time(timing.time_us),
            speed_up(timing.ratio, timing.low, timing.high, final=final),
            notation.share(timing.light_us / timing.time_us if timing.time_us > 0 else 0.0),
            str(timing.pairs),
        )
    return [unbroken(f"against {Path(opponents.pop()).name}", "bold"), result] if same else [result]


def _status(status: Status, built_only: bool) -> str:
    """Without a device nothing was run: what is well was built, no more."""
    return "built" if built_only and status is Status.OK else str(status)


def _deviation(case: CaseResult) -> tuple[str, str]:
    if case.deviation is None:
        return "-", "-"
    return _error(case.deviation.rms), _error(case.deviation.max)


def _error(value: float) -> str:
    return f"{value:.2e}" if math.isfinite(value) else "infinite"

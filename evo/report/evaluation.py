"""The report of `evo check` and `evo bench`: one evaluation, with its diagnosis in full."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from evo.records import CaseResult, Diagnosis, Evaluation, Status
from evo.report import notation
from evo.report.layout import table, text, verdict


def evaluation_report(evaluation: Evaluation) -> Group:
    """Status, why, what was built, and every case; parts that the evaluation does not have are left out."""
    parts: list[RenderableType] = [_headline(evaluation)]
    if evaluation.diagnosis is not None:
        parts.append(_diagnosis(evaluation.diagnosis))
    for case in evaluation.cases:
        if case.diagnosis is not None and case.diagnosis != evaluation.diagnosis:
            parts.append(_diagnosis(case.diagnosis))
    if any(build.kernels for build in evaluation.builds):
        parts += ["", _kernels(evaluation)]
    if evaluation.cases:
        parts += ["", _checks(evaluation)]
    timed = [case.timing.ratio for case in evaluation.cases if case.timing]
    if timed:
        total = f"{notation.spread(timed)}   over {len(timed)} of {len(evaluation.cases)} cases"
        parts += ["", _times(evaluation), text(total, "bold")]
    return Group(*parts)


def _headline(evaluation: Evaluation) -> Text:
    good = evaluation.status is Status.OK
    line = Text.assemble((str(evaluation.status), "bold green" if good else "bold red"))
    line.append(f"  candidate {notation.short(evaluation.candidate)}")
    if evaluation.device:
        line.append(f" on {evaluation.device}")
    spent = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in evaluation.seconds.items())
    return line.append(f"  ({spent})" if spent else "", "dim")


def _diagnosis(diagnosis: Diagnosis) -> Group:
    where = f"{diagnosis.stage}, {diagnosis.case}" if diagnosis.case else str(diagnosis.stage)
    parts: list[RenderableType] = [Text.assemble((f"{where}: ", "bold"), diagnosis.message)]
    if diagnosis.detail:
        parts.append(Padding(text(diagnosis.detail.rstrip()), (0, 0, 0, 2)))
    return Group(*parts)


def _kernels(evaluation: Evaluation) -> Table:
    """One row a kernel and build; equal rows (builds that differ in a static dimension only) once."""
    columns = ("kernel", "registers", "spills", "stack", "shared", "code")
    result = table(*columns, numbers=columns[1:], fold=["kernel"])
    seen = set()
    for build in evaluation.builds:
        for kernel in build.kernels:
            sizes = (kernel.spill_bytes, kernel.stack_bytes, kernel.shared_bytes)
            row = (
                kernel.name,
                str(kernel.registers or "-"),
                *map(notation.size, sizes),
                notation.short(build.code_hash),
            )
            if row not in seen:
                seen.add(row)
                result.add_row(*map(text, row))
    return result


def _checks(evaluation: Evaluation) -> Table:
    result = table("case", "status", "error: rms", "largest", numbers=["error: rms", "largest"], fold=["case"])
    for case in evaluation.cases:
        result.add_row(text(case.case), text(str(case.status), _style(case.status)), *_deviation(case))
    return result


def _times(evaluation: Evaluation) -> Table:
    timings = [(case.case, case.timing) for case in evaluation.cases if case.timing]
    opponents = {timing.opponent for _, timing in timings}
    against = opponents.pop() if len(opponents) == 1 else ""  # in the head, else in every row
    columns = ("case", against or "opponent", "time", "speed-up", "light", "pairs")
    result = table(*columns, numbers=columns[1:], fold=columns[:2])
    for name, timing in timings:
        result.add_row(
            text(name),
            text(notation.time(timing.opponent_us) + ("" if against else f" {timing.opponent}")),
            notation.time(timing.time_us),
            text(notation.ratio_interval(timing.ratio, timing.low, timing.high), verdict(timing.low, timing.high)),
            notation.share(timing.light_us / timing.time_us if timing.time_us > 0 else 0.0),
            str(timing.pairs),
        )
    return result


def _style(status: Status) -> str:
    return {Status.OK: "green", Status.UNCOVERED: "dim"}.get(status, "red")


def _deviation(case: CaseResult) -> tuple[str, str]:
    if case.deviation is None:
        return "-", "-"
    return _error(case.deviation.rms), _error(case.deviation.max)


def _error(value: float) -> str:
    return f"{value:.2e}" if math.isfinite(value) else "infinite"

"""Winners on the operator's hold-out cases, after the run: shown apart, and told to nobody who proposes candidates.

Nothing of it is filed in the archive, since searches and prompts read that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from evo.app.stand import Stand
from evo.app.telling import Say
from evo.engine.finals import LEAST
from evo.engine.result import HoldoutRow
from evo.errors import RunError
from evo.fitness.evaluator import SESSION_PAIRS, Evaluator
from evo.fitness.sessions import measure
from evo.operator import Case
from evo.records import Candidate, CaseResult, Evaluation, Purpose, Status


def run_holdout(here: Stand, winners: Mapping[str, Candidate], say: Say) -> tuple[tuple[HoldoutRow, ...], list[str]]:
    """A row for every winner and hold-out case that the run did not search, and notes."""
    cases = holdout_cases(here)
    names = [case.name for case in cases if case.group == "holdout"]
    if not names:
        return (), [f"operator {here.operator.name!r} has no hold-out case on {here.target.name} beside those searched"]
    say(f"winners on {len(names)} hold-out cases")
    apart = replace(here, cases=cases)
    try:
        yardsticks = apart.calibrate(say).yardsticks
    except RunError as error:  # the run's own result stands
        return (), [f"the hold-out cases could not be measured: {error.what}"]
    evaluator = Evaluator(apart.executor, apart.operator, apart.target, cases, yardsticks, protocol=apart.protocol)
    rows = [row for winner in winners.values() for row in asyncio.run(_winner(evaluator, winner, names))]
    wrong = [row for row in rows if row.status not in (Status.OK, Status.UNCOVERED)]
    return tuple(rows), [f"winner {r.candidate[:12]} ended in {r.status} on hold-out case {r.case}" for r in wrong]


def holdout_cases(here: Stand) -> tuple[Case, ...]:
    """The hold-out cases that were not searched, and the small checks of their dtypes."""
    every = here.operator.cases(here.target.name)
    chosen = [case for case in every if case.group == "holdout" and case.name not in here.timed]
    kinds = [dict(case.dtypes) for case in chosen]
    return (*(case for case in every if case.group == "check" and dict(case.dtypes) in kinds), *chosen)


async def _winner(evaluator: Evaluator, winner: Candidate, names: Sequence[str]) -> list[HoldoutRow]:
    """A case that fails is listed, and the others are measured without it."""
    rest, rows = list(names), list[HoldoutRow]()
    while rest:
        members = dict.fromkeys(rest, winner)
        (found,) = await measure(evaluator, members, Purpose.FINAL, SESSION_PAIRS, lambda done: done >= LEAST)
        failed = found.diagnosis.case if found.diagnosis else ""
        if found.status is Status.OK or failed not in rest:
            return rows + [_row(winner, case, found) for case in rest]
        rows.append(_row(winner, failed, found))
        rest.remove(failed)
    return rows


def _row(winner: Candidate, case: str, found: Evaluation) -> HoldoutRow:
    result = next((r for r in found.cases if r.case == case), CaseResult(case, found.status))
    diagnosis = result.diagnosis or found.diagnosis
    timing = result.timing
    if timing is None or result.status is not Status.OK:
        status = found.status if result.status is Status.OK else result.status
        why = diagnosis.message if diagnosis else "no yardstick passed here" if status is Status.OK else ""
        return HoldoutRow(case, winner.id, str(status), why)
    return HoldoutRow(
        case, winner.id, str(result.status), "", timing.opponent, timing.opponent_us, timing.time_us, timing.ratio,
        timing.low, timing.high, len(timing.sessions),
    )  # fmt: skip

"""After the search: the portfolio is measured again in fresh processes, and only those numbers are the result.

The best of many noisy measurements is partly luck (the winner's curse), so a search's own numbers flatter it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from evo.engine.budget import Meter
from evo.engine.evaluator import Evaluator, Heard
from evo.engine.loop import Observe, progress
from evo.engine.result import CaseSummary, Result
from evo.engine.search import Search
from evo.records import BLAMELESS, Candidate, CaseResult, Evaluation, Status

if TYPE_CHECKING:
    from evo.archive import Archive

ROUNDS = 2  # the finalists, then the runners-up of those that failed
LEAST, MOST = 3, 5  # sessions: fewer say nothing of the spread between processes; more gain little


@dataclass(slots=True)
class Finals:
    """What was measured again: by case the candidate and its result; and why candidates were struck."""

    results: dict[str, tuple[Candidate, CaseResult]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Patience:
    """When there were sessions enough: `LEAST` at least, and up to `MOST` while the budget's minutes last."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._began = meter.seconds

    def __call__(self, sessions: int) -> bool:
        if self._meter.stopped or sessions >= MOST:
            return True
        now = self._meter.seconds
        one_more = (now - self._began) / sessions
        return sessions >= LEAST and now + one_more > 60 * self._meter.budget.minutes


async def run_finals(search: Search, evaluator: Evaluator, archive: Archive, meter: Meter, observe: Observe) -> Finals:
    """Measures the finalists again and files it; one that fails now is struck, and its runner-up takes its place."""
    finals = Finals()
    for _ in range(ROUNDS):
        members = {case: c for case, c in search.portfolio.finalists().items() if case not in finals.results}
        if not members:
            break
        waiting = len({candidate.id for candidate in members.values()})
        observe(progress(search, meter, waiting, "finals"))
        evaluations = await evaluator.finals(members, Patience(meter), _teller(search, meter, waiting, observe))
        if meter.stopped:  # half of the sessions are no result
            finals.notes.append("stopped before the finals were complete")
            break
        with archive.batch():
            for evaluation in evaluations:
                archive.file(evaluation, None)
        for evaluation in evaluations:
            _judge(search, finals, members, evaluation)
    observe(progress(search, meter, 0, "finals"))
    return finals


def step(session: int, candidate: Candidate, case: str, least: int = LEAST, most: int = MOST) -> str:
    """What is measured now: `final 2 of 3: bf16-n1024, candidate 0a1b2c3d4e`."""
    of = f"{least}" if session <= least else f"at most {most}"
    return f"final {session} of {of}: {case or 'checking'}, candidate {candidate.id[:10]}"


def _teller(search: Search, meter: Meter, waiting: int, observe: Observe) -> Heard:
    def heard(session: int, candidate: Candidate, case: str) -> None:
        observe(replace(progress(search, meter, waiting, "finals"), step=step(session, candidate, case)))

    return heard


def _judge(search: Search, finals: Finals, members: Mapping[str, Candidate], evaluation: Evaluation) -> None:
    """Takes an evaluation's cases in, or strikes its candidate from the portfolio."""
    name, status = evaluation.candidate, evaluation.status
    if status is Status.OK:
        for result in evaluation.cases:
            if result.status in BLAMELESS and result.diagnosis:
                finals.notes.append(f"finalist {name[:12]} has no final number in {result.case}: {result.status}")
            candidate = members.get(result.case)
            if candidate and candidate.id == name and result.status is Status.OK and result.timing:
                finals.results[result.case] = (candidate, result)
        return
    message = evaluation.diagnosis.message if evaluation.diagnosis else "no diagnosis"
    finals.notes.append(f"finalist {name[:12]} ended in {status} when measured again: {message}")
    if status not in BLAMELESS:
        search.portfolio.strike(name, search.islands.everyone())
        finals.results = {case: kept for case, kept in finals.results.items() if kept[0].id != name}


def summarise(
    search: Search, finals: Finals, meter: Meter, *, device: str, yardstick: str, winner: str, archive: str,
    notes: Sequence[str] = (),
) -> Result:  # fmt: skip
    """The run's result; a case without a final number shows the search's own, marked as such."""
    problem = search.problem
    rows = tuple(_row(search, finals, case) for case in problem.case_names)
    open_cases = [row.case for row in rows if not row.candidate]
    remarks = [*notes, *finals.notes]
    if open_cases:
        remarks.append(f"no candidate has a time for {', '.join(open_cases)}")
    if search.rejected and set(search.rejected) <= set(BLAMELESS) and len(open_cases) == len(rows):
        remarks.append("no time was steady enough: end other work on this machine, then run it again")
    if reason := meter.stopped or search.message:
        remarks.append(reason)
    return Result(
        search.run, problem.operator.name, problem.target, device, yardstick, rows, dict(search.rejected),
        search.evaluated, search.duplicates, meter.seconds, winner, archive, tuple(remarks),
    )  # fmt: skip


def _row(search: Search, finals: Finals, case: str) -> CaseSummary:
    final = finals.results.get(case)
    leader = search.portfolio.members().get(case)
    if final:
        candidate, timing = final[0], final[1].timing
    elif leader:
        candidate, timing = leader.candidate, leader.timings[case]
    else:
        return CaseSummary(case)
    assert timing  # a final result has one
    light = timing.light_us / timing.time_us if timing.light_us else 0.0
    return CaseSummary(
        case, timing.opponent_us, timing.time_us, timing.ratio, timing.low, timing.high, light, candidate.id,
        candidate.species, candidate.values, timing.pairs, final is not None,
        _searched(search, candidate, case), len(timing.sessions),
    )  # fmt: skip


def _searched(search: Search, candidate: Candidate, case: str) -> float:
    """The ratio that the search measured; 0 where it did not."""
    members = (*search.portfolio.members().values(), *search.islands.everyone())
    return next((m.ratios[case] for m in members if m.candidate.id == candidate.id and case in m.ratios), 0.0)

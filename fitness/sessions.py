"""Results: the same candidates measured in several fresh processes, a fixed number of pairs in each.

Addresses, placement and heat differ from process to process by more than the pairs of one process tell, so a result's
interval covers that too (`sessions_interval`). Every session has new secret seeds and checks before it times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from evo import ids
from evo.fitness.statistics import sessions_interval
from evo.records import BLAMELESS, Candidate, CaseResult, Deviation, Diagnosis, Evaluation, Purpose, Status, Timing

if TYPE_CHECKING:
    from evo.fitness.evaluator import Evaluator

TRIES = 2  # of a candidate's session that ends blameless, each in a process of its own

Enough = Callable[[int], bool]  # asked after each session with how many there were: stop here?
Heard = Callable[[int, Candidate, str], None]  # the session, from 1; who; in which case, "" while it is checked


@dataclass
class Entry:
    """One candidate: the cases it is still timed on, those that were given up, and its sessions so far."""

    candidate: Candidate
    cases: set[str]
    lost: dict[str, CaseResult] = field(default_factory=dict)
    sessions: list[Evaluation] = field(default_factory=list)
    failed: Evaluation | None = None

    def result(self) -> Evaluation:
        return self.failed or merge(self.sessions, self.lost)


def nobody(session: int, candidate: Candidate, case: str) -> None:
    """For those who need not hear of it."""


async def measure(
    evaluator: Evaluator,
    members: Mapping[str, Candidate],
    purpose: Purpose,
    pairs: int,
    enough: Enough,
    heard: Heard = nobody,
) -> list[Evaluation]:
    """One evaluation for each distinct candidate, over the cases that name it, from all sessions together. `heard` is
    told what is measured, when it begins and every second or so.

    A candidate that is wrong in any session is out, with that session's evaluation. A case whose yardstick fails or
    whose times are unsteady, twice, is given up: it is listed with that status, and the others go on without it.
    """
    entries: dict[str, Entry] = {}
    for case, candidate in members.items():
        entries.setdefault(candidate.id, Entry(candidate, set())).cases.add(case)
    done = 0
    while (rest := [entry for entry in entries.values() if not entry.failed]) and not (done and enough(done)):
        evaluator.executor.renew()
        done += 1
        for entry in rest:
            await _session(evaluator, entry, purpose, pairs, done, partial(heard, done, entry.candidate))
    return [entry.result() for entry in entries.values()]


async def _session(
    evaluator: Evaluator, entry: Entry, purpose: Purpose, pairs: int, number: int, heard: Callable[[str], None]
) -> None:
    tries = TRIES
    while True:
        found = await evaluator.judge(entry.candidate, purpose, frozenset(entry.cases), pairs=pairs, heard=heard)
        if found.status is Status.OK:
            entry.sessions.append(found)
            return
        tries -= 1
        case = found.diagnosis.case if found.diagnosis else ""
        if found.status not in BLAMELESS or (not tries and (case not in entry.cases or len(entry.cases) == 1)):
            entry.failed = replace(found, diagnosis=_in_session(found.diagnosis, number))
            return
        if not tries:
            tries = TRIES
            entry.cases.remove(case)
            diagnosis = _in_session(found.diagnosis, number)
            entry.lost[case] = CaseResult(case, found.status, diagnosis=diagnosis)
        evaluator.executor.renew()


def _in_session(diagnosis: Diagnosis | None, number: int) -> Diagnosis | None:
    return diagnosis and replace(diagnosis, message=f"{diagnosis.message} (in session {number})")


def merge(sessions: Sequence[Evaluation], lost: Mapping[str, CaseResult]) -> Evaluation:
    """All sessions of one candidate as one evaluation; `lost` replaces the cases that were given up on the way."""
    first = sessions[0]
    by_case = [{result.case: result for result in session.cases} for session in sessions]
    cases = tuple(lost.get(r.case) or _merged([found[r.case] for found in by_case]) for r in first.cases)
    stages = dict.fromkeys(stage for session in sessions for stage in session.seconds)
    seconds = {stage: sum(session.seconds.get(stage, 0.0) for session in sessions) for stage in stages}
    known = {result.case for result in cases}
    more = tuple(result for case, result in lost.items() if case not in known)  # given up in the first session
    return replace(first, id=ids.new_id(), cases=(*cases, *more), seconds=seconds)


def _merged(results: Sequence[CaseResult]) -> CaseResult:
    timings = [result.timing for result in results if result.timing]
    deviations = [result.deviation for result in results if result.deviation]
    worst: Deviation | None = max(deviations, key=lambda item: item.rms, default=None)
    return replace(results[0], deviation=worst, timing=merge_timings(timings) if timings else None)


def merge_timings(timings: Sequence[Timing]) -> Timing:
    """One timing from one a session; ratio and interval over sessions, times are medians over all pairs."""
    samples = tuple(pair for timing in timings for pair in timing.samples)
    interval = sessions_interval([timing.samples for timing in timings])
    return replace(
        timings[0],
        time_us=statistics.median(candidate for candidate, _ in samples),
        opponent_us=statistics.median(opponent for _, opponent in samples),
        ratio=interval.ratio, low=interval.low, high=interval.high, pairs=len(samples), samples=samples,
        clocks=_clocks([timing.clocks for timing in timings]),
        light_us=statistics.median(timing.light_us for timing in timings),
        method=", ".join(dict.fromkeys(timing.method for timing in timings)),
        opponent_rms=max(timing.opponent_rms for timing in timings),
        sessions=tuple(len(timing.samples) for timing in timings),
    )  # fmt: skip


def _clocks(readings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Before the first session and after the last; extremes are those of all, counts add up, the rest are medians."""
    rules: dict[str, Callable[[list[float]], float]] = {
        "_before": lambda found: found[0], "_after": lambda found: found[-1], "_min": min, "_max": max, "void": sum,
    }  # fmt: skip
    merged = {}
    for name in dict.fromkeys(name for reading in readings for name in reading):
        found = [reading[name] for reading in readings if name in reading]
        rule = next((rule for end, rule in rules.items() if name.endswith(end)), statistics.median)
        merged[name] = rule(found)
    return merged

"""Finals over several processes: what is merged, who is struck, which case is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from evo.engine.budget import Budget, Meter
from evo.engine.finals import LEAST, MOST, Patience
from evo.fitness.sessions import Heard, measure, merge, nobody
from evo.fitness.statistics import sessions_interval
from evo.ids import new_id
from evo.records import Candidate, CaseResult, Deviation, Diagnosis, Evaluation, Purpose, Stage, Status, Timing

ONE, TWO = (Candidate(name * 64, "op", "cpu", name, ".cpp", "", {}) for name in "ab")
Answer = Callable[[Candidate, int, frozenset[str]], Evaluation]


def timing(ratio: float, pairs: int = 4, **options: Any) -> Timing:
    samples = tuple((1.0 + 0.001 * i, ratio) for i in range(pairs))
    return Timing("warm", "y", 1.0, ratio, ratio, 0.9 * ratio, 1.1 * ratio, 0.99, pairs, "fixed", samples, **options)


def good(candidate: Candidate, cases: frozenset[str], ratio: float) -> Evaluation:
    results = [CaseResult(case, Status.OK, Deviation(ratio, 0.0), timing(ratio)) for case in sorted(cases)]
    checks = [CaseResult("small", Status.OK, Deviation(0.5, 0.0)), CaseResult("large", Status.UNCOVERED)]
    return Evaluation(
        new_id(), "r", candidate.id, Purpose.FINAL, "y", "cpu:0", Status.OK, None, (), (*checks, *results),
        {Stage.TIME: 2.0},
    )  # fmt: skip


def bad(candidate: Candidate, status: Status, case: str) -> Evaluation:
    diagnosis = Diagnosis(Stage.TIME, "so it was", case)
    return Evaluation(new_id(), "r", candidate.id, Purpose.FINAL, "y", "cpu:0", status, diagnosis)


@dataclass
class Fake:
    """Stands in for the evaluator, and is its own executor: counts processes."""

    answer: Answer
    processes: int = 0
    asked: list[tuple[str, int, frozenset[str]]] = field(default_factory=list)

    @property
    def executor(self) -> Fake:
        return self

    def renew(self) -> None:
        self.processes += 1

    async def judge(
        self, candidate: Candidate, purpose: Purpose, timed: frozenset[str], *, pairs: int, heard: Callable[[str], None]
    ) -> Evaluation:
        assert (purpose, pairs) == (Purpose.FINAL, 4)
        self.asked.append((candidate.species, self.processes, timed))
        for case in sorted(timed):
            heard(case)
        return self.answer(candidate, self.processes, timed)


def run(fake: Fake, members: dict[str, Candidate], sessions: int = 3, heard: Heard = nobody) -> dict[str, Evaluation]:
    enough: Callable[[int], bool] = lambda done: done >= sessions  # noqa: E731
    found = asyncio.run(measure(fake, members, Purpose.FINAL, 4, enough, heard))  # type: ignore[arg-type]
    return {evaluation.candidate: evaluation for evaluation in found}


def test_every_session_is_a_process_that_measures_all_finalists() -> None:
    fake = Fake(lambda candidate, process, cases: good(candidate, cases, 1.0 + process / 100))
    found = run(fake, {"n256": ONE, "n1024": TWO, "n4096": ONE})
    assert [(who, process) for who, process, _ in fake.asked] == [
        (who, process) for process in (1, 2, 3) for who in ("a", "b")
    ]
    assert fake.asked[0][2] == {"n256", "n4096"}
    cases = {result.case: result for result in found[ONE.id].cases}
    got = cases["n256"].timing
    assert got
    assert got.sessions == (4, 4, 4)
    assert (got.pairs, len(got.samples)) == (12, 12)
    interval = sessions_interval([timing(ratio).samples for ratio in (1.01, 1.02, 1.03)])
    assert (got.ratio, got.low, got.high) == (interval.ratio, interval.low, interval.high)
    assert got.opponent_us == 1.02
    assert cases["n256"].deviation == Deviation(1.03, 0.0), "the worst of all sessions"
    assert (cases["small"].timing, cases["large"].status) == (None, Status.UNCOVERED)
    assert found[ONE.id].seconds == {Stage.TIME: 6.0}


def test_every_session_candidate_and_case_is_told_of_as_it_is_measured() -> None:
    told: list[tuple[int, str, str]] = []
    fake = Fake(lambda candidate, process, cases: good(candidate, cases, 1.1))
    members = {"n256": ONE, "n1024": TWO, "n4096": ONE}
    run(fake, members, sessions=2, heard=lambda session, who, case: told.append((session, who.species, case)))
    assert told == [
        (session, *step) for session in (1, 2) for step in (("a", "n256"), ("a", "n4096"), ("b", "n1024"))
    ]  # fmt: skip


def test_who_is_wrong_in_any_session_is_out_and_not_measured_again() -> None:
    def answer(candidate: Candidate, process: int, cases: frozenset[str]) -> Evaluation:
        if candidate == ONE and process == 2:
            return bad(candidate, Status.WRONG_RESULT, "n256")
        return good(candidate, cases, 1.1)

    fake = Fake(answer)
    found = run(fake, {"n256": ONE, "n1024": TWO})
    assert found[ONE.id].status is Status.WRONG_RESULT
    diagnosis = found[ONE.id].diagnosis
    assert diagnosis
    assert diagnosis.message == "so it was (in session 2)"
    assert found[TWO.id].status is Status.OK
    assert [process for who, process, _ in fake.asked if who == "a"] == [1, 2]


def test_a_fault_that_is_not_the_candidates_is_tried_once_more() -> None:
    def answer(candidate: Candidate, process: int, cases: frozenset[str]) -> Evaluation:
        return bad(candidate, Status.UNSTABLE_TIMING, "n256") if process == 1 else good(candidate, cases, 1.1)

    fake = Fake(answer)
    found = run(fake, {"n256": ONE})
    assert found[ONE.id].status is Status.OK
    assert fake.processes == 4


def test_a_case_without_a_number_is_given_up_and_listed() -> None:
    def answer(candidate: Candidate, process: int, cases: frozenset[str]) -> Evaluation:
        if "n256" in cases and process >= 2:
            return bad(candidate, Status.UNSTABLE_TIMING, "n256")
        return good(candidate, cases, 1.1)

    found = run(Fake(answer), {"n256": ONE, "n1024": ONE})[ONE.id]
    cases = {result.case: result for result in found.cases}
    assert found.status is Status.OK
    assert (cases["n256"].status, cases["n256"].timing) == (Status.UNSTABLE_TIMING, None)
    other = cases["n1024"].timing
    assert other
    assert other.sessions == (4, 4, 4)


def test_a_candidate_with_no_case_left_has_no_result() -> None:
    def answer(candidate: Candidate, process: int, cases: frozenset[str]) -> Evaluation:
        return bad(candidate, Status.EVALUATOR_ERROR, "n256")

    fake = Fake(answer)
    assert run(fake, {"n256": ONE})[ONE.id].status is Status.EVALUATOR_ERROR
    assert len(fake.asked) == 2


def test_a_case_given_up_in_the_first_session_is_listed() -> None:
    lost = {"n256": CaseResult("n256", Status.UNSTABLE_TIMING)}
    merged = merge([good(ONE, frozenset({"n1024"}), 1.1)] * 3, lost)
    assert [(r.case, r.status) for r in merged.cases][-1] == ("n256", Status.UNSTABLE_TIMING)


def test_clocks_are_merged_by_what_they_mean() -> None:
    def answer(candidate: Candidate, process: int, cases: frozenset[str]) -> Evaluation:
        evaluation = good(candidate, cases, 1.1)
        clocks = {"sm_mhz_before": 10.0 * process, "sm_mhz_after": process, "sm_mhz_min": process, "void": 1.0}
        result = CaseResult("n256", Status.OK, None, timing(1.1, clocks=clocks))
        return Evaluation(
            evaluation.id, "r", candidate.id, Purpose.FINAL, "y", "cpu:0", Status.OK, cases=(result,)
        )  # fmt: skip

    got = run(Fake(answer), {"n256": ONE})[ONE.id].cases[0].timing
    assert got
    assert got.clocks == {"sm_mhz_before": 10.0, "sm_mhz_after": 3, "sm_mhz_min": 1, "void": 3.0}


# --- how many sessions


@pytest.mark.parametrize(
    ("minutes", "began_s", "each_s", "sessions"),
    [(1.0, 48.0, 1.0, MOST), (1.0, 48.0, 3.0, 4), (1.0, 48.0, 30.0, LEAST), (0.0, 0.0, 1.0, LEAST)],
)
def test_sessions_last_as_long_as_the_minutes(minutes: float, began_s: float, each_s: float, sessions: int) -> None:
    now = [0.0]
    meter = Meter(Budget(minutes=minutes, evaluations=5), clock=lambda: now[0])
    now[0] = began_s
    patience, done = Patience(meter), 0
    while True:
        done, now[0] = done + 1, now[0] + each_s
        if patience(done):
            break
    assert done == sessions


def test_a_stopped_run_has_sessions_enough() -> None:
    meter = Meter(Budget(minutes=1.0))
    patience = Patience(meter)
    assert not patience(1)
    meter.stop()
    assert patience(1)

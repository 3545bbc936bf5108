"""The loop and the finals, over a simulated evaluator and a real archive file."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from landscape import CASES, RUN, SMALL, ask, candidates, genome, problem, ratio, search, simulated

from evo.archive import Archive, RunRecord
from evo.engine.budget import Budget, Meter
from evo.engine.finals import run_finals, summarise
from evo.engine.loop import evolve, interruptible
from evo.engine.result import Progress
from evo.engine.retries import FAULTS_IN_A_ROW
from evo.engine.search import Search
from evo.engine.simulated import SimulatedEvaluator
from evo.errors import RunError
from evo.records import (
    Candidate,
    Diagnosis,
    Evaluation,
    Proposal,
    Purpose,
    Stage,
    State,
    Status,
    Verdict,
)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive.open(str(tmp_path / "evo.db")) as opened:
        opened.start_run(RunRecord(RUN, "scale", "cpu", "cpu:0", "test", 0, "", CASES, "simulated", "test", 0.0))
        yield opened


def go(run: Search, evaluator: SimulatedEvaluator, archive: Archive, budget: str | Meter) -> list[Progress]:
    seen: list[Progress] = []
    meter = budget if isinstance(budget, Meter) else Meter(Budget.parse(budget))
    asyncio.run(evolve(run, evaluator, archive, meter, seen.append))
    return seen


def test_the_loop_fits_a_screen() -> None:
    assert len(inspect.getsource(evolve).splitlines()) <= 36


def test_a_run_spends_its_evaluations_exactly_and_archives_every_one(archive: Archive) -> None:
    run = search()
    seen = go(run, simulated(capacity=7), archive, "evaluations=50")
    filed = list(archive.evaluations(RUN))
    assert (run.evaluated, len(filed)) == (50, 50)
    assert {evaluation.status for evaluation in filed} == {Status.OK}
    assert archive.open_proposals(RUN) == []
    assert len(archive.known("scale", "cpu")) == 50
    assert [seen[0].phase, seen[-1].phase] == ["seeds", "search"]
    assert (seen[-1].evaluated, seen[-1].in_flight, seen[-1].fraction) == (50, 0, 1.0)
    assert seen[-1].best["n256"].ratio == max(e.cases[0].timing.ratio for e in filed if e.cases[0].timing)


def test_a_seed_whose_defaults_are_not_legal_breeds_all_the_same(archive: Archive) -> None:
    """It is nobody's parent in the archive, which does not know it."""
    odd = genome("odd", 'AAA = [1, 2, 3, 4]\nEEE = ["some", "more"]', '"AAA > 1"')
    run = search(seed=4, seeds=(genome(), odd))
    go(run, simulated(), archive, "evaluations=40")
    species = [archive.candidate(e.candidate).species for e in archive.evaluations(RUN)]
    assert "odd" in species


def test_a_run_ends_when_nothing_new_is_left(archive: Archive) -> None:
    seen = go(search(seeds=(genome("narrow", SMALL),)), simulated(lambda candidate, case: 1.0), archive, "minutes=1")
    assert (seen[-1].evaluated, seen[-1].message) == (6, "every legal candidate was tried")


def test_a_run_ends_when_it_stalls(archive: Archive) -> None:
    run = search()
    go(run, simulated(lambda candidate, case: 1.0), archive, "stall=20")
    assert 21 <= run.evaluated <= 24  # the seed is the only improvement; what came in with the last one is told too


class Killed(Exception):
    pass


class Mortal(SimulatedEvaluator):
    """Ends its process, as it were, after some turns, with verdicts that nobody got."""

    turns = 6

    async def finished(self, timeout_s: float) -> list[Verdict]:
        verdicts = await super().finished(timeout_s)
        self.turns -= 1
        if self.turns == 0:
            raise Killed
        return verdicts


@pytest.mark.parametrize("evaluations", [0, 3000])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(archive: Archive, evaluations: int) -> None:
    seeds = (genome("wide"), genome("narrow", SMALL))
    straight = search(5, seeds=seeds, evaluations=evaluations)
    whole = candidates(drive_in_turns(straight, 48))
    run = search(5, seeds=seeds, evaluations=evaluations)
    with pytest.raises(Killed):
        go(run, Mortal(CASES, ratio, run=RUN), archive, "evaluations=48")
    half = list(archive.evaluations(RUN))
    saved = archive.load_state(RUN)
    assert saved
    assert len(half) == 20
    resumed = search(99, seeds=seeds, evaluations=evaluations)
    lost = [proposal for proposal, _ in archive.open_proposals(RUN)]
    assert len(lost) == 4
    resumed.restore(saved["search"], archive.evaluations(RUN), lost, archive.candidate)
    assert resumed.portfolio.best() == run.portfolio.best()
    meter = Meter(Budget.parse("evaluations=48"), spent=saved["meter"])
    go(resumed, simulated(), archive, meter)
    filed = list(archive.evaluations(RUN))
    assert [evaluation.candidate for evaluation in filed] == whole
    assert [evaluation.id for evaluation in filed[:20]] == [evaluation.id for evaluation in half]
    assert resumed.state() == straight.state()


def drive_in_turns(run: Search, evaluations: int) -> list[Proposal]:
    """What the loop does with the simulated evaluator, in so many words: ask four, tell four."""
    evaluator, asked = simulated(), list[Proposal]()
    while len(asked) < evaluations:
        turn = [proposal for _ in range(4) if (proposal := ask(run))]
        asked += turn
        for proposal in turn:
            run.tell(evaluator.verdict(proposal))
    return asked


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(RunError, match="version 0"):
        search().restore({"version": 0}, [], [], lambda name: problem().candidate(genome(), {}))


class Stuck(SimulatedEvaluator):
    """Never finishes anything."""

    cancelled = False

    async def finished(self, timeout_s: float) -> list[Verdict]:
        await asyncio.sleep(0.01)
        return []

    def cancel(self) -> None:
        self.cancelled = True
        super().cancel()


def test_a_stop_ends_within_one_turn_and_leaves_what_is_in_flight_pending(archive: Archive) -> None:
    meter, evaluator, seen = Meter(Budget.parse("minutes=5")), Stuck(CASES, ratio), list[Progress]()

    def observe(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 3:
            meter.stop()

    asyncio.run(evolve(search(), evaluator, archive, meter, observe))
    assert len(seen) == 3
    assert seen[-1].in_flight == 4
    assert evaluator.cancelled
    assert [state for _, state in archive.open_proposals(RUN)] == [State.PENDING] * 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_run(archive: Archive, number: signal.Signals) -> None:
    meter = Meter(Budget.parse("minutes=5"))

    async def main() -> None:
        with interruptible(meter):
            asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), number)
            await evolve(search(), Stuck(CASES, ratio), archive, meter, lambda progress: None)

    asyncio.run(asyncio.wait_for(main(), 5))
    assert meter.stopped == "interrupted"
    assert len(archive.open_proposals(RUN)) == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_after_the_search_a_signal_does_as_before(archive: Archive) -> None:
    """`timeout` sends SIGTERM twice, to the process and to its group: the second one is no second request."""
    meter, heard = Meter(Budget.parse("minutes=5")), list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))

    async def main() -> None:
        with interruptible(meter):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)

    try:
        asyncio.run(main())
        assert (meter.stopped, heard) == ("interrupted", [])
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_cancelling_the_task_drops_what_is_in_flight_and_leaves_it_pending(archive: Archive) -> None:
    evaluator = Stuck(CASES, ratio)

    async def main() -> None:
        task = asyncio.create_task(
            evolve(search(), evaluator, archive, Meter(Budget.parse("minutes=5")), lambda progress: None)
        )
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert evaluator.cancelled
    assert len(archive.open_proposals(RUN)) == 4


def test_what_is_in_flight_when_the_time_is_up_is_cancelled(archive: Archive) -> None:
    now = iter(range(10_000))
    meter = Meter(Budget.parse("minutes=1"), clock=lambda: float(next(now)))
    go(search(), Stuck(CASES, ratio), archive, meter)
    assert archive.open_proposals(RUN) == []
    assert list(archive.evaluations(RUN)) == []


class Faulty(SimulatedEvaluator):
    """Fails by itself at the first tries of some proposals: as many times as `tries` says, by order of first start."""

    def __init__(self, tries: dict[int, int]) -> None:
        super().__init__(CASES, ratio, run=RUN)
        self.tries = tries
        self.order: list[str] = []

    def start(self, proposal: Proposal, rivals: dict[str, float]) -> None:  # type: ignore[override]
        self.order.append(proposal.id)
        super().start(proposal, rivals)

    def verdict(self, proposal: Proposal) -> Verdict:
        verdict = super().verdict(proposal)
        if self.order.count(proposal.id) > self.tries.get(list(dict.fromkeys(self.order)).index(proposal.id), 0):
            return verdict
        diagnosis = Diagnosis(Stage.BUILD, "the compiler went away")
        evaluation = replace(verdict.evaluation, status=Status.EVALUATOR_ERROR, diagnosis=diagnosis, cases=())
        return replace(verdict, evaluation=evaluation)


def test_evos_own_fault_is_tried_once_more_and_then_filed(archive: Archive) -> None:
    run, evaluator = search(), Faulty({1: 1, 2: 2})
    go(run, evaluator, archive, "evaluations=20")
    assert run.rejected == {"evaluator_error": 1}
    starts = Counter(evaluator.order)
    assert sorted(starts.values(), reverse=True)[:3] == [2, 2, 1]
    statuses = Counter(evaluation.status for evaluation in archive.evaluations(RUN))
    assert statuses == {Status.OK: 19, Status.EVALUATOR_ERROR: 1}


def test_an_evaluator_that_only_fails_ends_the_run(archive: Archive) -> None:
    with pytest.raises(RunError, match=f"{FAULTS_IN_A_ROW} times in a row.*the compiler went away"):
        go(search(), Faulty(dict.fromkeys(range(1000), 2)), archive, "evaluations=100")


# --- the finals


def finish(run: Search, evaluator: SimulatedEvaluator, archive: Archive) -> Any:
    meter = Meter(Budget.parse("minutes=1"))
    finals = asyncio.run(run_finals(run, evaluator, archive, meter, lambda progress: None))
    return summarise(run, finals, meter, device="d", yardstick="y", winner="w.cpp", archive="a.db")


def test_only_finals_are_the_result(archive: Archive) -> None:
    run = search()
    go(run, simulated(), archive, "evaluations=60")
    searched = run.portfolio.rivals()
    result = finish(run, simulated(lambda candidate, case: 0.9 * ratio(candidate, case), error=0.001), archive)
    assert {row.case: row.ratio for row in result.cases} == pytest.approx(
        {case: 0.9 * best for case, best in searched.items()}
    )
    assert all(row.final and row.low < row.ratio < row.high for row in result.cases)
    assert [row.best_us * row.ratio for row in result.cases] == pytest.approx([100.0] * 3)
    finals = [e for e in archive.evaluations(RUN) if e.purpose is Purpose.FINAL]
    assert {e.candidate for e in finals} == {row.candidate for row in result.cases}
    assert (result.evaluated, result.winner, result.archive) == (60, "w.cpp", "a.db")


def test_the_finals_say_what_is_measured_as_they_go_on(archive: Archive) -> None:
    """On a slow device they take minutes."""
    run, seen = search(), list[Progress]()
    go(run, simulated(), archive, "evaluations=30")
    finalists = run.portfolio.finalists()
    asyncio.run(run_finals(run, Slow(CASES, ratio, run=RUN), archive, Meter(Budget.parse("minutes=1")), seen.append))
    names = [finalists[case].id[:10] for case in CASES]
    assert [progress.step for progress in seen if progress.step] == [
        f"final 1 of 3: n256, candidate {names[0]}", f"final 3 of 3: checking, candidate {names[1]}",
        f"final 4 of at most 5: n4096, candidate {names[2]}",
    ]  # fmt: skip
    assert {progress.phase for progress in seen} == {"finals"}
    assert seen[-1].step == ""


class Slow(SimulatedEvaluator):
    """Tells of some steps."""

    async def finals(self, members: Any, enough: Any, heard: Any) -> list[Evaluation]:
        for session, case, part in ((1, "n256", "n256"), (3, "n1024", ""), (4, "n4096", "n4096")):
            heard(session, members[case], part)
        return await super().finals(members, enough, heard)


class Strict(SimulatedEvaluator):
    """Finds some candidates wrong, or has no number for them, in the finals."""

    refused: dict[str, Status]

    async def finals(self, members: Any, enough: Any, heard: Any) -> list[Evaluation]:
        evaluations = await super().finals(members, enough, heard)
        return [
            replace(e, status=self.refused[e.candidate], cases=()) if e.candidate in self.refused else e
            for e in evaluations
        ]


def test_a_finalist_that_fails_now_gives_way_to_the_runner_up(archive: Archive) -> None:
    run = search()
    go(run, simulated(), archive, "evaluations=60")
    first = run.portfolio.members()["n256"].candidate.id
    evaluator = Strict(CASES, ratio, run=RUN)
    evaluator.refused = {first: Status.WRONG_RESULT}
    result = finish(run, evaluator, archive)
    others = [m for m in run.islands.everyone() if m.candidate.id != first]
    (row,) = [row for row in result.cases if row.case == "n256"]
    assert row.final
    assert row.ratio == max(m.ratios["n256"] for m in others)
    assert first not in {row.candidate for row in result.cases}
    assert any(first[:12] in note and "wrong_result" in note for note in result.notes)


def test_a_finalist_without_a_number_keeps_the_searchs_one_marked_so(archive: Archive) -> None:
    run = search()
    go(run, simulated(), archive, "evaluations=30")
    leaders = {case: member.candidate.id for case, member in run.portfolio.members().items()}
    evaluator = Strict(CASES, ratio, run=RUN)
    evaluator.refused = dict.fromkeys(leaders.values(), Status.UNSTABLE_TIMING)
    result = finish(run, evaluator, archive)
    assert {row.case: row.candidate for row in result.cases} == leaders
    assert not any(row.final for row in result.cases)


def test_a_case_that_nothing_covers_is_listed(archive: Archive) -> None:
    def formula(candidate: Candidate, case: str) -> float | None:
        return None if case == "n4096" else ratio(candidate, case)

    run = search()
    go(run, simulated(formula), archive, "evaluations=20")
    result = finish(run, simulated(formula), archive)
    assert [(row.case, row.candidate == "", row.ratio > 0) for row in result.cases] == [
        ("n256", False, True), ("n1024", False, True), ("n4096", True, False),
    ]  # fmt: skip
    assert "no candidate has a time for n4096" in result.notes

"""evo's own faults and a lost device: nobody is blamed, nothing is tried for ever, and the run can be resumed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from landscape import CASES, RUN, drive, ratio, search
from test_loop import archive as archive_fixture
from test_loop import go

from evo.archive import Archive
from evo.engine.budget import Budget, Meter
from evo.engine.retries import Retries
from evo.engine.simulated import SimulatedEvaluator
from evo.errors import DeviceLostError
from evo.records import Diagnosis, Proposal, Stage, State, Status, Verdict

archive = archive_fixture


def verdicts(count: int, *faulty: int) -> list[Verdict]:
    """Of so many proposals; those numbered `faulty` were met by a fault of evo's own."""
    evaluator = SimulatedEvaluator(CASES, ratio, run=RUN)
    made = [evaluator.verdict(proposal) for proposal in drive(search(), count)]
    why = Diagnosis(Stage.CHECK, "the worker process died (SIGKILL) during: check n256")
    return [
        replace(v, evaluation=replace(v.evaluation, status=Status.EVALUATOR_ERROR, diagnosis=why, cases=()))
        if number in faulty
        else v
        for number, v in enumerate(made)
    ]


def test_a_candidate_that_kills_its_worker_twice_is_quarantined() -> None:
    """As one does whose kernel or build makes the system run out of memory: SIGKILL names nobody."""
    retries, (killer, good) = Retries(), verdicts(2, 0)
    filed, again = retries.sort([killer, good])
    assert (filed, again) == ([good], [killer.proposal])
    filed, again = retries.sort([killer])
    assert again == []
    assert [verdict.state for verdict in filed] == [State.QUARANTINED]
    assert filed[0].evaluation.status is Status.EVALUATOR_ERROR


def test_one_kill_is_forgotten() -> None:
    retries, (killed, other), (fine, _) = Retries(), verdicts(2, 0), verdicts(2)
    retries.sort([killed, other])
    second = replace(fine, proposal=killed.proposal)
    assert retries.sort([second]) == ([second], [])
    assert second.state is State.DONE


class LosesItsDevice(SimulatedEvaluator):
    def __init__(self, after: int) -> None:
        super().__init__(CASES, ratio, run=RUN)
        self.after = after
        self.started = 0

    def start(self, proposal: Proposal, rivals: dict[str, float]) -> None:  # type: ignore[override]
        self.started += 1
        super().start(proposal, rivals)

    async def finished(self, timeout_s: float) -> list[Verdict]:
        if self.started > self.after:
            await asyncio.sleep(0)
            raise DeviceLostError("cuda:0 is lost", fix="look at dmesg")
        return await super().finished(timeout_s)


def test_a_lost_device_pauses_the_run(archive: Archive) -> None:
    run, evaluator = search(), LosesItsDevice(after=8)
    with pytest.raises(DeviceLostError, match="is lost"):
        go(run, evaluator, archive, "evaluations=40")
    filed = len(list(archive.evaluations(RUN)))
    waiting = [proposal for proposal, _ in archive.open_proposals(RUN)]
    assert filed == run.evaluated > 0
    assert waiting, "what was in flight is open still"
    state = archive.load_state(RUN)
    assert state is not None
    later = search()
    later.restore(state["search"], archive.evaluations(RUN), waiting, archive.candidate)
    meter = Meter(Budget.parse("evaluations=20"), spent=state["meter"])
    go(later, SimulatedEvaluator(CASES, ratio, run=RUN), archive, meter)
    assert len(list(archive.evaluations(RUN))) == 20

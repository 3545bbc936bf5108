"""The state machine between proposals and workers, with an executor that answers as told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from evo import ids
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.evaluator import Evaluator
from evo.fitness.executor import LocalExecutor
from evo.fitness.tasks import BuildTask, CheckTask, Outcome, Task
from evo.genome import Genome, make_candidate
from evo.operators.rmsnorm import RmsNorm
from evo.records import Build, DeviceFacts, Kernel, Proposal, State, Status, Verdict

OPERATOR, TARGET = RmsNorm(), CpuTarget()
CASES = tuple(case for case in OPERATOR.cases("cpu") if case.name == "bf16-32x1024")


class Scripted(LocalExecutor):
    """Builds everything at once; answers device tasks with the next of `answers`."""

    def __init__(self, answers: Sequence[Status]) -> None:
        super().__init__(TARGET.devices(), builders=2)
        self.answers = list(answers)
        self.waiting: list[Task] = []

    def devices(self) -> tuple[DeviceFacts, ...]:
        return TARGET.devices()

    def submit(self, task: Task) -> str:
        self.waiting.append(task)
        return task.id

    def poll(self, timeout_s: float) -> list[Outcome]:
        tasks, self.waiting = self.waiting, []
        return [self._answer(task) for task in tasks]

    def _answer(self, task: Task) -> Outcome:
        if isinstance(task, BuildTask):
            kernels = tuple(Kernel(name) for name in task.request.kernels)
            build = Build(ids.digest([repr(task.request)]), Status.OK, "test", 0.1, code_hash="same", kernels=kernels)
            return Outcome(task.id, Status.OK, 0.1, build=build)
        assert isinstance(task, CheckTask)
        return Outcome(task.id, self.answers.pop(0), 0.2)


def proposal(values: dict[str, int | str]) -> Proposal:
    genome = Genome.read(OPERATOR.seeds("cpu")[0])
    return Proposal(ids.new_id(), "run", make_candidate("rmsnorm", "cpu", genome, values))


def judge(evaluator: Evaluator, given: Proposal) -> Verdict:
    async def wait() -> Verdict:
        evaluator.start(given, {})
        while True:
            for verdict in await evaluator.finished(0.1):
                return verdict

    return asyncio.run(wait())


def test_equal_machine_code_and_plan_is_a_duplicate_with_the_status_of_the_first() -> None:
    evaluator = Evaluator(Scripted([Status.WRONG_RESULT]), OPERATOR, TARGET, CASES, {})
    first = judge(evaluator, proposal({}))
    assert first.state is State.DONE
    assert first.evaluation.status is Status.WRONG_RESULT
    genome = Genome.read(OPERATOR.seeds("cpu")[0])
    other = next(v for v in genome.genes["LANES"].choices if v != genome.genes["LANES"].default)
    second = judge(evaluator, proposal({"LANES": other}))  # the scripted builds are all the same code
    assert second.state is State.DUPLICATE
    assert second.evaluation.duplicate_of == first.proposal.candidate.id
    assert second.evaluation.status is Status.WRONG_RESULT


@pytest.mark.parametrize("fault", [Status.EVALUATOR_ERROR, Status.UNSTABLE_TIMING])
def test_a_second_look_is_no_duplicate_of_the_first(fault: Status) -> None:
    """A candidate whose evaluation evo itself spoiled is tried again: it must be evaluated then, not called known."""
    evaluator = Evaluator(Scripted([fault, Status.OK]), OPERATOR, TARGET, CASES, {})
    given = proposal({})
    assert judge(evaluator, given).evaluation.status is fault
    again = judge(evaluator, given)
    assert again.state is State.DONE
    assert again.evaluation.status is Status.OK


@pytest.mark.parametrize("first", [Status.WRONG_RESULT, Status.UNSTABLE_TIMING])
def test_equal_code_in_flight_waits_for_what_becomes_of_the_first(first: Status) -> None:
    evaluator = Evaluator(Scripted([first, Status.OK]), OPERATOR, TARGET, CASES, {})
    genome = Genome.read(OPERATOR.seeds("cpu")[0])
    other = next(v for v in genome.genes["LANES"].choices if v != genome.genes["LANES"].default)

    async def both() -> list[Verdict]:
        for values in ({}, {"LANES": other}):
            evaluator.start(proposal(values), {})
        said: list[Verdict] = []
        while len(said) < 2:
            said += await evaluator.finished(0.1)
        return said

    one, two = asyncio.run(both())
    assert one.evaluation.status is first
    assert evaluator.in_flight() == 0
    if first is Status.WRONG_RESULT:  # a verdict on the code: it holds for both
        assert (two.state, two.evaluation.status) == (State.DUPLICATE, first)
        assert two.evaluation.duplicate_of == one.proposal.candidate.id
    else:  # says nothing of the code: the second is evaluated itself
        assert (two.state, two.evaluation.status) == (State.DONE, Status.OK)

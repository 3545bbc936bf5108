"""Takes proposals through build, inspect, check and time, many at once, and says what became of each.

A state machine over the executor's outcomes: every outcome moves one job to its next stage or ends it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from evo import ids
from evo.errors import GenomeError
from evo.fitness.executor import LocalExecutor
from evo.fitness.inspection import inspect
from evo.fitness.job import InvalidGenome, Job, plan_job
from evo.fitness.sessions import Enough, Heard, measure
from evo.fitness.tasks import BuildTask, CheckTask, Outcome, TimeTask
from evo.genome import Genome, machine_id, machine_set
from evo.operator import Case, Operator
from evo.records import (
    BLAMELESS,
    Candidate,
    CaseResult,
    Diagnosis,
    Evaluation,
    Proposal,
    Purpose,
    Stage,
    State,
    Status,
    Verdict,
)
from evo.target import Target

SEARCH_PAIRS = {"cpu": 16, "gpu": 40}  # at most: a shared CPU may never be quiet enough to resolve more
SEARCH_SECONDS = 2.0  # of a case's race: a slow opponent must not cost a search its minutes
FINAL_PAIRS = 40  # of a candidate that is judged alone, in one process
SESSION_PAIRS = 16  # of a finalist, in each of its processes: what differs between these weighs more


class Evaluator:
    """Evaluates proposals of one operator on one device. `yardsticks` says whom each case is timed against, `known`
    which machine sets (see `evo.genome.machine_set`) were judged before, as whose and how."""

    def __init__(
        self,
        executor: LocalExecutor,
        operator: Operator,
        target: Target,
        cases: Sequence[Case],
        yardsticks: Mapping[str, str],
        *,
        run: str = "",
        protocol: str = "",
        known: Mapping[str, tuple[str, Status]] | None = None,
    ) -> None:
        self.executor = executor
        self.operator = operator
        self.target = target
        self.facts = executor.devices()[0]
        self.cases = tuple(cases)
        self.yardsticks = yardsticks
        self.timed = frozenset(case.name for case in cases if case.group != "check")
        self.run = run
        self.protocol = protocol  # "": the target's default; the yardsticks were chosen under it
        self._jobs: dict[str, Job] = {}  # by the task that each waits for
        self._known = dict(known or {})  # machine set -> candidate, status
        self._twins: dict[str, list[Job]] = {}  # by the machine set in flight: who waits for what becomes of it
        self._ready: list[Verdict] = []

    # --- the engine's view

    def room(self) -> int:
        """How many more proposals keep builders and device busy."""
        return self.executor.builders + 1 - self.in_flight()

    def in_flight(self) -> int:
        return len({id(job) for job in self._jobs.values()}) + sum(map(len, self._twins.values()))

    def start(self, proposal: Proposal, rivals: Mapping[str, float]) -> None:
        self._begin(proposal, Purpose.SEARCH, rivals, self.timed)

    async def finished(self, timeout_s: float) -> list[Verdict]:
        """Verdicts since the last call; waits for the first at most `timeout_s`."""
        if not self._ready:
            for outcome in await asyncio.to_thread(self.executor.poll, timeout_s):
                self._advance(outcome)
            self.executor.tell()
        ready, self._ready = self._ready, []
        return ready

    async def finals(self, members: Mapping[str, Candidate], enough: Enough, heard: Heard) -> list[Evaluation]:
        """Each candidate again on the cases that name it, in fresh processes, with fresh contents and fixed pairs."""
        self.cancel()
        return await measure(self, members, Purpose.FINAL, SESSION_PAIRS, enough, heard)

    async def judge(
        self,
        candidate: Candidate,
        purpose: Purpose,
        timed: frozenset[str],
        *,
        pairs: int = FINAL_PAIRS,
        heard: Callable[[str], None] = lambda case: None,
    ) -> Evaluation:
        """One candidate alone, through all stages; `timed` names the cases to time: with exactly so many pairs, save in
        search, where racing decides. `heard` is told the case that is timed, "" before that, and again every second."""
        pairs = 0 if purpose is Purpose.SEARCH else pairs
        self.executor.begun()  # what was before
        self._begin(Proposal(ids.new_id(), self.run, candidate), purpose, {}, timed, pairs)
        case = ""
        while True:
            verdicts = await self.finished(1.0)
            cases = [_case(what) for what in self.executor.begun()] or [case]  # a beat: it is still at that
            case = cases[-1]
            for each in cases:
                heard(each)
            for verdict in verdicts:
                return verdict.evaluation

    def cancel(self) -> None:
        """Forgets everything in flight."""
        for task in list(self._jobs):
            self.executor.cancel(task)
        self._jobs.clear()
        self._twins.clear()
        self._ready.clear()

    # --- stages

    def _begin(
        self, proposal: Proposal, purpose: Purpose, rivals: Mapping[str, float], timed: frozenset[str], pairs: int = 0
    ) -> None:
        candidate = proposal.candidate
        cases = [case for case in self.cases if case.group == "check" or case.name in timed]
        drawn = self.operator.drawn(cases, np.random.default_rng(secrets.randbits(128)))
        try:
            genome = Genome.parse(candidate.source, candidate.suffix)
        except GenomeError as error:
            self._invalid(proposal, purpose, str(error))
            return
        job = Job(proposal, purpose, genome, [*cases, *drawn], timed, drawn=drawn, rivals=rivals, pairs=pairs)
        try:
            tasks = plan_job(job, self.operator, self.facts, self.target.arch)
        except InvalidGenome as error:
            self._end(job, Status.INVALID_GENOME, Diagnosis(Stage.PLAN, str(error)))
            return
        for task in tasks:
            self._submit(job, task)

    def _submit(self, job: Job, task: BuildTask | CheckTask | TimeTask) -> None:
        self._jobs[self.executor.submit(task)] = job

    def _advance(self, outcome: Outcome) -> None:
        job = self._jobs.pop(outcome.task, None)
        if job is None:
            return  # cancelled
        stages = {Stage.BUILD: self._built, Stage.CHECK: self._checked, Stage.TIME: self._timed}
        stages[job.stage](job, outcome)

    def _built(self, job: Job, outcome: Outcome) -> None:
        request = job.waiting.pop(outcome.task)
        job.spend(Stage.BUILD, outcome.seconds)
        if outcome.build is None or outcome.status is not Status.OK:
            self._end(job, outcome.status, outcome.diagnosis)
            return
        job.built[request] = outcome.build
        if not job.waiting:
            self._inspect(job)

    def _inspect(self, job: Job) -> None:
        identities = {}
        for case, plan in job.plans.items():
            build = job.built[job.requests[case]]
            status, diagnosis = inspect(build, plan, self.facts)
            if diagnosis is not None:
                self._end(job, status, Diagnosis(Stage.INSPECT, diagnosis.message, case, diagnosis.detail))
                return
            if case in job.listed:
                identities[case] = machine_id(build, plan, job.requests[case].options)
        if job.purpose is Purpose.SEARCH:
            job.machine = machine_set(identities)
        self._check(job)

    def _check(self, job: Job) -> None:
        """Unless the same machine code has been judged, or is being judged."""
        if job.machine in self._known:
            candidate, status = self._known[job.machine]
            self._end(job, status, None, duplicate_of=candidate)
            return
        if job.machine in self._twins:
            self._twins[job.machine].append(job)
            return
        if job.machine:
            self._twins[job.machine] = []
        job.stage = Stage.CHECK
        listed = tuple(case for case in job.covered if case in job.listed)
        drawn = tuple(case for case in job.drawn if case.name in job.requests)
        self._submit(job, CheckTask(ids.new_id(), job.subject(), listed, secrets.randbits(62), drawn))

    def _checked(self, job: Job, outcome: Outcome) -> None:
        job.spend(Stage.CHECK, outcome.seconds)
        self._collect(job, outcome)
        timed = tuple(case for case in job.covered if case in job.timed and case in self.yardsticks)
        if outcome.status is not Status.OK or not timed:
            self._end(job, outcome.status, outcome.diagnosis)
            return
        job.stage = Stage.TIME
        task = TimeTask(
            ids.new_id(), job.subject(), timed, self.yardsticks, secrets.randbits(62), job.rivals, fixed=job.pairs > 0,
            pairs_max=job.pairs or SEARCH_PAIRS["cpu" if self.target.name == "cpu" else "gpu"],
            seconds_max=SEARCH_SECONDS, protocol=self.protocol,
        )  # fmt: skip
        self._submit(job, task)

    def _timed(self, job: Job, outcome: Outcome) -> None:
        job.spend(Stage.TIME, outcome.seconds)
        self._collect(job, outcome)
        self._end(job, outcome.status, outcome.diagnosis)

    def _collect(self, job: Job, outcome: Outcome) -> None:
        for result in outcome.cases:
            if result.case in job.listed or result.status is not Status.OK:
                job.results[result.case] = result
        diagnosis = outcome.diagnosis
        if diagnosis is not None and diagnosis.case and diagnosis.case in job.requests and not outcome.cases:
            job.results[diagnosis.case] = CaseResult(diagnosis.case, outcome.status, diagnosis=diagnosis)

    # --- ends

    def _invalid(self, proposal: Proposal, purpose: Purpose, message: str) -> None:
        evaluation = Evaluation(
            ids.new_id(), proposal.run, proposal.candidate.id, purpose, "", self.facts.id, Status.INVALID_GENOME,
            Diagnosis(Stage.PLAN, message),
        )  # fmt: skip
        self._ready.append(Verdict(proposal, evaluation, State.DONE))

    def _end(self, job: Job, status: Status, diagnosis: Diagnosis | None, *, duplicate_of: str = "") -> None:
        for task in [task for task, other in self._jobs.items() if other is job]:
            self.executor.cancel(task)
            del self._jobs[task]
        if job.machine and not duplicate_of and status not in BLAMELESS:
            self._known[job.machine] = (job.proposal.candidate.id, status)
        evaluation = job.evaluation(
            status, diagnosis, device=self.facts.id, yardsticks=self.yardsticks, duplicate_of=duplicate_of
        )
        state = State.DUPLICATE if duplicate_of else State.DONE
        self._ready.append(Verdict(job.proposal, evaluation, state))
        if not duplicate_of:
            for twin in self._twins.pop(job.machine, ()):
                self._check(twin)


def _case(doing: str) -> str:
    """The case that a worker times; "" where it does something else."""
    return doing.removeprefix("time ") if doing.startswith("time ") else ""

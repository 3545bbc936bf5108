"""One candidate's way through the stages, as data: what it waits for and what it has so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evo import ids
from evo.errors import GenomeError
from evo.fitness.tasks import BuildTask, Subject
from evo.genome import Genome, Uncovered, compile_request, objection, resolve_plan, uncovered
from evo.operator import Case, Operator
from evo.plan import LaunchPlan
from evo.records import (
    Build,
    CaseResult,
    CompileRequest,
    DeviceFacts,
    Diagnosis,
    Evaluation,
    Proposal,
    Purpose,
    Stage,
    Status,
)


@dataclass
class Job:
    """A proposal under evaluation. `timed` names the cases to time; the others are only checked."""

    proposal: Proposal
    purpose: Purpose
    genome: Genome
    cases: Sequence[Case]
    timed: frozenset[str]
    stage: Stage = Stage.BUILD
    drawn: tuple[Case, ...] = ()  # those of `cases` that this candidate alone is checked on
    pairs: int = 0  # exactly so many; 0: as many as racing needs
    rivals: Mapping[str, float] = field(default_factory=dict)
    requests: dict[str, CompileRequest] = field(default_factory=dict)  # by case, covered ones only
    plans: dict[str, LaunchPlan] = field(default_factory=dict)
    waiting: dict[str, CompileRequest] = field(default_factory=dict)  # by build task
    built: dict[CompileRequest, Build] = field(default_factory=dict)
    results: dict[str, CaseResult] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    machine: str = ""  # its machine set, once it is built and nobody else had it

    @property
    def covered(self) -> tuple[str, ...]:
        """Names of the covered cases, the merely checked ones first: they are small and find most faults."""
        return tuple(sorted(self.requests, key=lambda name: name in self.timed))

    @property
    def listed(self) -> frozenset[str]:
        """Names of the cases that are not drawn: what candidates have in common."""
        return frozenset(case.name for case in self.cases) - {case.name for case in self.drawn}

    def spend(self, stage: Stage, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def subject(self) -> Subject:
        builds = {case: self.built[request].key for case, request in self.requests.items()}
        candidate = self.proposal.candidate
        return Subject(
            candidate.operator, candidate.target, candidate.suffix, candidate.source, candidate.values, builds,
            {build.key: build for build in self.built.values()},
        )  # fmt: skip

    def evaluation(
        self,
        status: Status,
        diagnosis: Diagnosis | None,
        *,
        device: str,
        yardsticks: Mapping[str, str],
        duplicate_of: str = "",
    ) -> Evaluation:
        return Evaluation(
            id=ids.new_id(),
            run=self.proposal.run,
            candidate=self.proposal.candidate.id,
            purpose=self.purpose,
            yardstick=", ".join(sorted(set(yardsticks.values()))),
            device=device,
            status=status,
            diagnosis=diagnosis,
            builds=tuple(self.built.values()),
            cases=tuple(self.results.values()),
            seconds=dict(self.seconds),
            duplicate_of=duplicate_of,
        )


class InvalidGenome(Exception):
    """The genome or its values cannot be used on this device."""


def plan_job(job: Job, operator: Operator, facts: DeviceFacts, arch: str) -> list[BuildTask]:
    """Resolves every case's plan and the builds it needs; equal builds are asked for once.

    Raises `InvalidGenome` with a sentence for the diagnosis.
    """
    candidate = job.proposal.candidate
    try:
        job.genome.contract(operator)
        values = job.genome.values(candidate.values)
        problem = objection(job.genome, values, facts)
        if problem:
            raise InvalidGenome(problem)
        for case in job.cases:
            why = uncovered(job.genome, operator, case, values, facts)
            try:
                plan = None if why else resolve_plan(job.genome, operator, case, values, facts)
            except Uncovered as error:  # every `repeat` is zero
                plan, why = None, error.reason
            if plan is None:
                diagnosis = Diagnosis(Stage.PLAN, why, case.name)
                if case.name in job.listed:
                    job.results[case.name] = CaseResult(case.name, Status.UNCOVERED, diagnosis=diagnosis)
                continue
            job.plans[case.name] = plan
            job.requests[case.name] = compile_request(
                job.genome, operator, case, values, target=candidate.target, arch=arch
            )
    except GenomeError as error:
        raise InvalidGenome(str(error)) from error
    if not (job.timed or {case.name for case in job.cases}) & job.requests.keys():
        reasons = {r.diagnosis.message for r in job.results.values() if r.diagnosis}
        raise InvalidGenome("covers none of the cases: " + "; ".join(sorted(reasons)[:3]))
    tasks = []
    for request in dict.fromkeys(job.requests.values()):
        task = BuildTask(ids.new_id(), candidate.target, request, examine=job.purpose is not Purpose.SEARCH)
        job.waiting[task.id] = request
        tasks.append(task)
    return tasks

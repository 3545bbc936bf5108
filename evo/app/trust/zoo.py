"""Runs the zoo: does evo give every hostile kernel the status that it must get, and serve honest ones afterwards?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from evo import ids
from evo.app.stand import Stand
from evo.app.telling import Say
from evo.errors import GenomeError
from evo.fitness.cache import BuildCache
from evo.fitness.evaluator import Evaluator
from evo.fitness.executor import LocalExecutor
from evo.fitness.inspection import inspect
from evo.fitness.job import InvalidGenome, Job, plan_job
from evo.fitness.tasks import Outcome
from evo.fitness.zoo import Finding, Member, honest
from evo.genome import Genome
from evo.operator import Case, Operator
from evo.records import BLAMELESS, Candidate, Evaluation, Proposal, Purpose, Status
from evo.target import Target

HONEST = "honest"
TRIES = 3
KILLING = frozenset({Status.CRASH, Status.TIMEOUT, Status.LAUNCH_ERROR})  # after these the device is looked at


def run_zoo(stand: Stand, members: Sequence[Member], say: Say) -> list[Finding]:
    """Judges every member on the stand's device, and the honest kernel at first and after whatever killed a worker.

    A member's cases must be among the stand's (see `needed_cases`); else it is judged on all of the stand's.
    """
    judge = _Judge(stand, say, timed=any(member.stage == "time" for member in members))
    findings = [judge.control("before all")]
    for number, member in enumerate(members, 1):
        finding = judge.finding(member)
        say(f"[{number}/{len(members)}] {member.name}: {finding.got}{'' if finding.ok else '  << ' + finding.message}")
        findings.append(finding)
        if finding.got in KILLING:
            findings.append(judge.control(f"after {member.name}"))
    return findings


def needed_cases(members: Sequence[Member], otherwise: Sequence[str]) -> tuple[str, ...]:
    """The cases that a stand for these members must have; `otherwise` where they name none."""
    return tuple(dict.fromkeys(name for member in members for name in member.cases)) or tuple(otherwise)


class _Judge:
    """Evaluates members on one stand, each as if it were the first."""

    def __init__(self, stand: Stand, say: Say, *, timed: bool) -> None:
        self.stand = stand
        self.good = honest(stand.operator.name, stand.target.name) or seed_member(stand.seeds()[0])
        opponents = {HONEST: Genome.parse(self.good.source, self.good.suffix)} if timed else {}
        self.yardsticks = stand.calibrate(say, opponents, tuple(opponents)).yardsticks

    def finding(self, member: Member) -> Finding:
        started = time.perf_counter()
        for _ in range(TRIES):
            found = self._evaluate(member)
            if found.status not in BLAMELESS:
                break
        ok, message = verdict(member, found)
        seconds = time.perf_counter() - started
        return Finding(member.name, member.kind, member.expect, found.status, message, ok, seconds, member.escape)

    def control(self, when: str) -> Finding:
        """The honest kernel must pass, whatever ran before it."""
        return self.finding(replace(self.good, name=f"honest {when}", kind="control"))

    def _evaluate(self, member: Member) -> Evaluation:
        """The text as some author's proposal: it need not even parse."""
        cases = self._cases(member.cases)
        chosen = frozenset(case.name for case in cases if case.group != "check")
        stand, yardsticks = self.stand, self.yardsticks if member.stage == "time" else {}
        evaluator = Evaluator(stand.executor, stand.operator, stand.target, cases, yardsticks)
        return asyncio.run(evaluator.judge(as_candidate(stand.operator, stand.target, member), Purpose.FINAL, chosen))

    def _cases(self, wanted: Sequence[str]) -> tuple[Case, ...]:
        """The wanted cases with the checks of their types; all where the stand has none of them."""
        named = [case for case in self.stand.cases if case.name in wanted]
        if not named:
            return self.stand.cases
        kinds = [dict(case.dtypes) for case in named]
        return tuple(
            case for case in self.stand.cases if case in named or (case.group == "check" and dict(case.dtypes) in kinds)
        )


def seed_member(seed: Genome) -> Member:
    """An operator's seed, which must pass."""
    return Member("seed", "control", seed.summary, seed.suffix, seed.canonical, (Status.OK,))


def as_candidate(operator: Operator, target: Target, member: Member) -> Candidate:
    identity = ids.digest((member.name, member.source))
    return Candidate(identity, operator.name, target.name, "zoo", member.suffix, member.source, member.values)


def said_of(found: Evaluation) -> str:
    """The diagnosis in a line."""
    if found.diagnosis is None:
        return ""
    where = f"{found.diagnosis.case}: " if found.diagnosis.case else ""
    return f"{where}{found.diagnosis.message} {found.diagnosis.detail}".strip()[:600]


def verdict(member: Member, found: Evaluation) -> tuple[bool, str]:
    """Did it get what it must, and what a person should know of it."""
    said = said_of(found)
    if found.status not in member.expect:
        wanted = " or ".join(member.expect)
        return False, f"must be {wanted}, is {found.status}: {said}" + (f" ({member.escape})" if member.escape else "")
    if found.status is Status.OK and member.stage == "time":
        gains = [(case.case, case.timing) for case in found.cases if case.timing is not None]
        if not gains:
            return False, "was accepted and never timed"
        for case, timing in gains:
            said = f"{case}: {timing.ratio:.3f} ({timing.low:.3f} to {timing.high:.3f}) of the honest kernel"
            if timing.low >= member.gain:
                return False, f"{said}: a gain that it must not have"
        return True, said
    if member.says and member.says not in said:
        return False, f"the diagnosis does not say {member.says!r}: {said}"
    return True, said


def build_zoo(
    operator: Operator, target: Target, cases: Sequence[Case], members: Sequence[Member], say: Say
) -> list[Finding]:
    """The half that needs no device: members of stage "build" are refused, all others build and fit their plans."""
    BuildCache()
    executor = LocalExecutor([target.nominal()])
    try:
        builds = [_Building(operator, target, cases, member, executor) for member in members]
        while any(build.outcome is None for build in builds):
            for outcome in executor.poll(1.0):
                for build in builds:
                    build.take(outcome, executor)
    finally:
        executor.close()
    findings = []
    for member, build in zip(members, builds, strict=True):
        status, said = build.outcome or (Status.EVALUATOR_ERROR, "")
        expect = member.expect if member.stage == "build" else (Status.OK,)
        findings.append(Finding(member.name, member.kind, expect, status, said[:600], status in expect))
        say(f"{member.name}: {status} {'' if findings[-1].ok else said}")
    return findings


class _Building:
    """One member's builds; `outcome` is None until all are done or one has failed."""

    def __init__(
        self, operator: Operator, target: Target, cases: Sequence[Case], member: Member, executor: LocalExecutor
    ) -> None:
        self.facts = target.nominal()
        self.outcome: tuple[Status, str] | None = None
        proposal = Proposal(ids.new_id(), "", as_candidate(operator, target, member))
        try:
            genome = Genome.parse(member.source, member.suffix)
            self.job = Job(proposal, Purpose.SEARCH, genome, cases, frozenset(case.name for case in cases))
            tasks = plan_job(self.job, operator, self.facts, target.arch)
        except (GenomeError, InvalidGenome) as error:
            self.outcome = Status.INVALID_GENOME, str(error)
            return
        for task in tasks:
            executor.submit(task)

    def take(self, outcome: Outcome, executor: LocalExecutor) -> None:
        """Notes an outcome, if it is of a task of this member's."""
        request = None if self.outcome else self.job.waiting.pop(outcome.task, None)
        if request is None:
            return
        if outcome.build is None or outcome.status is not Status.OK:
            for left in self.job.waiting:
                executor.cancel(left)
            said = outcome.diagnosis
            self.outcome = outcome.status, f"{said.message} {said.detail}" if said else ""
            return
        self.job.built[request] = outcome.build
        if not self.job.waiting:
            self.outcome = self._inspected()

    def _inspected(self) -> tuple[Status, str]:
        for case, plan in self.job.plans.items():
            status, diagnosis = inspect(self.job.built[self.job.requests[case]], plan, self.facts)
            if diagnosis is not None:
                return status, f"{case}: {diagnosis.message}"
        return Status.OK, ""

"""Before a run: is the oracle right, and who is the yardstick of each case?"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evo import ids
from evo.errors import RunError
from evo.fitness.executor import LocalExecutor
from evo.fitness.job import InvalidGenome, Job, plan_job
from evo.fitness.layout import oracle_case
from evo.fitness.tasks import BaselineReport, BuildTask, CalibrateTask, Subject, Task
from evo.genome import Genome, make_candidate
from evo.operator import Case, Operator
from evo.records import Proposal, Purpose, Status
from evo.target import Target
from evo.wording import count

ORACLE = "oracle"


@dataclass(frozen=True)
class Calibration:
    """`yardsticks`: by case, the fastest baseline that passed the gate there (else the first seed that did)."""

    yardsticks: Mapping[str, str]
    reports: tuple[BaselineReport, ...]


def calibrate(
    executor: LocalExecutor,
    operator: Operator,
    target: Target,
    cases: Sequence[Case],
    opponents: Mapping[str, Genome],
    *,
    fallback: Mapping[str, Genome],
    names: tuple[str, ...] | None = None,
    protocol: str = "",
    say: Callable[[str], None] = lambda message: None,
) -> Calibration:
    """Builds the oracle and the opponents, checks them, and times those that `names` names (None: all that there are;
    then `fallback` opponents serve the cases where none of them passes).

    Raises `RunError` when the oracle is wrong or something does not build.
    """
    path = operator.oracle(target.name)
    say("building the oracle and the opponents")
    subjects = build_subjects(executor, operator, target, cases, opponents)
    truths = [oracle_case(operator, case) for case in cases]
    oracle = build_subjects(executor, operator, target, truths, {ORACLE: Genome.read(path)} if path else {}).get(ORACLE)
    if path and oracle is None:
        raise RunError(f"the oracle of {operator.name!r} covers none of the cases", fix=f"see {path}")
    timed = tuple(case.name for case in cases if case.group != "check")
    say("checking the oracle" if names == () else "checking the oracle, timing the baselines")
    reports = _measure(executor, operator, target, timed, oracle, subjects, names, protocol)
    yardsticks = choose(timed, reports)
    for name, genome in (
        fallback.items() if names is None else ()
    ):  # the first that passes serves; mostly it does everywhere
        missing = tuple(case for case in timed if case not in yardsticks)
        if not missing:
            break
        say(f"no baseline for {len(missing)} of {count(len(timed), 'case')}: timing the seed {genome.species!r}")
        subjects = subjects | build_subjects(executor, operator, target, cases, {name: genome})
        if name in subjects:
            found = _measure(executor, operator, target, missing, oracle, subjects, (name,), protocol)
            yardsticks |= {case: seed.name for seed in found for case in seed.times_us}
            reports += found
    return Calibration(yardsticks, reports)


def choose(cases: Sequence[str], reports: Sequence[BaselineReport]) -> dict[str, str]:
    """By case the fastest of the reported that passed there."""
    found = {}
    for case in cases:
        times = {report.name: report.times_us[case] for report in reports if case in report.times_us}
        if times:
            found[case] = min(times, key=lambda name: times[name])
    return found


def build_subjects(
    executor: LocalExecutor,
    operator: Operator,
    target: Target,
    cases: Sequence[Case],
    genomes: Mapping[str, Genome],
) -> dict[str, Subject]:
    """Genomes with their default genes, built for the cases that they cover; those that cover none are left out.

    Raises `RunError` when one does not build: these are evo's or the operator's own files.
    """
    facts = executor.devices()[0]
    jobs: dict[str, Job] = {}
    waiting: dict[str, tuple[Job, BuildTask]] = {}
    for name, genome in genomes.items():
        candidate = make_candidate(operator.name, target.name, genome, {})
        job = Job(
            Proposal(ids.new_id(), "", candidate), Purpose.SEARCH, genome, cases, frozenset(c.name for c in cases)
        )
        try:
            tasks = plan_job(job, operator, facts, target.arch)
        except InvalidGenome:
            continue
        jobs[name] = job
        for task in tasks:
            waiting[executor.submit(task)] = (job, task)
    while waiting:
        outcomes = executor.poll(1.0)
        executor.tell()
        for outcome in outcomes:
            job, task = waiting.pop(outcome.task)
            if outcome.build is None or outcome.status is not Status.OK:
                reason = outcome.diagnosis.message if outcome.diagnosis else outcome.status
                detail = outcome.diagnosis.detail if outcome.diagnosis else ""
                raise RunError(f"species {job.genome.species!r} does not build: {reason}", fix=detail[:2000])
            job.built[task.request] = outcome.build
    return {name: job.subject() for name, job in jobs.items()}


def _measure(
    executor: LocalExecutor,
    operator: Operator,
    target: Target,
    cases: tuple[str, ...],
    oracle: Subject | None,
    opponents: Mapping[str, Subject],
    names: tuple[str, ...] | None,
    protocol: str,
) -> tuple[BaselineReport, ...]:
    device = executor.devices()[0].id
    seed = secrets.randbits(62)
    task: Task = CalibrateTask(
        ids.new_id(), operator.name, target.name, device, cases, oracle, opponents, seed, names=names,
        protocol=protocol,
    )  # fmt: skip
    executor.submit(task)
    while True:
        outcomes = executor.poll(1.0)
        executor.tell()
        for outcome in outcomes:
            if outcome.status is Status.OK:
                return outcome.baselines
            diagnosis = outcome.diagnosis
            message, detail = (diagnosis.message, diagnosis.detail) if diagnosis else (str(outcome.status), "")
            raise RunError(f"cannot calibrate {operator.name} on {device}: {message}", fix=detail[-2000:])

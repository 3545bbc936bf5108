"""`evo check FILE` and `evo bench FILE`: one genome file, no run, no archive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from evo import ids
from evo.app.stand import Stand, choose_target, find_target, select_cases, stand
from evo.app.telling import Say, of_case
from evo.errors import UnknownNameError, UsageError
from evo.fitness.cache import BuildCache
from evo.fitness.evaluator import Evaluator
from evo.fitness.executor import LocalExecutor
from evo.fitness.inspection import inspect
from evo.fitness.job import InvalidGenome, Job, plan_job
from evo.fitness.tasks import BuildTask, Outcome
from evo.genome import Genome, make_candidate
from evo.operator import Operator
from evo.plugins.manager import Plugins
from evo.records import (
    CaseResult,
    DeviceFacts,
    Diagnosis,
    Evaluation,
    Proposal,
    Purpose,
    Stage,
    Status,
    Value,
)
from evo.target import Target


def _silent(message: str) -> None:
    """For those who need not hear of it."""


def check(
    file: Path,
    *,
    target: str,
    genes: Mapping[str, str],
    cases: tuple[str, ...],
    build_only: bool,
    say: Say = _silent,
) -> Evaluation:
    """Builds, inspects and checks a genome file; with `build_only` no device is needed."""
    plugins = Plugins.load()
    genome = read_genome(file)
    if build_only:
        name = target if target != "auto" else ("cpu" if genome.suffix == ".cpp" else "sm_90")
        return _build_only(genome, plugins.operator(genome.operator), find_target(plugins, name), genes, cases)
    with stand(plugins, genome.operator, _target_for(plugins, genome, target), cases) as here:
        here.calibrate(say, opponents={}, names=())
        evaluator = Evaluator(here.executor, here.operator, here.target, here.cases, {})
        return asyncio.run(_judge(evaluator, here, genome, genes, say))


def bench(
    file: Path,
    *,
    target: str,
    genes: Mapping[str, str],
    cases: tuple[str, ...],
    against: str,
    protocol: str = "",
    say: Say = _silent,
) -> Evaluation:
    """Checks a genome file and times it against the best baseline, or against `against`: a baseline or another file."""
    plugins = Plugins.load()
    genome = read_genome(file)
    with stand(plugins, genome.operator, _target_for(plugins, genome, target), cases, protocol) as here:
        opponents = None
        if against and Path(against).is_file():
            opponents = {against: read_genome(Path(against))}
        elif against:
            _known_baseline(here, against)
        calibration = here.calibrate(say, opponents, (against,) if against else None)
        if against and not calibration.yardsticks:
            report = next((r for r in calibration.reports if r.name == against), None)
            why = "; ".join(sorted(set(report.failures.values()))) if report else "it covers none of the cases"
            raise UsageError(f"{against!r} passes none of the cases: {why}")
        evaluator = Evaluator(
            here.executor, here.operator, here.target, here.cases, calibration.yardsticks, protocol=here.protocol
        )
        return asyncio.run(_judge(evaluator, here, genome, genes, say))


def read_genome(file: Path) -> Genome:
    if file.is_dir():
        raise UsageError(f"{file} is a folder", fix="name a genome file in it (.cu, .ptx or .cpp)")
    if not file.is_file():
        raise UsageError(f"no such file: {file}", fix="name a genome file (.cu, .ptx or .cpp)")
    return Genome.read(file)


def gene_values(genome: Genome, given: Mapping[str, str]) -> dict[str, Value]:
    """`--gene NAME=VALUE` texts as values of the genome's own types."""
    values: dict[str, Value] = {}
    for name, text in given.items():
        if name not in genome.genes:
            raise UnknownNameError("gene", name, genome.genes)
        choices = genome.genes[name].choices
        found = [choice for choice in choices if str(choice) == text]
        if not found:
            shown = ", ".join(map(str, choices[:20]))
            raise UsageError(f"gene {name} has no choice {text!r}", fix=f"there are: {shown}")
        values[name] = found[0]
    return values


async def _judge(evaluator: Evaluator, here: Stand, genome: Genome, genes: Mapping[str, str], say: Say) -> Evaluation:
    candidate = make_candidate(here.operator.name, here.target.name, genome, gene_values(genome, genes))
    heard = of_case(say, "building and checking")
    return await evaluator.judge(candidate, Purpose.FINAL, frozenset(here.timed), heard=heard)


def _build_only(
    genome: Genome, operator: Operator, target: Target, genes: Mapping[str, str], patterns: Sequence[str]
) -> Evaluation:
    """Every build, inspected against the architecture's nominal facts."""
    missing = target.missing()
    if missing:
        raise UsageError(f"target {target.name!r} cannot build here: {missing}")
    candidate = make_candidate(operator.name, target.name, genome, gene_values(genome, genes))
    cases, facts = select_cases(operator, target.name, patterns), target.nominal()
    job = Job(Proposal(ids.new_id(), "", candidate), Purpose.FINAL, genome, cases, frozenset(c.name for c in cases))
    try:
        tasks = plan_job(job, operator, facts, target.arch)
    except InvalidGenome as error:
        return job.evaluation(Status.INVALID_GENOME, Diagnosis(Stage.PLAN, str(error)), device="", yardsticks={})
    failed = build_all(job, tasks, facts)
    if failed is not None:
        return job.evaluation(failed.status, failed.diagnosis, device="", yardsticks={})
    for case, plan in job.plans.items():
        status, diagnosis = inspect(job.built[job.requests[case]], plan, facts)
        job.results[case] = CaseResult(case, status, diagnosis=diagnosis)
    bad = next((r for r in job.results.values() if r.status not in (Status.OK, Status.UNCOVERED)), None)
    if bad is None:
        return job.evaluation(Status.OK, None, device="", yardsticks={})
    return job.evaluation(bad.status, bad.diagnosis, device="", yardsticks={})


def build_all(job: Job, tasks: Sequence[BuildTask], facts: DeviceFacts) -> Outcome | None:
    """Builds in builder processes, with their limits; the first outcome that is not ok ends it."""
    BuildCache()
    executor = LocalExecutor([facts])
    try:
        for task in tasks:
            executor.submit(task)
        while job.waiting:
            for outcome in executor.poll(1.0):
                request = job.waiting.pop(outcome.task)
                if outcome.build is None or outcome.status is not Status.OK:
                    return outcome
                job.built[request] = outcome.build
    finally:
        executor.close()
    return None


def _target_for(plugins: Plugins, genome: Genome, target: str) -> str:
    """`auto` for a lone file follows the file: C++ runs on the CPU, CUDA on the first GPU."""
    if target == "auto" and genome.suffix == ".cpp":
        return "cpu"
    place, _, note = choose_target(plugins, target)
    if genome.suffix not in place.suffixes:
        raise UsageError(
            f"target {place.name!r} takes {' and '.join(place.suffixes)} files, this one is {genome.suffix}"
            + (f"; {note}" if note else ""),
            fix="name a target that fits: --target sm_90 (with --build-only where there is no GPU), or cpu for .cpp",
        )
    return place.name


def _known_baseline(here: Stand, name: str) -> None:
    library = {baseline.name: baseline for baseline in here.operator.baselines(here.target.name)}
    known = [*library, *here.operator.genome_baselines(here.target.name)]
    if name not in known:
        raise UnknownNameError("baseline", name, known, fix="or name a genome file")
    if name in library and (missing := library[name].missing()):
        raise UsageError(f"baseline {name!r} is not installed here", fix=f"it needs {missing}")

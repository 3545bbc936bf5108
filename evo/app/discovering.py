"""`evo genes FILE`: what can vary in a source, proved by building every choice. Needs no device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evo import ids
from evo.app.single import read_genome
from evo.app.stand import find_target, select_cases
from evo.app.telling import Say
from evo.errors import RunError, UsageError
from evo.fitness.cache import BuildCache
from evo.fitness.executor import LocalExecutor
from evo.fitness.tasks import BuildTask
from evo.genome import Genome, compile_request, uncovered
from evo.mutators.lifting import apart, lift
from evo.mutators.sites import Site, sites_of
from evo.operator import Case, Operator
from evo.plugins.manager import Plugins
from evo.records import Build, Status, Value, Values
from evo.report.rows import GeneRow
from evo.target import Target
from evo.wording import count

TOLD_EVERY = 8  # builds


@dataclass(frozen=True, slots=True)
class Discovered:
    """`source` has a gene for every row that has a choice; at default values its machine code is the file's."""

    case: str
    rows: tuple[GeneRow, ...]
    source: str
    suffix: str


@dataclass(frozen=True, slots=True)
class _Bench:
    operator: Operator
    target: Target
    case: Case

    def request(self, genome: Genome, values: Values) -> BuildTask:
        asked = compile_request(
            genome, self.operator, self.case, values, target=self.target.name, arch=self.target.arch
        )
        return BuildTask(ids.new_id(), self.target.name, asked)


def discover_genes(
    file: Path, *, target: str = "auto", cases: Sequence[str] = (), say: Say = lambda message: None
) -> Discovered:
    """Lifts all sites of a genome file, builds every choice for one case, and keeps what makes a difference.

    Raises `UsageError` where the file cannot be built to begin with. Where there is nothing to lift there are no rows.
    """
    genome = read_genome(file)
    bench = _bench(genome, target, cases)
    sites = apart(sites_of(genome))
    lifted = lift(genome, sites)
    if not sites or lifted is None:
        return Discovered(bench.case.name, (), genome.canonical, genome.suffix)
    names = lifted[1]
    points = [(name, choice) for site, name in zip(sites, names, strict=True) for choice in site.choices[1:]]
    tasks = [bench.request(genome, {}), bench.request(lifted[0], {})]
    tasks += [bench.request(lifted[0], {name: choice}) for name, choice in points]
    before, same, *others = _build(bench.target, tasks, say)
    if before.status is not Status.OK:
        raise UsageError(f"{file} does not build: {before.diagnosis.message if before.diagnosis else before.status}")
    if same.code_hash != before.code_hash:
        raise RunError(f"{file}: lifting changed the machine code", fix="this is a fault of evo's: report the file")
    built = dict(zip(points, others, strict=True))
    rows = tuple(
        _row(genome, site, before, {choice: built[name, choice] for choice in site.choices[1:]})
        for site, name in zip(sites, names, strict=True)
    )
    kept = [replace(site, choices=row.choices) for site, row in zip(sites, rows, strict=True) if len(row.choices) > 1]
    final = lift(genome, kept) if kept else None
    if final is None:
        return Discovered(bench.case.name, rows, genome.canonical, genome.suffix)
    new = iter(final[1])
    rows = tuple(replace(row, gene=next(new)) if len(row.choices) > 1 else row for row in rows)
    return Discovered(bench.case.name, rows, final[0].canonical, genome.suffix)


def _bench(genome: Genome, target: str, patterns: Sequence[str]) -> _Bench:
    plugins = Plugins.load()
    operator = plugins.operator(genome.operator)
    name = ("cpu" if genome.suffix == ".cpp" else "sm_90") if target == "auto" else target
    place = find_target(plugins, name)
    if missing := place.missing():
        raise UsageError(f"target {place.name!r} cannot build here: {missing}")
    genome.contract(operator)
    chosen = [case for case in select_cases(operator, place.name, patterns) if case.group != "check"]
    values, facts = genome.defaults(), place.nominal()
    case = next((case for case in chosen if not uncovered(genome, operator, case, values, facts)), None)
    if case is None:
        raise UsageError(
            f"the genome covers none of {count(len(chosen), 'case')} at default values", fix="name one with --case"
        )
    return _Bench(operator, place, case)


def _row(genome: Genome, site: Site, before: Build, built: Mapping[Value, Build]) -> GeneRow:
    right = {choice: build for choice, build in built.items() if build.status is Status.OK}
    idle = tuple(choice for choice, build in right.items() if build.code_hash == before.code_hash)
    refused = {
        str(choice): build.diagnosis.message if build.diagnosis else str(build.status)
        for choice, build in built.items()
        if choice not in right
    }
    choices = (site.choices[0], *(choice for choice in right if choice not in idle))
    line = genome.canonical.count("\n", 0, site.start) + 1
    return GeneRow("", site.kind, line, choices, refused, idle)


def _build(target: Target, tasks: Sequence[BuildTask], say: Say) -> list[Build]:
    """In builder processes, with their limits and locks; in the order of the tasks."""
    BuildCache()
    executor = LocalExecutor([target.nominal()])
    found: dict[str, Build] = {}
    try:
        for task in tasks:
            executor.submit(task)
        while len(found) < len(tasks):
            for outcome in executor.poll(1.0):
                lost = Build("", outcome.status, "", outcome.seconds, outcome.diagnosis)
                found[outcome.task] = outcome.build or lost
                if len(found) % TOLD_EVERY == 0:
                    say(f"{len(found)} of {count(len(tasks), 'build')}")
    finally:
        executor.close()
    return [found[task.id] for task in tasks]

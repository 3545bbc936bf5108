"""Garbage in, one verdict out: sources spoilt in every way go through the real evaluator into a real archive.

    python benchmarks/garbage_sources.py --count 1000 --seed 1 --target cpu --out garbage.json

Every source must end in exactly one archived verdict with a status, never `evaluator_error`; `evo check` must name the
trouble as an `EvoError`; no process may be left over and memory may not grow. On a target without a device here
(`--target sm_90`) candidates are built and inspected, and not run. Exit code 1 when anything was violated; the sources
of the violations are kept beside the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import hashlib
import json
import os
import resource
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from garbage_kinds import KINDS, Garbage, make

from evo import app, ids
from evo.app.stand import Stand, find_target, select_cases, stand
from evo.archive import Archive, RunRecord
from evo.engine.problem import Problem
from evo.errors import EvoError, GenomeError
from evo.fitness.evaluator import Evaluator
from evo.fitness.executor import LocalExecutor
from evo.fitness.job import Job
from evo.fitness.tasks import BuildTask, CheckTask, TimeTask
from evo.genome import Genome
from evo.plugins.manager import Plugins
from evo.records import Author, Candidate, Proposal, State, Status, Verdict

CASES = {"cpu": "bf16-32x1024"}
GROWTH_MIB = 64.0  # over the second half; the caches of parsed genomes are full by then
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans of killed workers become ours, and are counted


class BuildOnly(Evaluator):
    """Ends where a device would be needed."""

    def _submit(self, job: Job, task: BuildTask | CheckTask | TimeTask) -> None:
        if isinstance(task, BuildTask):
            super()._submit(job, task)
        else:
            self._end(job, Status.OK, None)


@dataclass
class Report:
    """Counts by kind and outcome; `violations` are what must not be."""

    verdicts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    checks: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    violations: list[dict[str, str]] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    processes_max: int = 0

    def violate(self, item: Garbage, what: str, sources: Path, suffix: str) -> None:
        name = hashlib.sha256(item.data).hexdigest()
        sources.mkdir(parents=True, exist_ok=True)
        (sources / f"{name[:16]}{suffix}").write_bytes(item.data)
        self.violations.append({"kind": item.kind, "source": name, "values": repr(item.values)[:200], "what": what})


def descendants() -> list[int]:
    """Processes below this one that have not ended."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # it has just ended
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found, level = list[int](), {os.getpid()}
    while level := {child for child, parent in parents.items() if parent in level}:
        found += level
    return found


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def candidate_of(item: Garbage, problem: Problem, suffix: str) -> tuple[Candidate, str]:
    """What a mutator's draft becomes where the search can read it, else what a careless author would file; and the name
    of the exception that reading it raised, if that was none that the search expects."""
    text, unexpected = item.data.decode("utf-8", "surrogateescape"), ""
    try:
        return problem.candidate(Genome.parse(text, suffix), item.values), ""
    except GenomeError:
        pass
    except Exception as error:  # any other exception would end a run: it is what this program looks for
        unexpected = f"reading the draft raised {type(error).__name__}: {error}"[:500]
    name = ids.digest([item.data, suffix, repr(item.values)])
    return Candidate(name, problem.operator.name, problem.target, "?", suffix, text, item.values), unexpected


@contextmanager
def opened(operator: str, target: str, case: str) -> Iterator[tuple[Stand, Evaluator]]:
    """A stand and an evaluator that checks and times nothing; build and inspection only where there is no device."""
    plugins = Plugins.load(entry_points=False)
    place = find_target(plugins, target)
    if place.devices():
        with stand(plugins, operator, target, (case,)) as here:
            here.calibrate(lambda message: None, opponents={}, names=())
            yield here, Evaluator(here.executor, here.operator, here.target, here.cases, {})
        return
    item, facts = plugins.operator(operator), place.nominal()
    executor = LocalExecutor([facts])
    try:
        here = Stand(item, place, facts, select_cases(item, place.name, (case,)), executor, "")
        yield here, BuildOnly(executor, item, place, here.cases, {})
    finally:
        executor.close()


async def judge(
    items: Mapping[str, Garbage], proposals: list[Proposal], evaluator: Evaluator, archive: Archive, report: Report
) -> dict[str, Verdict]:
    """Proposes everything, files every verdict in a transaction with what it makes room for; verdicts by proposal."""
    waiting, filed, verdicts = list(reversed(proposals)), dict[str, Verdict](), list[Verdict]()
    total, began = len(proposals), time.monotonic()
    while True:
        starting = [waiting.pop() for _ in range(min(evaluator.room(), len(waiting)))]
        with archive.batch():
            for verdict in verdicts:
                archive.file(verdict.evaluation, verdict.proposal.id, verdict.state)
            for proposal in starting:
                archive.propose(proposal)
        for proposal in starting:
            evaluator.start(proposal, {})
        filed |= {verdict.proposal.id: verdict for verdict in verdicts}
        if len(filed) >= total * len(report.memory_mib) / 10:
            report.memory_mib.append(round(resident_mib(), 1))
            print(
                f"[{time.monotonic() - began:.0f} s] {len(filed)} of {total}, {report.memory_mib[-1]} MiB", flush=True
            )
        report.processes_max = max(report.processes_max, len(descendants()))
        if not (waiting or evaluator.in_flight() or starting):
            return filed
        verdicts = await evaluator.finished(1.0)


def examine(
    items: Mapping[str, Garbage],
    here: Stand,
    verdicts: Mapping[str, Verdict],
    options: argparse.Namespace,
    report: Report,
    sources: Path,
    suffix: str,
) -> None:
    """`evo check` of the same bytes as a file. Where they get as far as a compiler, only a few of each kind."""
    built: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"garbage{suffix}"
        for name, item in items.items():
            if item.values:
                continue  # a file has no values
            if verdicts[name].evaluation.builds or verdicts[name].evaluation.seconds:
                built[item.kind] += 1
                if built[item.kind] > options.checked:  # each of these starts processes
                    continue
            file.write_bytes(item.data)
            try:
                found = app.check(file, target=here.target.name, genes={}, cases=(options.case,), build_only=True)
                report.checks[item.kind][str(found.status)] += 1
            except EvoError as error:
                report.checks[item.kind][type(error).__name__] += 1
                if not str(error).strip() or not error.fix:
                    report.violate(item, f"evo check says no fix: {error}", sources, suffix)
            except Exception as error:  # a traceback for the user: it is what this program looks for
                report.checks[item.kind][type(error).__name__] += 1
                report.violate(item, f"evo check raised {type(error).__name__}: {error}"[:500], sources, suffix)


def audit(archive: Archive, run: str, items: Mapping[str, Garbage], report: Report, sources: Path, suffix: str) -> None:
    """Reads back from the archive: one evaluation a proposal, every proposal ended."""
    rows: dict[str, list[str]] = defaultdict(list)
    owner: dict[str, str] = {}
    with archive.reading() as connection:
        query = "SELECT p.id, p.state, e.id, e.status FROM proposal p LEFT JOIN evaluation e ON e.proposal = p.id"
        for proposal, state, evaluation_id, status in connection.exec_driver_sql(query):
            rows[proposal].append(status or "none")
            owner[evaluation_id] = proposal
            if state not in (State.DONE, State.DUPLICATE, State.QUARANTINED):
                report.violate(items[proposal], f"its proposal is {state}", sources, suffix)
        if (said := connection.exec_driver_sql("PRAGMA integrity_check").scalar_one()) != "ok":
            report.violations.append({"kind": "archive", "what": said})
    for name, item in items.items():
        if len(rows[name]) != 1 or rows[name][0] == "none":
            report.violate(item, f"{len(rows[name])} verdicts: {rows[name]}", sources, suffix)
    for evaluation in archive.evaluations(run):  # everything can be read back
        if evaluation.status is Status.EVALUATOR_ERROR:
            said = f"{evaluation.diagnosis.message}\n{evaluation.diagnosis.detail}" if evaluation.diagnosis else ""
            report.violate(items[owner[evaluation.id]], f"evaluator_error: {said[-1500:]}", sources, suffix)


def gather(
    options: argparse.Namespace,
    problem: Problem,
    texts: list[str],
    suffix: str,
    run: str,
    report: Report,
    sources: Path,
) -> tuple[dict[str, Garbage], list[Proposal]]:
    """All garbage by proposal id, and the proposals in order."""
    items, proposals = dict[str, Garbage](), list[Proposal]()
    for number in range(options.count):
        item = make(options.kinds[number % len(options.kinds)], number, options.seed, texts)
        candidate, unexpected = candidate_of(item, problem, suffix)
        if unexpected:
            report.violate(item, unexpected, sources, suffix)
        proposals.append(Proposal(ids.new_id(), run, candidate, (), Author("garbage"), item.kind))
        items[proposals[-1].id] = item
    return items, proposals


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    report, sources, started = Report(), options.out.with_suffix("").parent / f"{options.out.stem}-sources", time.time()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    with Archive.open(str(folder / "evo.db")) as archive, opened(options.operator, options.target, options.case) as (
        here, evaluator,
    ):  # fmt: skip
        paths = [path for path in here.operator.seeds(here.target.name) if path.suffix != ".ptx"]
        suffix, texts = paths[0].suffix, [path.read_text() for path in paths]
        record = RunRecord(ids.new_id(), here.operator.name, here.target.name, here.facts.id, "garbage", options.seed,
                           "", here.timed, "", "garbage", started)  # fmt: skip
        archive.start_run(record)
        problem = Problem(here.operator, here.target.name, here.cases, here.facts)
        items, proposals = gather(options, problem, texts, suffix, record.id, report, sources)
        verdicts = asyncio.run(judge(items, proposals, evaluator, archive, report))
        for name, verdict in verdicts.items():
            report.verdicts[items[name].kind][str(verdict.evaluation.status)] += 1
        audit(archive, record.id, items, report, sources, suffix)
        judged_s = time.time() - started
        examine(items, here, verdicts, options, report, sources, suffix)
    time.sleep(0.5)
    left, growth = len(descendants()), report.memory_mib[-1] - report.memory_mib[len(report.memory_mib) // 2]
    if left:
        report.violations.append({"kind": "processes", "what": f"{left} processes are left over"})
    if growth > GROWTH_MIB:
        report.violations.append({"kind": "memory", "what": f"grew by {growth:.1f} MiB over the second half"})
    return {
        "target": options.target, "operator": options.operator, "case": options.case, "count": options.count,
        "seed": options.seed, "judged_seconds": round(judged_s, 1), "seconds": round(time.time() - started, 1),
        "verdicts": report.verdicts, "check": report.checks, "processes_max": report.processes_max,
        "processes_left": left, "memory_mib": report.memory_mib, "growth_mib": round(growth, 1),
        "violations": report.violations,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="sources in all; the kinds take turns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--operator", default="rmsnorm")
    parser.add_argument("--case", help="the one that is checked; by default a small one of rmsnorm")
    parser.add_argument("--checked", type=int, default=3, help="of each kind, `evo check` of so many that get built")
    parser.add_argument("--out", type=Path, default=Path("garbage.json"))
    options = parser.parse_args()
    options.case = options.case or CASES.get(options.target, "bf16-32768x1024")
    with tempfile.TemporaryDirectory() as folder:
        result = run(options, Path(folder))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    totals = sum(result["verdicts"].values(), Counter())
    print(f"{options.count} sources in {result['seconds']} s: {dict(totals)}; {len(result['violations'])} violations")
    raise SystemExit(bool(result["violations"]))


if __name__ == "__main__":
    main()

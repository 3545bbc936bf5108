"""How an archive of a million candidates behaves: `python benchmarks/archive_million.py --out archive-million.json`.

70 % failed and were never timed, 25 % have 5 pairs in each of three cases, 5 % have 200. Then `--filed` more are
filed one by one through the archive's own interface, by one writer, in transactions of a few hundred as a run makes
them; the others are put in in bulk. Then it is asked what the command line asks. "first" is the first call on a
freshly opened archive, the others are over `--repeats` calls; "cpu" is this process's own time, which other work on the
machine does not lengthen. The operating system's file cache is warm. `--keep FILE` keeps the archive, and asks the one
that is there.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import resource
import sqlite3
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Page
from sqlalchemy import Connection, Table

from evo.archive import Archive, RunRecord, asking, comparing, failing, lessons, lineage, rows, show, top
from evo.archive import tables as t
from evo.ids import digest, new_id
from evo.lesson import Kind, Lesson, Origin, Scope, Standing
from evo.records import (
    Author,
    Build,
    Candidate,
    CaseResult,
    Deviation,
    Diagnosis,
    Evaluation,
    Kernel,
    Proposal,
    Purpose,
    Stage,
    State,
    Status,
    Timing,
)

CASES = ("bf16-n1024", "bf16-n4096", "bf16-n16384")
RUNS = 20
SOURCES = 2000
LESSONS = 10_000
POPULATION = 64  # parents are drawn from this many recent candidates
BATCH = 250
BULK = 5000
LIMITS = {"insert rows/s": 2000.0, "top": 50.0, "lineage": 100.0, "lessons": 20.0, "file_gb": 3.0}
OPCODES = {name: 8 + len(name) for name in "FFMA FADD LDG.E.128 STG.E.128 SHFL.BFLY IMAD MOV S2R BAR.SYNC EXIT".split()}
FAILED = (
    (Status.RESOURCE_LIMIT, Stage.BUILD, "ptxas: too much shared memory (0x{0:x} bytes, 0x38c00 max)"),
    (Status.WRONG_RESULT, Stage.CHECK, "row {0}: relative RMS error 0.{0} is over 0.002"),
    (Status.BUILD_ERROR, Stage.BUILD, "kernel.cu({0}): error: identifier is undefined"),
    (Status.TIMEOUT, Stage.CHECK, "no answer within 10 s"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="candidates")
    parser.add_argument("--filed", type=int, default=20_000, help="more candidates, filed one by one")
    parser.add_argument("--lessons", type=int, default=LESSONS)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep the archive here")
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="evo-archive-") as folder:
        path = options.keep or Path(folder) / "evo.db"
        result: dict[str, Any] = {"candidates": options.rows}
        if not path.exists():
            result |= fill(path, options.rows, random.Random(options.seed))
            result["file_gb"] = round(path.stat().st_size / 1e9, 3)
        if options.filed:
            result |= file_more(path, options.rows, options.filed, random.Random(options.seed + 1))
        result["questions"] = questions(path, options.rows, options.repeats)
        add_lessons(path, options.lessons, random.Random(options.seed))
        result["questions"].append(measure(path, f"lessons, of {options.lessons}", relevant, options.repeats))
        result["peak_memory_mib"] = memory_mib()
    result["limits"] = LIMITS
    show_table(result)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def memory_mib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def fill(path: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """An archive of `count` candidates, in bulk but with the same rows as filing makes."""
    at_quarter = 0.0
    ids: list[str] = []
    started_s = time.perf_counter()
    with Archive.open(str(path)) as archive:
        start_runs(archive)
        first = [verdict(index, count, ids, rng) for index in range(BATCH)]
        file_batch(archive, first)  # makes the boards
        numbers = Counter(evaluation.run for _, evaluation in first)
        for start in range(BATCH, count, BULK):
            made = [verdict(index, count, ids, rng) for index in range(start, min(start + BULK, count))]
            with archive.writing() as connection:
                insert_bulk(connection, made, numbers)
            if not at_quarter and start >= count // 4:
                at_quarter = memory_mib()
        with archive.writing() as connection:
            connection.exec_driver_sql("PRAGMA optimize")
    return {
        "rows_in_all_tables": count_rows(path), "fill_s": round(time.perf_counter() - started_s, 1),
        "memory_mib_at_a_quarter": at_quarter, "memory_mib_when_full": memory_mib(),
    }  # fmt: skip


def file_more(path: Path, count: int, filed: int, rng: random.Random) -> dict[str, Any]:
    """`filed` more candidates through `Archive.propose` and `Archive.file`, one by one, into the full archive."""
    before, filing_s, filing_cpu_s = count_rows(path), 0.0, 0.0
    ids: list[str] = []
    variant = time.time_ns()  # so that a kept archive gets new ones every time
    with Archive.open(str(path)) as archive:
        for start in range(0, filed, BATCH):
            made = [verdict(count - 1, count, ids, rng, variant + start + at) for at in range(BATCH)]
            worked = time.process_time()
            filing_s += file_batch(archive, made)
            filing_cpu_s += time.process_time() - worked
    rows_filed = count_rows(path) - before
    return {
        "filed": filed, "filed_candidates_per_s": round(filed / filing_s),
        "filed_rows_per_s": round(rows_filed / filing_s), "filed_rows_per_cpu_s": round(rows_filed / filing_cpu_s),
    }  # fmt: skip


def start_runs(archive: Archive) -> None:
    for run in range(RUNS):
        archive.start_run(
            RunRecord(
                id=f"run-{run:04d}", operator="rmsnorm", target="sm_90", device="cuda:0", command="evo run",
                seed=run, budget="minutes=480", cases=CASES, yardstick="quack", evaluator="e" * 16,
                started_s=float(run), ended_s=run + 0.5, state="done",
            )
        )  # fmt: skip


def file_batch(archive: Archive, made: list[tuple[Proposal, Evaluation]]) -> float:
    """Seconds."""
    started = time.perf_counter()
    with archive.batch():
        for proposal, evaluation in made:
            archive.propose(proposal)
            archive.file(evaluation, proposal.id)
    return time.perf_counter() - started


def insert_bulk(connection: Connection, made: list[tuple[Proposal, Evaluation]], numbers: Counter[str]) -> None:
    """The rows that filing makes; `numbers` counts the evaluations of every run."""
    boards = {protocol: name for name, protocol in connection.exec_driver_sql("SELECT id, protocol FROM board")}
    new: dict[Table, list[dict[str, Any]]] = defaultdict(list)
    for proposal, evaluation in made:
        source = source_hash(proposal.candidate.source)
        numbers[evaluation.run] += 1
        board = boards["rotation" if evaluation.builds else ""]
        mean, covered = rows.score(evaluation.cases)
        new[t.SOURCE].append({"hash": source, "text": packed(proposal.candidate.source)})
        new[t.CANDIDATE].append(rows.candidate_row(proposal.candidate, source))
        new[t.PROPOSAL].append(rows.proposal_row(proposal, State.DONE, time.time()))
        new[t.PROPOSAL_PARENT] += [
            {"proposal": proposal.id, "position": at, "parent": parent} for at, parent in enumerate(proposal.parents)
        ]
        new[t.EVALUATION].append(
            {
                "id": evaluation.id, "run": evaluation.run, "candidate": evaluation.candidate, "proposal": proposal.id,
                "board": board, "sequence": numbers[evaluation.run], "purpose": "search", "yardstick": "quack",
                "device": "cuda:0", "status": str(evaluation.status), "score": mean, "covered": covered,
                "machine_set": rows.machines(evaluation.cases),
                "diagnosis_json": rows.pack_diagnosis(evaluation.diagnosis),
                "seconds_json": rows.pack_json(dict(evaluation.seconds)), "duplicate_of": "", "filed_s": time.time(),
            }
        )  # fmt: skip
        for build in evaluation.builds:
            new[t.BUILD].append(rows.build_row(build))
            new[t.EVALUATION_BUILD].append(
                {"evaluation": evaluation.id, "position": 0, "build": new[t.BUILD][-1]["id"]}
            )
        for at, case in enumerate(evaluation.cases):
            new[t.CASE_RESULT].append(rows.case_row(case, evaluation=evaluation.id, position=at, board=board))
            if case.timing:
                samples = rows.pack_samples(case.timing.samples)
                new[t.SAMPLE].append({"evaluation": evaluation.id, "position": at, "pairs_us": samples})
    for table in t.Base.metadata.sorted_tables:
        if table in new:
            connection.execute(t.insert_new(table), new[table])


@functools.cache
def packed(source: str) -> bytes:
    return rows.pack_text(source)


@functools.cache
def source_hash(source: str) -> str:
    return rows.source_hash(source)


def count_rows(path: Path) -> int:
    connection = sqlite3.connect(path)
    tables = ("candidate", "proposal", "proposal_parent", "evaluation", "evaluation_build", "build", "case_result",
              "sample", "source")  # fmt: skip
    total = sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
    connection.close()
    return int(total)


def verdict(
    index: int, rows: int, ids: list[str], rng: random.Random, variant: int | None = None
) -> tuple[Proposal, Evaluation]:
    """A candidate of two recent parents with what became of it; `ids` gets its id."""
    number, values = named(index, rows, variant)
    source = f"// source {number}\n" + "extern void kernel();\n" * 200
    name = candidate_id(number, values)
    candidate = Candidate(name, "rmsnorm", "sm_90", f"species-{index % 5}", ".cu", source, values)
    parents = tuple(dict.fromkeys(rng.choice(ids[-POPULATION:]) for _ in range(2))) if ids else ()
    ids.append(name)
    del ids[:-POPULATION]
    run = f"run-{index * RUNS // rows:04d}"
    proposal = Proposal(new_id(), run, candidate, parents, Author("crossover"))
    return proposal, evaluated(candidate.id, run, index, rng)


def named(index: int, rows: int, variant: int | None = None) -> tuple[int, dict[str, int]]:
    """Number of the source and gene values of a candidate."""
    values = {"THREADS": 32 * (1 + index % 32), "STAGES": index % 5, "VARIANT": index if variant is None else variant}
    return index * SOURCES // rows, values


def candidate_id(source: int, values: dict[str, int]) -> str:
    return digest((str(source), json.dumps(values)))


def evaluated(candidate: str, run: str, index: int, rng: random.Random) -> Evaluation:
    luck = rng.random()
    seconds = {"build": 0.06, "check": 0.02, "time": 0.1}
    if luck < 0.7:
        status, stage, message = FAILED[index % len(FAILED)]
        diagnosis = Diagnosis(stage, message.format(index), CASES[0])
        cases = tuple(CaseResult(case, status, diagnosis=diagnosis) for case in CASES[:1])
        return Evaluation(
            new_id(), run, candidate, Purpose.SEARCH, "quack", "cuda:0", status, diagnosis, (), cases, seconds
        )
    pairs = 5 if luck < 0.95 else 200
    kernel = Kernel("rmsnorm_forward", (8, 8, 8, 4), 32 + index % 96, 0, 0, 1024, 1024, OPCODES)
    build = Build(digest((candidate,)), Status.OK, "nvrtc 13", 0.06, None, candidate, candidate, (kernel,), "")
    cases = tuple(timed(case, pairs, candidate, rng) for case in CASES)
    return Evaluation(
        new_id(), run, candidate, Purpose.SEARCH, "quack", "cuda:0", Status.OK, None, (build,), cases, seconds
    )


def timed(case: str, pairs: int, machine: str, rng: random.Random) -> CaseResult:
    ratio = rng.lognormvariate(0.0, 0.3)
    samples = tuple((30.0 / ratio + rng.random(), 30.0 + rng.random()) for _ in range(pairs))
    timing = Timing("rotation", "quack", 30.0 / ratio, 30.0, ratio, ratio * 0.99, ratio * 1.01, 0.95, pairs,
                    "resolved", samples, {"sm_mhz": 1980.0}, 25.0, "graph/graph")  # fmt: skip
    return CaseResult(case, Status.OK, Deviation(1e-3, 1e-2, 1e-3), timing, machine_id=machine)


def add_lessons(path: Path, count: int, rng: random.Random) -> None:
    words = [f"word{number}" for number in range(400)]
    with Archive.open(str(path)) as archive, archive.writing() as connection:
        if connection.exec_driver_sql("SELECT count(*) FROM lesson").scalar_one():
            return
        for number in range(count):
            gene = f"GENE{number % 40}"
            claim = f"{gene}={number % 7} is {' '.join(rng.choices(words, k=12))}"
            scope = Scope("rmsnorm" if number % 2 else "kda", "sm_90", f"species-{number % 5}")
            lesson = Lesson(
                new_id(), Kind.EFFECT, claim, scope, Origin.MEASURED, Standing.SUPPORTED, f"key-{number}", 1.0, 1.0,
                genes={gene: number % 7}, effect=rng.gauss(0.0, 0.02), pairs=9,
            )  # fmt: skip
            lessons.put(connection, lesson, ())


def relevant(archive: Archive) -> list[Any]:
    with archive.reading() as connection:
        found = lessons.relevant(
            connection, operator="rmsnorm", target="sm_90", question="word7 word9 shared memory word11 GENE3",
            genes={"GENE3": 2, "GENE5": 1}, budget_tokens=2000,
        )  # fmt: skip
    return list(found)


def questions(path: Path, rows: int, repeats: int) -> list[dict[str, Any]]:
    last = candidate_id(*named(rows - 1, rows))
    with Archive.open(str(path), readonly=True) as archive:
        best = top(archive)
    asked: dict[str, Callable[[Archive], Any]] = {
        "top": top,
        "top, operator and target": lambda archive: top(archive, "rmsnorm", "sm_90"),
        "top, one case": lambda archive: top(archive, case=CASES[1]),
        "elites": lambda archive: archive.elites("rmsnorm", "sm_90"),
        "lineage, 50 generations": lambda archive: lineage(archive, last),
        "lineage, 1000 generations": lambda archive: lineage(archive, last, depth=1000),
        "show": lambda archive: [show(archive, last)],
        "diff": lambda archive: [comparing.diff(archive, best[0].candidate, best[-1].candidate)],
        "query, by ratio": lambda archive: asking.ask(archive, "ratio > 2", "case", sort="-ratio", limit=20).rows,
    }
    slow: dict[str, Callable[[Archive], Any]] = {
        "failures": failing.failures,
        "query, by a gene (reads all)": lambda archive: asking.ask(archive, f"gene.VARIANT == {rows // 2}").rows,
    }
    found = [measure(path, name, ask, repeats) for name, ask in asked.items()]
    return found + [measure(path, name, ask, 1) for name, ask in slow.items()]


def measure(path: Path, name: str, ask: Callable[[Archive], Any], repeats: int) -> dict[str, Any]:
    times, cpu = [], []
    with Archive.open(str(path), readonly=True) as archive:
        for _ in range(repeats + 1):
            started, worked = time.perf_counter(), time.process_time()
            found = ask(archive)
            times.append((time.perf_counter() - started) * 1e3)
            cpu.append((time.process_time() - worked) * 1e3)
    first, *rest = times
    return {
        "question": name, "found": len(found), "first_ms": round(first, 2),
        "median_ms": round(statistics.median(rest), 2), "worst_ms": round(max(rest), 2),
        "median_cpu_ms": round(statistics.median(cpu[1:]), 2),
    }  # fmt: skip


def show_table(result: dict[str, Any]) -> None:
    facts = ", ".join(f"{name} {value}" for name, value in result.items() if isinstance(value, int | float))
    table = Page(title=facts)
    for name in ("question", "found", "first_ms", "median_ms", "worst_ms", "median_cpu_ms"):
        table.add_column(name, justify="left" if name == "question" else "right")
    for row in result["questions"]:
        table.add_row(*(str(value) for value in row.values()))
    console = Console()
    console.print(table)
    for name in ("top", "lineage", "lessons"):
        worst = max(row["median_ms"] for row in result["questions"] if row["question"].startswith(name))
        verdict = "under" if worst < LIMITS[name] else "OVER"
        console.print(f"{name}: {worst} ms, {verdict} {LIMITS[name]:.0f} ms")


if __name__ == "__main__":
    main()

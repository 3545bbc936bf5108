"""How fast an archive of a million candidates answers: `python benchmarks/archive_top.py --out archive_top.json`.

Builds the archive in a temporary folder by bulk inserts (minutes and 1.4 GB for a million), then asks what the
command line asks. "first" is the first call on a freshly opened archive, the others are over `--repeats` calls. The
operating system's file cache is warm.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, insert

from evo.archive import Archive, RunRecord, lineage, show, top
from evo.archive import tables as t
from evo.archive.migrations import writer
from evo.archive.rows import pack_text, source_hash
from evo.ids import digest

CASES = ("bf16-n1024", "bf16-n4096", "bf16-n16384")
RUNS = 20
SOURCES = 2000
POPULATION = 64  # parents are drawn from this many recent candidates
CHUNK = 5000
FILL_CACHE_KIB = 256 * 1024  # candidates' ids are hashes, so their rows go to random pages
TOP_LIMIT_MS = 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="candidates")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="evo-archive-") as folder:
        path = Path(folder) / "evo.db"
        started = time.perf_counter()
        fill(path, options.rows, random.Random(options.seed))
        result: dict[str, Any] = {
            "rows": options.rows,
            "fill_s": round(time.perf_counter() - started, 1),
            "file_mib": round(path.stat().st_size / 2**20, 1),
            "questions": questions(path, options.rows, options.repeats),
            "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }
    show_table(result)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def fill(path: Path, rows: int, rng: random.Random) -> None:
    """An archive of `rows` candidates in `RUNS` runs; two in three are ok, one in twenty has a final sample too."""
    with Archive.open(str(path)) as archive:
        for run in range(RUNS):
            archive.start_run(
                RunRecord(
                    id=run_id(run), operator="rmsnorm", target="sm_90", device="cuda:0", command="evo run", seed=run,
                    budget="minutes=480", cases=CASES, yardstick="quack", evaluator="e" * 16, started_s=float(run),
                    ended_s=run + 0.5, state="done",
                )
            )  # fmt: skip
        with archive.reading() as connection:
            engine = writer(connection.engine)
        with engine.connect() as connection:  # the pool hands the same connection out again
            connection.exec_driver_sql(f"PRAGMA cache_size = -{FILL_CACHE_KIB}")
        with engine.begin() as connection:
            board(connection)
        for start in range(0, rows, CHUNK):
            with engine.begin() as connection:
                insert_chunk(connection, range(start, min(start + CHUNK, rows)), rows, rng)


def run_id(run: int) -> str:
    return f"run-{run:04d}"


def candidate_id(index: int) -> str:
    return digest((str(index),))


def board(connection: Connection) -> None:
    connection.execute(
        insert(t.BOARD),
        {"id": "board", "operator": "rmsnorm", "target": "sm_90", "evaluator": "e" * 16, "yardstick": "quack",
         "newest_s": float(RUNS)},
    )  # fmt: skip
    texts = [f"// source {number}\n" + "extern void kernel();\n" * 200 for number in range(SOURCES)]
    connection.execute(insert(t.SOURCE), [{"hash": source_hash(text), "text": pack_text(text)} for text in texts])


def insert_chunk(connection: Connection, indices: range, rows: int, rng: random.Random) -> None:
    """Candidates with proposals, parents, evaluations and case results, as the engine files them."""
    sources = [row[0] for row in connection.exec_driver_sql("SELECT hash FROM source ORDER BY hash")]
    bulk(connection, "candidate", (candidate(i, sources[i * SOURCES // rows]) for i in indices))
    bulk(connection, "proposal", (proposal(i, rows) for i in indices))
    bulk(connection, "proposal_parent", (parent(i, place, rng) for i in indices if i for place in range(2)))
    for purpose in ("search", "final"):
        chosen = [i for i in indices if purpose == "search" or i % 20 == 0]
        verdicts = [(i, [math.exp(rng.gauss(0.0, 0.3)) for _ in CASES] if rng.random() < 0.67 else []) for i in chosen]
        results = (
            case(f"{purpose[0]}{i:09d}", place, ratio) for i, ratios in verdicts for place, ratio in enumerate(ratios)
        )
        bulk(connection, "evaluation", (evaluation(i, ratios, purpose, rows) for i, ratios in verdicts))
        bulk(connection, "case_result", results)


def bulk(connection: Connection, table: str, rows: Iterator[tuple[Any, ...]]) -> None:
    """One prepared statement for many rows, each with every column in the table's order."""
    values = list(rows)
    if values:
        marks = ", ".join("?" * len(values[0]))
        connection.exec_driver_sql(f"INSERT INTO {table} VALUES ({marks})", values)


def candidate(index: int, source: str) -> tuple[Any, ...]:
    values = json.dumps({"THREADS": 32 * (index % 32), "VARIANT": index})
    return candidate_id(index), "rmsnorm", "sm_90", f"species-{index % 5}", ".cu", source, values


def proposal(index: int, rows: int) -> tuple[Any, ...]:
    run = run_id(index * RUNS // rows)
    return f"p{index:09d}", run, candidate_id(index), "crossover", "", "", "done", None, None, float(index)


def parent(index: int, place: int, rng: random.Random) -> tuple[Any, ...]:
    return f"p{index:09d}", place, candidate_id(rng.randrange(max(0, index - POPULATION), index))


def evaluation(index: int, ratios: list[float], purpose: str, rows: int) -> tuple[Any, ...]:
    score = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
    number = 2 * index + (purpose == "final")
    return (
        f"{purpose[0]}{index:09d}", run_id(index * RUNS // rows), candidate_id(index), f"p{index:09d}", "board", number,
        purpose, "quack", "cuda:0", "ok" if ratios else "wrong_result", score, len(ratios), "", None, "{}", "",
        float(number),
    )  # fmt: skip


def case(evaluation: str, place: int, ratio: float) -> tuple[Any, ...]:
    return (
        evaluation, place, "board", CASES[place], "ok", "", None, 1e-3, 1e-2, 1e-3, 0, 0.0, 0.0, "rotation", "quack",
        30 / ratio, 30.0, ratio, ratio * 0.99, ratio * 1.01, 0.95, 30, "resolved", "{}", 25.0, "graph/graph",
    )  # fmt: skip


def questions(path: Path, rows: int, repeats: int) -> list[dict[str, Any]]:
    newest = candidate_id(rows - 1)
    asked: dict[str, Callable[[Archive], Any]] = {
        "top": top,
        "top, operator and target": lambda archive: top(archive, "rmsnorm", "sm_90"),
        "top, one case": lambda archive: top(archive, case=CASES[1]),
        "elites": lambda archive: archive.elites("rmsnorm", "sm_90"),
        "lineage, 10 generations": lambda archive: lineage(archive, newest, depth=10),
        "lineage, 50 generations": lambda archive: lineage(archive, newest, depth=50),
        "show": lambda archive: [show(archive, newest)],
    }
    return [measure(path, name, ask, repeats) for name, ask in asked.items()]


def measure(path: Path, name: str, ask: Callable[[Archive], Any], repeats: int) -> dict[str, Any]:
    times = []
    with Archive.open(str(path), readonly=True) as archive:
        for _ in range(repeats + 1):
            started = time.perf_counter()
            found = ask(archive)
            times.append((time.perf_counter() - started) * 1e3)
    first, *rest = times
    return {
        "question": name,
        "found": len(found),
        "first_ms": round(first, 2),
        "median_ms": round(statistics.median(rest), 2),
        "worst_ms": round(max(rest), 2),
    }


def show_table(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['rows']:,} candidates, {result['file_mib']:,} MiB, filled in {result['fill_s']} s")
    for name in ("question", "found", "first_ms", "median_ms", "worst_ms"):
        table.add_column(name, justify="left" if name == "question" else "right")
    for row in result["questions"]:
        table.add_row(*(str(value) for value in row.values()))
    console = Console()
    console.print(table)
    worst = max(row["worst_ms"] for row in result["questions"] if row["question"].startswith("top"))
    verdict = "under" if worst < TOP_LIMIT_MS else "OVER"
    memory = result["peak_memory_mib"]
    console.print(f"slowest top {worst} ms: {verdict} {TOP_LIMIT_MS:.0f} ms; peak memory {memory} MiB")


if __name__ == "__main__":
    main()

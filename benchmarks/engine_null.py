"""The engine by itself: candidates per second through ask, tell and a real archive file, and memory over a long run.

Verdicts come at once from a formula over the genes; everything but building, checking and timing is real.

    python benchmarks/engine_null.py --candidates 50000 --out engine_null.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from evo.archive import Archive, RunRecord
from evo.engine.budget import Budget, Meter
from evo.engine.loop import evolve
from evo.engine.problem import Problem
from evo.engine.result import Progress
from evo.engine.search import Search
from evo.engine.simulated import SIMULATED, SimulatedEvaluator
from evo.genome import Genome
from evo.ids import new_id
from evo.mutators.crossover import TwoPointCrossover, UniformCrossover
from evo.mutators.mutation import CreepMutation, UniformMutation
from evo.operator import Case, Cost, Fill, Operator, Tensor, Tolerance
from evo.records import Candidate, DeviceFacts

GENES = 12  # of eight choices each: a space of 7e10 points
GOAL_PER_S = 300.0
SLICES = 10
MUTATORS = (UniformMutation(), CreepMutation(), UniformCrossover(), TwoPointCrossover())


class Null(Operator):
    """Cases by number; nothing is ever computed."""

    name = "null"
    dims = ("N",)
    tensors = (Tensor("x", "in", ("fp32",), ("N",)), Tensor("y", "out", ("fp32",), ("N",)))

    def __init__(self, cases: int) -> None:
        self.count = cases

    def cases(self, target: str) -> tuple[Case, ...]:
        return tuple(Case(f"case{n}", "tune", {"N": 256 << n}, {"x": "fp32", "y": "fp32"}) for n in range(self.count))

    def neighbours(self, case: Case) -> tuple[Case, ...]:
        return ()

    def inputs(
        self, case: Case, rng: np.random.Generator, distribution: str
    ) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
        return {"x": Fill()}

    def reference(self, inputs: Mapping[str, np.ndarray[Any, Any]], case: Case) -> Mapping[str, np.ndarray[Any, Any]]:
        return {"y": inputs["x"].astype(np.float64)}

    def tolerance(self, case: Case) -> Tolerance:
        return Tolerance(0.0, 0.0)

    def cost(self, case: Case) -> Cost:
        return Cost(4 * case.dims["N"], 4 * case.dims["N"], 0)

    def seeds(self, target: str) -> tuple[Path, ...]:
        return ()

    def oracle(self, target: str) -> Path | None:
        return None


def seed(species: str) -> Genome:
    """A genome as long as a real one (6 KB), with constraints on genes and on dimensions."""
    genes = "\n".join(f"GENE{n:02d} = [1, 2, 4, 8, 16, 32, 64, 128]" for n in range(GENES))
    header = f"""/* evo
operator = "null"
species = "{species}"
summary = "copies"
[genes]
{genes}
[constraints]
all = ["GENE00 * GENE01 <= 4096", "N % GENE02 == 0"]
[[launch]]
kernel = "copy"
grid = ["N"]
block = ["GENE00"]
args = ["x", "y"]
*/
"""
    body = 'extern "C" void copy(long first, long last, int worker, const float* x, float* y) {\n'
    lines = "  for (long i = first; i < last; ++i) y[i] = x[i];  // one element after the other\n"
    return Genome.parse(header + body + 64 * lines + "}\n", ".cpp")


def formula(candidate: Candidate, case: str) -> float:
    """A smooth ridge that differs by case and species; between 0 and 2."""
    number = int(case.removeprefix("case"))
    steps = [abs(math.log2(int(value)) - (number + gene) % 8) for gene, value in enumerate(candidate.values.values())]
    return (2.0 if candidate.species == "one" else 1.8) * math.exp(-0.03 * sum(steps))


def resident_mib() -> float:
    """Memory of this process now, MiB; where there is no /proc, its peak."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def measure(candidates: int, cases: int, capacity: int, path: Path) -> dict[str, Any]:
    """One run of that many candidates; per tenth of it the rate and the memory at its end."""
    operator, run = Null(cases), new_id()
    facts = DeviceFacts("cpu:0", SIMULATED, "cpu", 2, 0, 0, 1 << 20, 1 << 30)
    problem = Problem(operator, "cpu", operator.cases("cpu"), facts)
    names = problem.case_names
    marks: list[tuple[int, float, float]] = []

    def observe(progress: Progress) -> None:
        if progress.evaluated >= candidates * len(marks) / SLICES:
            marks.append((progress.evaluated, time.perf_counter(), resident_mib()))

    with Archive.open(str(path)) as archive:
        archive.start_run(RunRecord(run, "null", "cpu", SIMULATED, "", 0, "", names, SIMULATED, SIMULATED, time.time()))
        search = Search(problem, run, [seed("one"), seed("two")], MUTATORS, seed=1, evaluations=candidates)
        evaluator = SimulatedEvaluator(names, formula, capacity=capacity, run=run)
        meter = Meter(Budget(evaluations=candidates))
        processor_s = time.process_time()
        asyncio.run(evolve(search, evaluator, archive, meter, observe))
        processor_s = time.process_time() - processor_s
    seconds = marks[-1][1] - marks[0][1]
    slices = [
        {"evaluated": b[0], "per_s": (b[0] - a[0]) / (b[1] - a[1]), "resident_mib": b[2]}
        for a, b in zip(marks, marks[1:], strict=False)
    ]
    return {
        "candidates": search.evaluated, "cases": cases, "capacity": capacity, "seconds": seconds,
        "processor_s": processor_s,
        "per_s": search.evaluated / seconds, "goal_per_s": GOAL_PER_S, "slices": slices,
        "growth_mib": slices[-1]["resident_mib"] - slices[len(slices) // 2]["resident_mib"],
        "archive_mib": path.stat().st_size / 2**20, "cores": os.cpu_count(), "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(), "best": search.portfolio.rivals(),
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    table = Table(title=f"engine with a null evaluator, {result['cases']} cases, {result['capacity']} at a time")
    for heading in ("candidates", "per second", "resident MiB"):
        table.add_column(heading, justify="right")
    for part in result["slices"]:
        table.add_row(f"{part['evaluated']:,}", f"{part['per_s']:.0f}", f"{part['resident_mib']:.1f}")
    console = Console()
    console.print(table)
    console.print(
        f"{result['per_s']:.0f} candidates/s (goal {GOAL_PER_S:.0f}),"
        f" {result['candidates'] / result['processor_s']:.0f} per second of processor time;"
        f" memory grew by {result['growth_mib']:.1f} MiB over the second half"
        f" (before that the database fills its page cache); archive {result['archive_mib']:.1f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=50_000)
    parser.add_argument("--cases", type=int, default=11)
    parser.add_argument("--capacity", type=int, default=8, help="proposals in flight")
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options.candidates, options.cases, options.capacity, Path(folder) / "evo.db")
    show(result)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

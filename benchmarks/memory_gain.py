"""What memory is worth: the same budget with and without it, over many seeds.

    python benchmarks/memory_gain.py --out memory_gain.json --picture memory_gain.svg
    python benchmarks/memory_gain.py --real cpu --repeats 3 --evaluations 12 --cases bf16-32x1024 --out real.json

Simulated: a rugged landscape of gene values (some of which always fail), as many repeats as wanted; the engine, the
archive, attribution, lessons, pitfalls and elites are real. A first run fills the archive; then a second run with
another seed gets the same budget once from that archive, and once with `--fresh`. A third arm starts from the lessons
alone, as another team would that imported them. With `--real TARGET` the same is done by `evo run` on a device: there a
curve's points are the search's own numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from evo.app.memory.effects import case_facts
from evo.app.memory.remembering import Memory, remembered
from evo.archive import Archive, RunRecord, lessons
from evo.archive.learning import learn, record_hypothesis
from evo.engine.advice import advised
from evo.engine.budget import Budget, Meter
from evo.engine.loop import evolve
from evo.engine.pitfalls import Pitfalls
from evo.engine.problem import Problem
from evo.engine.result import Progress
from evo.engine.search import Search
from evo.engine.simulated import SIMULATED, SimulatedEvaluator
from evo.genome import Genome
from evo.ids import new_id
from evo.lesson import Kind, Scope
from evo.mutators.crossover import TwoPointCrossover, UniformCrossover
from evo.mutators.mutation import CreepMutation, UniformMutation
from evo.operator import Case, Cost, Fill, Operator, Tensor, Tolerance
from evo.records import Candidate, DeviceFacts

MUTATORS = (UniformMutation(), CreepMutation(), UniformCrossover(), TwoPointCrossover())
SIZES = (256, 1024, 4096, 16384)
ARMS = ("fresh", "lessons", "memory")
COLOURS = {"fresh": "#777777", "lessons": "#1f77b4", "memory": "#d62728"}
RETRIEVAL_GOAL_MS = 20.0


class Landscape(Operator):
    """Nothing is computed: a formula says what a candidate is worth."""

    name = "landscape"
    dims = ("N",)
    tensors = (Tensor("x", "in", ("fp32",), ("N",)), Tensor("y", "out", ("fp32",), ("N",)))

    def cases(self, target: str) -> tuple[Case, ...]:
        return tuple(Case(f"n{n}", "tune", {"N": n}, {"x": "fp32", "y": "fp32"}) for n in SIZES)

    def neighbours(self, case: Case) -> tuple[Case, ...]:
        return ()

    def inputs(self, case: Case, rng: Any, distribution: str) -> dict[str, Any]:
        return {"x": Fill()}

    def reference(self, inputs: Any, case: Case) -> dict[str, Any]:
        return {"y": inputs["x"]}

    def tolerance(self, case: Case) -> Tolerance:
        return Tolerance(0.0, 0.0)

    def cost(self, case: Case) -> Cost:
        return Cost(4 * case.dims["N"], 4 * case.dims["N"], 0)

    def seeds(self, target: str) -> tuple[Path, ...]:
        return ()

    def oracle(self, target: str) -> Path | None:
        return None


def genome() -> Genome:
    genes = "\n".join(f"GENE{n} = [1, 2, 4, 8, 16, 32, 64, 128]" for n in range(8))
    header = f"""/* evo
operator = "landscape"
species = "plain"
summary = "copies"
[genes]
{genes}
STAGES = [1, 2, 3, 4]
STORE = ["st.global", "st.global.cs", "st.global.wt", "st.global.cg"]
[[launch]]
kernel = "copy"
grid = ["N"]
block = ["GENE0"]
args = ["x", "y"]
*/
"""
    return Genome.parse(header + "void copy(long a, long b, int w, const float* x, float* y) {}\n", ".cpp")


def formula(shape: int) -> Callable[[Candidate, str], float | None]:
    """A landscape of its own for every `shape`: each case wants other values; too many stages fit nowhere."""
    rng = random.Random(shape)
    wanted = [[min(7, rng.randrange(6) + number // 2) for _ in range(8)] for number in range(len(SIZES))]
    store = rng.choice(("st.global.cs", "st.global.wt"))

    def ratio(candidate: Candidate, case: str) -> float | None:
        values = candidate.values
        if values["STAGES"] == 4 and int(values["GENE0"]) >= 16:
            return None  # more shared memory than there is
        number = SIZES.index(int(case[1:]))
        steps = [abs(math.log2(int(values[f"GENE{n}"])) - wanted[number][n]) for n in range(8)]
        gain = 0.05 if values["STORE"] == store and number >= 2 else 0.0
        return 2.0 * math.exp(gain - 0.06 * sum(steps) - 0.04 * abs(int(values["STAGES"]) - 3))

    return ratio


def search(archive: Archive, memory: Memory, shape: int, seed: int, evaluations: int) -> list[float]:
    """One run; the portfolio's geometric mean after every evaluation."""
    operator, run = Landscape(), new_id()
    facts = DeviceFacts("cpu:0", SIMULATED, "cpu", 2, 0, 0, 1 << 20, 1 << 30)
    problem = Problem(operator, "cpu", operator.cases("cpu"), facts)
    names = problem.case_names
    archive.start_run(
        RunRecord(run, "landscape", "cpu", SIMULATED, "", seed, "", names, SIMULATED, SIMULATED, time.time())
    )
    hunt = Search(
        problem, run, [genome()], MUTATORS, seed=seed, elites=memory.candidates, known=memory.known,
        evaluations=evaluations, pitfalls=memory.pitfalls,
    )  # fmt: skip
    curve: list[float] = []

    def observe(progress: Progress) -> None:
        if progress.best:
            mean = statistics.fmean(math.log(best.ratio) for best in progress.best.values())
            curve.extend([math.exp(mean)] * (progress.evaluated - len(curve)))

    evaluator = SimulatedEvaluator(names, formula(shape), capacity=1, run=run)
    asyncio.run(evolve(hunt, evaluator, archive, Meter(Budget(evaluations=evaluations)), observe))
    return (curve + curve[-1:] * evaluations)[:evaluations]


def simulated(repeats: int, evaluations: int) -> dict[str, list[list[float]]]:
    """By arm one curve a repeat; every repeat has a landscape, an archive and seeds of its own."""
    operator = Landscape()
    facts = DeviceFacts("cpu:0", SIMULATED, "cpu", 2, 0, 0, 1 << 20, 1 << 30)
    problem = Problem(operator, "cpu", operator.cases("cpu"), facts)
    curves: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    for repeat in range(repeats):
        with tempfile.TemporaryDirectory() as folder, Archive.open(f"{folder}/evo.db") as archive:
            search(archive, Memory(), repeat, 2 * repeat, evaluations)
            learn(archive, operator.name, "cpu", case_facts(operator, "cpu"))
            memory = remembered(archive, problem, [genome()], SIMULATED, evaluations)
            with archive.reading() as connection:
                gains = lessons.listed(connection, kinds=(Kind.EFFECT,))
                failures = lessons.listed(connection, kinds=(Kind.PITFALL,))
            taught = Memory(advised(problem, [genome()], gains), {}, Pitfalls(operator.name, "cpu", failures))
            for arm, start in (("fresh", Memory()), ("lessons", taught), ("memory", memory)):
                curves[arm].append(search(archive, start, repeat, 2 * repeat + 1, evaluations))
    return curves


def real(
    target: str, evaluations: int, operator: str, cases: Sequence[str]
) -> Iterator[tuple[dict[str, list[float]], dict[str, float]]]:
    """The same by whole runs on a device, a repeat at a time: curves and final numbers by arm, "lessons" left out.

    Both arms start from copies of one archive, so that neither learns from the other.
    """
    from evo import app

    def go(archive: Path, seed: int, fresh: bool) -> tuple[list[float], float]:
        curve: list[float] = []

        def observe(progress: Progress) -> None:
            # In a case where nothing is faster yet, or nothing was judged, the user keeps the yardstick: 1.
            logs = [max(0.0, math.log(best.ratio)) for best in progress.best.values()]
            curve.extend([math.exp(sum(logs) / len(cases))] * (progress.evaluated - len(curve)))

        settings = app.Settings(
            operator, target, f"evaluations={evaluations}", tuple(cases), seed, fresh=fresh, archive=str(archive)
        )
        result = app.run(settings, observe)
        won = [max(0.0, math.log(case.ratio)) for case in result.cases if case.candidate]
        return (curve + (curve[-1:] or [1.0]) * evaluations)[:evaluations], math.exp(sum(won) / len(cases))

    for repeat in count():
        with tempfile.TemporaryDirectory() as folder:
            first = Path(folder, "first.db")
            go(first, 2 * repeat, True)
            curves, finals = {}, {}
            for arm in ("fresh", "memory"):
                copy = Path(folder, f"{arm}.db")
                with closing(sqlite3.connect(first)) as connection:
                    connection.execute("VACUUM INTO ?", [str(copy)])
                curves[arm], finals[arm] = go(copy, 2 * repeat + 1, arm == "fresh")
            yield curves, finals


def retrieval_ms(count: int, repeats: int = 30) -> dict[str, float]:
    """How long `relevant` takes among so many lessons of one operator."""
    rng = random.Random(0)
    words = [f"word{number}" for number in range(3000)]
    with tempfile.TemporaryDirectory() as folder, Archive.open(f"{folder}/evo.db") as archive:
        with archive.batch():
            for _ in range(count):
                genes = {f"GENE{rng.randrange(40)}": rng.choice((1, 2, 4, 8))}
                claim = " ".join(rng.choices(words, k=14))
                record_hypothesis(archive, claim, scope=Scope("op", "sm_90"), genes=genes, kind=Kind.NOTE)
        times, processor = [], []
        with archive.reading() as connection:
            for _ in range(repeats):
                question = " ".join(rng.choices(words, k=30))
                began, used = time.perf_counter(), time.process_time()
                lessons.relevant(connection, "op", "sm_90", question, {"GENE3": 4, "GENE7": 2})
                times.append((time.perf_counter() - began) * 1e3)
                processor.append((time.process_time() - used) * 1e3)
    return {
        "lessons": count, "median_ms": statistics.median(times), "worst_ms": max(times),
        "processor_ms": statistics.median(processor), "goal_ms": RETRIEVAL_GOAL_MS,
    }  # fmt: skip


def summary(curves: dict[str, list[list[float]]]) -> dict[str, Any]:
    """By arm the quartiles after every evaluation; and how soon the others are where a fresh run ends."""
    arms = {}
    for arm, runs in curves.items():
        points = [sorted(values) for values in zip(*runs, strict=True)]
        arms[arm] = {
            name: [round(point[int(share * (len(point) - 1))], 4) for point in points]
            for name, share in (("low", 0.25), ("median", 0.5), ("high", 0.75))
        }
    goals = [run[-1] for run in curves["fresh"]]
    for arm, runs in curves.items():
        reached = [
            next((n + 1 for n, value in enumerate(run) if value >= goal), math.inf)
            for run, goal in zip(runs, goals, strict=True)
        ]
        middle = statistics.median(reached)
        arms[arm]["evaluations_to_fresh_end"] = middle if math.isfinite(middle) else None
        logs = [math.log(run[-1] / goal) for run, goal in zip(runs, goals, strict=True)]
        arms[arm]["end_over_fresh_percent"] = round(100 * math.expm1(statistics.fmean(logs)), 2)
        arms[arm]["better_than_fresh"] = sum(log > 0 for log in logs)
    return arms


def draw(path: Path, arms: dict[str, Any], title: str) -> None:
    """Median and quartiles by arm, as one SVG that loads nothing."""
    width, height, left, bottom = 640, 360, 56, 44
    count = len(arms["fresh"]["median"])
    low = min(min(arm["low"]) for arm in arms.values())
    high = max(max(arm["high"]) for arm in arms.values())

    def at(number: int, value: float) -> str:
        x = left + (width - left - 16) * number / max(1, count - 1)
        y = height - bottom - (height - bottom - 36) * (value - low) / ((high - low) or 1)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="20">{title}</text>',
    ]
    for step in range(5):
        value = low + (high - low) * step / 4
        x, y = at(0, value).split(",")
        parts.append(f'<path d="M{x} {y}H{width - 16}" stroke="#dddddd"/><text x="8" y="{y}">{value:.2f}x</text>')
    for row, (arm, data) in enumerate(arms.items()):
        colour = COLOURS[arm]
        band = [at(n, v) for n, v in enumerate(data["high"])] + [at(n, v) for n, v in enumerate(data["low"])][::-1]
        line = " ".join(at(n, v) for n, v in enumerate(data["median"]))
        parts.append(f'<polygon points="{" ".join(band)}" fill="{colour}" opacity="0.15"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{width - 120}" y="{height - bottom - 60 + 16 * row}" fill="{colour}">{arm}</text>')
    parts.append(f'<text x="{left}" y="{height - 12}">evaluations, 1 to {count}; band: quartiles</text></svg>')
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=150, help="budget of every run")
    parser.add_argument("--lessons", type=int, default=10_000, help="among which retrieval is timed")
    parser.add_argument("--seconds", type=int, default=0, help="no further real repeat that would end later; 0: all")
    parser.add_argument("--real", metavar="TARGET", help="whole runs on this target instead of the simulation")
    parser.add_argument("--operator", default="rmsnorm", help="of the real runs")
    parser.add_argument("--cases", nargs="*", default=(), help="of the real runs")
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    parser.add_argument("--picture", type=Path, help="where to draw the curves, an SVG file")
    options = parser.parse_args()
    result: dict[str, Any] = {"kind": options.real or SIMULATED, "evaluations": options.evaluations}
    if options.real:
        result["finals"] = {}
        curves: dict[str, list[list[float]]] = {}
        began = time.monotonic()
        found = real(options.real, options.evaluations, options.operator, options.cases)
        for number, (new, finals) in enumerate(islice(found, options.repeats), start=1):
            for arm, curve in new.items():
                curves.setdefault(arm, []).append(curve)
                result["finals"].setdefault(arm, []).append(finals[arm])
            write(result, curves, options)
            used = time.monotonic() - began
            print(f"repeat {number}: {used:.0f} s, {finals}", flush=True)
            if options.seconds and used + used / number > options.seconds:
                break
    else:
        curves = simulated(options.repeats, options.evaluations)
        result["retrieval"] = retrieval_ms(options.lessons)
        write(result, curves, options)
    show(result)


def write(result: dict[str, Any], curves: dict[str, list[list[float]]], options: argparse.Namespace) -> None:
    """After every repeat, so that one that is cut off costs only itself."""
    result |= {"repeats": len(curves["fresh"]), "arms": summary(curves), "curves": curves}
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    if options.picture:
        what = "on a simulated landscape" if not options.real else f"on {options.real}, {options.operator}"
        draw(options.picture, result["arms"], f"best portfolio by evaluation, {result['repeats']} repeats {what}")


def show(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['repeats']} repeats of {result['evaluations']} evaluations, {result['kind']}")
    for name in ("arm", "first", "end", "over fresh", "better", "evaluations to fresh's end"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for arm, data in result["arms"].items():
        table.add_row(
            arm, f"{data['median'][0]:.3f}x", f"{data['median'][-1]:.3f}x", f"{data['end_over_fresh_percent']:+.1f} %",
            f"{data['better_than_fresh']} of {result['repeats']}", str(data["evaluations_to_fresh_end"]),
        )  # fmt: skip
    console = Console()
    console.print(table)
    if "retrieval" in result:
        found = result["retrieval"]
        console.print(f"retrieval among {found['lessons']} lessons: median {found['median_ms']:.1f} ms, worst"
                      f" {found['worst_ms']:.1f} ms (goal {RETRIEVAL_GOAL_MS:.0f} ms)")  # fmt: skip


if __name__ == "__main__":
    main()

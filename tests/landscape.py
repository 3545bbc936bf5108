"""A small operator with two species and a known best, for tests of mutators and engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evo.engine.problem import Problem
from evo.engine.search import Search
from evo.engine.simulated import Formula, SimulatedEvaluator
from evo.genome import Genome
from evo.mutators.crossover import TwoPointCrossover, UniformCrossover
from evo.mutators.mutation import CreepMutation, UniformMutation
from evo.operator import Case, Cost, Fill, Operator, Tensor, Tolerance
from evo.records import Candidate, DeviceFacts, Proposal

RUN = "run-1"
CASES = ("n256", "n1024", "n4096")
MUTATORS = (UniformMutation(), CreepMutation(), UniformCrossover(), TwoPointCrossover())
SMALL = 'AAA = [1, 2, 3]\nEEE = ["some", "more"]'
FACTS = DeviceFacts("cpu:0", "a test's idea of a CPU", "cpu", 2, 0, 0, 1 << 20, 1 << 30)


class Scale(Operator):
    name = "scale"
    dims = ("N",)
    tensors = (Tensor("x", "in", ("fp32",), ("N",)), Tensor("y", "out", ("fp32",), ("N",)))

    def cases(self, target: str) -> tuple[Case, ...]:
        return tuple(Case(f"n{n}", "tune", {"N": n}, {"x": "fp32", "y": "fp32"}) for n in (256, 1024, 4096))

    def neighbours(self, case: Case) -> tuple[Case, ...]:
        return ()

    def inputs(self, case: Case, rng: np.random.Generator, distribution: str) -> Mapping[str, Fill | np.ndarray]:
        return {"x": Fill()}

    def reference(self, inputs: Mapping[str, np.ndarray], case: Case) -> Mapping[str, Any]:
        return {"y": 2.0 * inputs["x"].astype(np.float64)}

    def tolerance(self, case: Case) -> Tolerance:
        return Tolerance(1e-6, 1e-5)

    def cost(self, case: Case) -> Cost:
        return Cost(4 * case.dims["N"], 4 * case.dims["N"], case.dims["N"])

    def seeds(self, target: str) -> tuple[Path, ...]:
        return ()

    def oracle(self, target: str) -> Path | None:
        return None


def genome(species: str = "wide", genes: str = "", constraints: str = "") -> Genome:
    """A genome of `Scale`: by default six genes, two of them with strings, and over 80,000 points."""
    genes = genes or (
        "AAA = [3, 1, 2, 4, 5, 6, 7, 8]\nBBB = [8, 1, 2, 4, 16, 32, 64, 128]\nCCC = { low = 0, high = 70, step = 10 }\n"
        'DDD = [1, 2, 3, 4, 5]\nEEE = ["none", "some", "more", "most"]\nFFF = ["plain", "fancy"]'
    )
    header = f"""/* evo
operator = "scale"
species = "{species}"
summary = "y = 2 x"
[genes]
{genes}
[constraints]
all = [{constraints}]
[[launch]]
kernel = "scale"
grid = ["N"]
block = ["AAA"]
args = ["x", "y", "i32:N"]
*/
"""
    body = 'extern "C" void scale(long first, long last, int worker, const float* x, float* y, int n) {\n'
    loop = "  for (long i = first; i < last; ++i) y[i] = 2.0f * x[i];\n}\n"
    return Genome.parse(header + body + loop, ".cpp")


def problem() -> Problem:
    operator = Scale()
    return Problem(operator, "cpu", operator.cases("cpu"), FACTS)


def ratio(candidate: Candidate, case: str) -> float:
    """A rugged slope: every case wants other values, two genes interact, strings matter; the best is exactly 2."""
    number = {"n256": 0, "n1024": 1, "n4096": 2}[case]
    values: dict[str, Any] = {"BBB": 1, "CCC": 0, "DDD": 1, "FFF": "plain"} | dict(candidate.values)  # a species may
    loss = 0.12 * abs(values["AAA"] - 7 + number)  # have fewer genes
    loss += 0.12 * abs(math.log2(values["BBB"]) - 4 - number)
    loss += 0.12 * abs(values["CCC"] - 40 - 10 * number) / 10
    loss += 0.12 * abs(values["DDD"] - 2 - number)
    loss += 0.4 * (values["EEE"] != "more") + 0.3 * (values["FFF"] != "fancy")
    loss += 0.2 * ((values["AAA"] + values["DDD"]) % 2 == 0)
    return 2.0 * math.exp(-loss)


def search(seed: int = 0, **options: Any) -> Search:
    seeds = options.pop("seeds", (genome(),))
    return Search(problem(), RUN, seeds, MUTATORS, seed=seed, **options)


def simulated(formula: Formula = ratio, **options: Any) -> SimulatedEvaluator:
    return SimulatedEvaluator(CASES, formula, run=RUN, **options)


def ask(run: Search) -> Proposal | None:
    return asyncio.run(run.ask())


def drive(run: Search, evaluations: int, formula: Formula = ratio) -> list[Proposal]:
    """Asks and tells one after another, with no archive."""
    evaluator, asked = simulated(formula), list[Proposal]()
    while len(asked) < evaluations and (proposal := ask(run)):
        asked.append(proposal)
        run.tell(evaluator.verdict(proposal))
    return asked


def candidates(proposals: Sequence[Proposal]) -> list[str]:
    return [proposal.candidate.id for proposal in proposals]

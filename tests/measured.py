"""Archives filled with candidates whose speed follows a formula, for tests of what is learned from them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from evo.archive import Archive, RunRecord
from evo.ids import digest, new_id
from evo.lesson import CaseFacts
from evo.records import (
    Author,
    Candidate,
    CaseResult,
    Diagnosis,
    Evaluation,
    Proposal,
    Purpose,
    Stage,
    Status,
    Timing,
    Value,
)

CASES = {f"n{n}": CaseFacts({"N": n}, "fp32") for n in (256, 1024, 4096, 16384)}
Values = Mapping[str, Value]
Law = Callable[[Values, int], float]  # log ratio by gene values and N


def archive(path: Path, *, run: str = "run-1", evaluator: str = "e1") -> Archive:
    store = Archive.open(str(path))
    start(store, run, evaluator)
    return store


def start(store: Archive, run: str, evaluator: str = "e1") -> None:
    store.start_run(RunRecord(run, "op", "cpu", "cpu:0", "", 0, "", tuple(CASES), "yard", evaluator, 1.0))


def candidate(values: Values, species: str = "sp", source: str = "text") -> Candidate:
    name = digest([species, source, *(f"{k}={v}" for k, v in values.items())])
    return Candidate(name, "op", "cpu", species, ".cpp", source, dict(values))


def timing(log: float, error: float) -> Timing:
    """With a 95 % interval for a standard deviation of `error`."""
    half = 1.96 * error
    low, ratio, high = (math.exp(log + side * half) for side in (-1, 0, 1))
    return Timing("warm", "yard", 10 / ratio, 10.0, ratio, low, high, 0.95, 8, "fixed")


def add(
    store: Archive,
    values: Values,
    law: Law,
    *,
    rng: random.Random | None = None,
    error: float = 0.002,
    parents: Iterable[str] = (),
    run: str = "run-1",
    extra: Iterable[CaseResult] = (),
    source: str = "text",
    author: str = "seed",
) -> tuple[Candidate, Evaluation]:
    """A right candidate, timed in all cases with noise of `error`."""
    made = candidate(values, source=source)
    noise = rng or random.Random(0)
    results = [
        CaseResult(name, Status.OK, timing=timing(law(values, facts.dims["N"]) + noise.gauss(0, error), error))
        for name, facts in CASES.items()
    ]
    return made, file(store, made, Status.OK, tuple((*results, *extra)), parents=parents, run=run, author=author)


def fail(store: Archive, values: Values, status: Status, message: str, *, case: str = "n256") -> Evaluation:
    """A candidate that is refused in a case."""
    return file(store, candidate(values), status, (), diagnosis=Diagnosis(Stage.BUILD, message, case))


def file(
    store: Archive,
    made: Candidate,
    status: Status,
    cases: tuple[CaseResult, ...],
    *,
    parents: Iterable[str] = (),
    run: str = "run-1",
    diagnosis: Diagnosis | None = None,
    author: str = "seed",
) -> Evaluation:
    proposal = Proposal(new_id(), run, made, tuple(parents), Author(author))
    evaluation = Evaluation(
        new_id(), run, made.id, Purpose.SEARCH, "yard", "cpu:0", status, diagnosis, (), cases, {"time": 0.1}
    )
    with store.batch():
        store.propose(proposal)
        store.file(evaluation, proposal.id)
    return evaluation

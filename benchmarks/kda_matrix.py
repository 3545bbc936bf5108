"""FlashKDA's published tests as a matrix for one KDA genome: how many of the 584 does it pass?

    python benchmarks/kda_matrix.py --genome FILE.cu [--class accurate|exact] [--gene NAME=VALUE ...] --out result.json

They are counted as `pytest` counts FlashKDA's `tests/test_fwd_full.py` (580: fixed lengths 288, ragged 192, batches 96,
long sequences 4) and `tests/test_fwd.py` (4 functions; two of them go through ten gates each and pass when all ten do).
Contents are theirs in law: q and k normalised, v, g and beta normal, A_log and dt_bias from 0 to 1, and an initial
state that counts up, in bf16. Such a state is forgotten within a chunk or two. So the same 580 cases are tried once
more, and counted apart, with normal states and lower_bound -0.01, where nothing is forgotten; and so is one ragged list
with every length from 1 to 15.

Class accurate: against evo's fp32 oracle (`operators/kda/oracle.cu`, itself checked against float64), within the
operator's tolerance (relative RMS 6e-3 for out and state, and no row far off). Class exact: every value equal to what
`operators/kda/exact.cu` says. Every case runs twice, in different places; writes beside the outputs and changed inputs
are noticed. The long cases are left out with --skip-long; --limit draws so many tests; --build-only needs no device.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import hashlib
import json
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from evo import ids
from evo.app.provenance import evaluator_hash
from evo.app.single import build_all, gene_values
from evo.app.stand import choose_target, find_target
from evo.dtypes import numpy_dtype
from evo.fitness.cache import BuildCache
from evo.fitness.inspection import inspect
from evo.fitness.job import InvalidGenome, Job, plan_job
from evo.fitness.layout import oracle_case
from evo.fitness.session import Session
from evo.fitness.tasks import CheckTask
from evo.genome import Genome, make_candidate
from evo.operator import Case, Fill, Tolerance
from evo.operators.kda import Kda, cases
from evo.plugins.manager import Plugins
from evo.records import CaseResult, DeviceFacts, Proposal, Purpose, Status, Value
from evo.target import Machine, Rejected, Target

KDA_FILES = Path(__file__).parent.parent / "operators" / "kda"
ORACLES = {"accurate": "oracle", "exact": "exact"}
MODES = {"in+out": cases.STATES, "in": cases.STATES[:1], "out": cases.STATES[1:], "none": ()}
DTYPES = ("bf16", "fp32")
LISTS = ("16", "16x2", "4-8-12", "64-128-256", "mixed", "1024x8", "20-50-100", "17-33-65")
GATE = "gate "  # laws of test_fwd.py's ten gates: g, or dt_bias with g = 0; A_log is 0
LOGITS = {
    "g=-8": Fill("constant", -8.0), "g=-4": Fill("constant", -4.0), "g=0": Fill("constant", 0.0),
    "g=8": Fill("constant", 8.0), "g=U(-8,8)": Fill("uniform", -8.0, 8.0), "g=N(0,8)": Fill(b=8.0),
}  # fmt: skip
BIASES = ("bias=+-4", "bias=+-8", "bias=U(-8,8)", "bias=N(0,8)")
ACCURATE_RMS = 6e-3  # for a state in fp32, whatever is forgotten
RUN_LIMIT_S = 60.0  # a token at a time, the oracle takes seconds for a million


@dataclass(frozen=True)
class Test:
    """One of the tests: it passes when all its cases do. `counted` among the 584."""

    name: str
    family: str
    state: str
    cases: tuple[Case, ...]
    counted: bool = True


def published() -> Iterator[Test]:
    """The 584."""
    for heads in (1, 4, 32, 96):
        for tokens in (16, 64, 256, 1024, 4096, 8192, 17, 37, 97):
            yield from _modes("fixed", f"h{heads}-t{tokens}", heads, tokens=tokens)
    for heads in (1, 4, 96):
        for name in LISTS:
            yield from _modes("ragged", f"h{heads}-[{name}]", heads, lengths=cases.RAGGED[name])
        for batch, tokens in ((2, 64), (2, 1024), (4, 256), (8, 128)):
            yield from _modes("batched", f"h{heads}-b{batch}-t{tokens}", heads, tokens=tokens, batch=batch)
    for tokens in (131072, 1048576):
        yield _single("long", f"h1-t{tokens}", 1, tokens=tokens)
    for lengths in ((131072,), (524288, 524288)):
        yield _single("long", f"h1-[{len(lengths)} x {lengths[0]}]", 1, lengths=lengths)
    yield _single("functions", "exact-fixed", 96, tokens=cases.TOKENS)
    yield _single("functions", "exact-ragged", 96, lengths=cases.MIXED)
    for name, shape in (("fixed", {"tokens": cases.TOKENS}), ("ragged", {"lengths": cases.MIXED})):
        made = _single("functions", f"gates-{name}", 1, **shape).cases[0]
        ten = tuple(replace(made, name=f"{made.name} {law}", distribution=GATE + law) for law in (*LOGITS, *BIASES))
        yield Test(f"gates-{name}", "functions", "bf16", ten)


def harder(tests: Sequence[Test]) -> Iterator[Test]:
    """The same shapes with states that are remembered, and the ragged list of all tails."""
    for test in tests:
        if test.family != "functions":
            (case,) = test.cases
            scalars = {**case.scalars, "lower_bound": cases.WEAK_BOUND}
            weak = replace(case, name=f"{case.name} weak", scalars=scalars, distribution="remembered")
            yield replace(test, name=weak.name, family=f"{test.family}, remembered", cases=(weak,), counted=False)
    yield replace(_single("tails", "h4-[1..15]", 4, lengths=cases.RAGGED["tails"]), counted=False)


def _modes(family: str, name: str, heads: int, **shape: Any) -> Iterator[Test]:
    for state in DTYPES:
        for mode, present in MODES.items():
            full = f"{family} {name} {state} {mode}"
            case = cases.make(full, "holdout", heads, state=state, states=present, distribution="published", **shape)
            yield Test(full, family, state, (case,))


def _single(family: str, name: str, heads: int, **shape: Any) -> Test:
    case = cases.make(f"{family} {name}", "holdout", heads, state="bf16", distribution="published", **shape)
    return Test(case.name, family, "bf16", (case,))


class Matrix(Kda):
    """KDA with the contents of those tests. Class exact takes every type as it is and accepts no difference."""

    distributions = ()  # each case has its own

    def __init__(self, state: str, tests: Sequence[Test], *, exact: bool) -> None:
        self._cases = tuple(case for test in tests for case in test.cases)
        self._exact = exact
        if exact:  # nothing to widen: the oracle gives the bits themselves
            only = {"out": ("bf16",), "initial_state": (state,), "final_state": (state,)}
            self.tensors = tuple(replace(t, dtypes=only.get(t.name, t.dtypes)) for t in Kda.tensors)

    def cases(self, target: str) -> tuple[Case, ...]:
        return self._cases

    def neighbours(self, case: Case) -> tuple[Case, ...]:
        return ()

    def drawn_near(self, case: Case, rng: np.random.Generator) -> tuple[Case, ...]:
        return ()

    def tolerance(self, case: Case) -> Tolerance:
        return Tolerance(0.0, 0.0) if self._exact else replace(super().tolerance(case), rms=ACCURATE_RMS)

    def inputs(
        self, case: Case, rng: np.random.Generator, distribution: str
    ) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
        heads, width = case.dims["H"], case.dims["K"]
        unit = Fill(b=width**-0.5)  # of length about 1; kernels normalise it
        made: dict[str, Any] = {"q": unit, "k": unit, "v": Fill(), "g": Fill(), "beta": Fill()}
        made["A_log"] = rng.random(heads, np.float32)
        made["dt_bias"] = rng.random((heads, width), np.float32)
        if distribution.startswith(GATE):
            made |= _gate(distribution.removeprefix(GATE), made["dt_bias"].shape, rng)
        if "initial_state" in case.present:
            shape = (case.dims["N"], heads, case.dims["V"], width)
            counted = distribution == "published"
            made["initial_state"] = counting(shape, case.dtypes["initial_state"]) if counted else Fill()
        if "cu_seqlens" in case.present:
            made["cu_seqlens"] = np.cumsum((0, *case.data["lengths"]), dtype=np.int64)
        return made


def _gate(law: str, shape: tuple[int, int], rng: np.random.Generator) -> dict[str, Any]:
    made: dict[str, Any] = dict.fromkeys(("q", "k", "v"), Fill("uniform", 0.0, 1.0))
    made |= {"g": LOGITS.get(law, Fill("constant", 0.0)), "A_log": np.zeros(shape[0], np.float32)}
    bias = np.zeros(shape)
    if law.startswith("bias=+-"):
        bias = float(law.removeprefix("bias=+-")) * rng.choice((-1.0, 1.0), shape)
    elif law.startswith("bias="):
        bias = rng.uniform(-8.0, 8.0, shape) if law.startswith("bias=U") else 8.0 * rng.standard_normal(shape)
    return made | {"dt_bias": bias.astype(np.float32)}


@functools.lru_cache(maxsize=4)
def counting(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """0, 1, 2, ... rounded to bf16."""
    counted = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return counted.astype(ml_dtypes.bfloat16).astype(numpy_dtype(dtype))


# --- building and checking


@dataclass(frozen=True)
class Here:
    """Where it is done; `machine` is None where things are only built."""

    target: Target
    facts: DeviceFacts
    machine: Machine | None = None


def place(name: str, *, build_only: bool) -> Here:
    plugins = Plugins.load()
    if build_only:
        target = find_target(plugins, "sm_90" if name == "auto" else name)
        return Here(target, target.nominal())
    target, facts, _ = choose_target(plugins, name)
    if target.name == "cpu":
        return Here(target, facts, target.open(facts.id))
    from evo.fitness.cuda.machine import CudaMachine

    return Here(target, facts, CudaMachine(facts.id, run_limit_s=RUN_LIMIT_S))


def build(genome: Genome, genes: Mapping[str, Value], operator: Kda, every: Sequence[Case], here: Here) -> Job:
    """All builds of a genome, by case; raises `SystemExit` where one fails."""
    candidate = make_candidate(operator.name, here.target.name, genome, genes)
    job = Job(Proposal(ids.new_id(), "", candidate), Purpose.SEARCH, genome, every, frozenset(c.name for c in every))
    try:
        failed = build_all(job, plan_job(job, operator, here.facts, here.target.arch), here.facts)
    except InvalidGenome as error:
        raise SystemExit(f"{genome.species}: {error}") from error
    if failed is not None:
        raise SystemExit(f"{genome.species} does not build: {failed.diagnosis}")
    return job


def inspected(job: Job, facts: DeviceFacts) -> Iterator[CaseResult]:
    """What can be said of every case without a device."""
    for case in job.cases:
        if case.name in job.plans:
            status, diagnosis = inspect(job.built[job.requests[case.name]], job.plans[case.name], facts)
            yield CaseResult(case.name, status, diagnosis=diagnosis)
        else:
            yield job.results[case.name]


def checked(job: Job, session: Session) -> Iterator[CaseResult]:
    """Every case on the device; ends early where the device is lost, or at Ctrl-C."""
    subject = job.subject()
    for case in job.cases:
        if case.name not in subject.builds:
            yield job.results[case.name]
            continue
        try:
            yield from session.check(CheckTask(ids.new_id(), subject, (case.name,), secrets.randbits(62)))
        except Rejected as error:  # fatal: nothing can run after it
            print(f"{case.name}: {error.status}: {error.message}; the device is lost, the rest is not run")
            return
        except KeyboardInterrupt:
            print(f"{case.name}: interrupted, the rest is not run")
            return


def row(test: Test, results: Mapping[str, CaseResult]) -> dict[str, Any]:
    found = [results[case.name] for case in test.cases if case.name in results]
    bad = next((each for each in found if each.status is not Status.OK), None)
    status, message = ("ok", "") if len(found) == len(test.cases) else ("not run", "it ended before")
    if bad is not None:
        status = str(bad.status)
        message = f"{bad.case}: {bad.diagnosis.message if bad.diagnosis else status}"
    return {
        "test": test.name, "family": test.family, "counted": test.counted, "status": status, "message": message,
        "rms": max((each.deviation.rms for each in found if each.deviation), default=None), "cases": len(test.cases),
    }  # fmt: skip


def chosen(only: str, limit: int, *, skip_long: bool) -> list[Test]:
    counted = list(published())
    tests = [test for test in (*counted, *harder(counted)) if fnmatch.fnmatchcase(test.name, only)]
    tests = [test for test in tests if not (skip_long and test.family.startswith("long"))]
    if not 0 < limit < len(tests):
        return tests
    return [tests[i] for i in sorted(random.Random(0).sample(range(len(tests)), limit))]


def show(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    families: dict[str, Counter[str]] = {}
    for each in rows:
        families.setdefault(each["family"], Counter())["passed" if each["status"] == "ok" else "failed"] += 1
    for name, counts in families.items():
        print(f"{name:24} {counts['passed']:4} passed {counts['failed']:4} failed")
    for each in [each for each in rows if each["status"] != "ok"][:20]:
        print(f"  {each['test']}: {each['message']}")
    return {name: {"passed": counts["passed"], "failed": counts["failed"]} for name, counts in families.items()}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genome", dest="file", type=Path, required=True)
    parser.add_argument("--class", dest="kind", choices=tuple(ORACLES), default="accurate")
    parser.add_argument("--gene", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--target", default="auto", help="auto: the first GPU, else the CPU; to build only, sm_90")
    parser.add_argument("--only", default="*", help="pattern of tests' names")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--skip-long", action="store_true")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    oracle = KDA_FILES / f"{ORACLES[options.kind]}{options.file.suffix}"
    for file in (options.file, oracle):
        if not file.is_file():
            parser.error(f"no such file: {file}")
    options.genome, options.oracle = Genome.read(options.file), Genome.read(oracle)
    options.genes = gene_values(options.genome, dict(text.split("=", 1) for text in options.gene))
    return options


def results_of(
    state: str, tests: Sequence[Test], options: argparse.Namespace, here: Here
) -> tuple[dict[str, CaseResult], Job]:
    """Every case of the tests with states of one type, by name; fewer where the device was lost."""
    operator = Matrix(state, tests, exact=options.kind == "exact")
    every = operator.cases(here.target.name)
    for case in every:
        operator.validate(case)
    job = build(options.genome, options.genes, operator, every, here)
    truths = [oracle_case(operator, case) for case in every]
    truth = build(options.oracle, {}, operator, truths, here).subject()
    print(f"{state} states: {len(every)} cases, {len(job.built)} builds")
    if here.machine is None:
        return {result.case: result for result in inspected(job, here.facts)}, job
    session = Session(here.machine, operator, BuildCache(), lambda message: None)
    session.oracle = truth
    found = {result.case: result for result in checked(job, session)}
    if len(found) == len(every):
        session.loader.close()
    return found, job


def main() -> int:
    options, begun = parse(), time.perf_counter()
    here = place(options.target, build_only=options.build_only)
    tests = chosen(options.only, options.limit, skip_long=options.skip_long)
    results: dict[str, CaseResult] = {}
    builds: dict[str, dict[str, list[int]]] = {}
    for state in DTYPES:
        of_state = [test for test in tests if test.state == state]
        found, job = results_of(state, of_state, options, here) if of_state else ({}, None)
        results |= found
        for made in job.built.values() if job else ():
            builds[made.key] = {kernel.name: [kernel.registers, kernel.spill_bytes] for kernel in made.kernels}
        if len(found) < sum(len(test.cases) for test in of_state):
            break  # it ended early
    else:
        if here.machine is not None:
            here.machine.close()
    rows = [row(test, results) for test in tests]
    counted = [each for each in rows if each["counted"]]
    passed = sum(each["status"] == "ok" for each in counted)
    families, seconds = show(rows), time.perf_counter() - begun
    verb = "built" if options.build_only else "passed"
    print(f"{options.file.name}, class {options.kind}: {passed} of {len(counted)} tests {verb}, {seconds:.1f} s")
    report = {
        "genome": options.file.name, "sha256": hashlib.sha256(options.file.read_bytes()).hexdigest(),
        "species": options.genome.species, "genes": options.genes, "class": options.kind,
        "build_only": options.build_only, "device": here.facts.name, "versions": dict(here.facts.versions),
        "target": here.target.name, "evo": evaluator_hash(), "passed": passed, "counted": len(counted),
        "families": families, "seconds": seconds, "registers_and_spills": builds, "tests": rows,
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(each["status"] == "ok" for each in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())

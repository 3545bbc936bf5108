"""FlashKDA's published tests as a matrix for one KDA genome: how many of the 584 does it pass?

    python benchmarks/kda_matrix.py --genome FILE.cu [--class accurate|exact] [--gene NAME=VALUE ...] --out result.json

They are counted as `pytest` counts FlashKDA's `tests/test_fwd_full.py` (580: fixed lengths 288, ragged 192, batches 96,
long sequences 4) and `tests/test_fwd.py` (4 functions; two of them go through ten gates each and pass when all ten do).
Contents are theirs in law: q and k normalised, v, g and beta normal, A_log and dt_bias from 0 to 1, and an initial state
that counts up, in bf16. Such a state is forgotten within a chunk or two. So the same 580 cases are tried once more, and
counted apart, with normal states and lower_bound -0.01, where nothing is forgotten; and so is one ragged list with every
length from 1 to 15.

Class accurate: against evo's fp32 oracle (`operators/kda/oracle.cu`, itself checked against float64), within the
operator's tolerance (relative RMS 6e-3 for out and state, and no row far off). Class exact: bit by bit against
`operators/kda/exact.cu`. Every case runs twice, in different places; writes beside the outputs and changed inputs are
noticed. The long cases are left out with --skip-long; --limit takes so many tests, evenly spaced; --build-only needs no
device.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
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
from evo.dtypes import numpy_dtype
from evo.fitness.cache import BuildCache
from evo.fitness.cuda.target import CudaTarget
from evo.fitness.inspection import inspect
from evo.fitness.job import InvalidGenome, Job, plan_job
from evo.fitness.layout import oracle_case
from evo.fitness.session import Session
from evo.fitness.tasks import CheckTask, Subject
from evo.genome import Genome, make_candidate
from evo.operator import Case, Fill, Tolerance
from evo.operators.kda import Kda, cases
from evo.records import CaseResult, DeviceFacts, Proposal, Purpose, Status, Value
from evo.target import Rejected

KDA_FILES = Path(__file__).parent.parent / "operators" / "kda"
ORACLES = {"accurate": KDA_FILES / "oracle.cu", "exact": KDA_FILES / "exact.cu"}
MODES = {"in+out": cases.STATES, "in": cases.STATES[:1], "out": cases.STATES[1:], "none": ()}
DTYPES = ("bf16", "fp32")
LISTS = ("16", "16x2", "4-8-12", "64-128-256", "mixed", "1024x8", "20-50-100", "17-33-65")
GATE = "gate "  # laws of test_fwd.py's ten gates: g, or dt_bias with g = 0; A_log is 0
LOGITS = {
    "g=-8": Fill("constant", -8.0), "g=-4": Fill("constant", -4.0), "g=0": Fill("constant", 0.0),
    "g=8": Fill("constant", 8.0), "g=U(-8,8)": Fill("uniform", -8.0, 8.0), "g=N(0,8)": Fill(b=8.0),
}  # fmt: skip
BIASES = ("bias=+-4", "bias=+-8", "bias=U(-8,8)", "bias=N(0,8)")
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
        return Tolerance(0.0, 0.0) if self._exact else super().tolerance(case)

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
    bias = {
        "bias=+-4": lambda: rng.choice((-4.0, 4.0), shape), "bias=+-8": lambda: rng.choice((-8.0, 8.0), shape),
        "bias=U(-8,8)": lambda: rng.uniform(-8.0, 8.0, shape), "bias=N(0,8)": lambda: 8.0 * rng.standard_normal(shape),
    }.get(law, lambda: np.zeros(shape))  # fmt: skip
    return made | {"dt_bias": bias().astype(np.float32)}


@functools.lru_cache(maxsize=4)
def counting(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """0, 1, 2, ... rounded to bf16."""
    counted = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return counted.astype(ml_dtypes.bfloat16).astype(numpy_dtype(dtype))


# --- building and checking


def build(genome: Genome, genes: Mapping[str, Value], operator: Kda, every: Sequence[Case], facts: DeviceFacts) -> Job:
    """All builds of a genome, by case; raises `SystemExit` where one fails."""
    candidate = make_candidate(operator.name, facts.target, genome, genes)
    job = Job(Proposal(ids.new_id(), "", candidate), Purpose.SEARCH, genome, every, frozenset(c.name for c in every))
    try:
        failed = build_all(job, plan_job(job, operator, facts, CudaTarget(facts.target).arch), facts)
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
    """Every case on the device; ends early where the device is lost."""
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


def oracle_of(genome: Genome, operator: Kda, every: Sequence[Case], facts: DeviceFacts) -> Subject:
    return build(genome, {}, operator, [oracle_case(operator, case) for case in every], facts).subject()


def row(test: Test, results: Mapping[str, CaseResult]) -> dict[str, Any]:
    found = [results.get(case.name) for case in test.cases]
    bad = next((each for each in found if each is None or each.status is not Status.OK), None)
    ok = all(each is not None and each.status is Status.OK for each in found)
    said = (
        ""
        if ok
        else "not run"
        if bad is None
        else f"{bad.case}: {bad.diagnosis.message if bad.diagnosis else bad.status}"
    )
    rms = [each.deviation.rms for each in found if each and each.deviation]
    status = "ok" if ok else str(bad.status) if bad else "not run"
    return {
        "test": test.name, "family": test.family, "counted": test.counted, "status": status, "message": said,
        "rms": max(rms, default=None), "cases": len(test.cases),
    }  # fmt: skip


def chosen(limit: int, *, skip_long: bool) -> list[Test]:
    tests = list(published())
    tests += harder(tests)
    tests = [test for test in tests if not (skip_long and test.family.startswith("long"))]
    return tests if not 0 < limit < len(tests) else [tests[i * len(tests) // limit] for i in range(limit)]


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
    parser.add_argument("--genome", type=Path, required=True)
    parser.add_argument("--class", dest="kind", choices=tuple(ORACLES), default="accurate")
    parser.add_argument("--gene", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--target", default="sm_90", help="with --build-only; else the device's own")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--skip-long", action="store_true")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for file in (options.genome, ORACLES[options.kind]):
        if not file.is_file():
            parser.error(f"no such file: {file}")
    return options


def main() -> int:
    options, begun = parse(), time.perf_counter()
    genome, oracle = Genome.read(options.genome), Genome.read(ORACLES[options.kind])
    genes = gene_values(genome, dict(text.split("=", 1) for text in options.gene))
    machine = None
    if not options.build_only:
        from evo.fitness.cuda.machine import CudaMachine

        machine = CudaMachine("cuda:0", run_limit_s=RUN_LIMIT_S)
    facts = machine.facts if machine else CudaTarget(options.target).nominal()
    tests, results, builds = chosen(options.limit, skip_long=options.skip_long), {}, {}
    for state in DTYPES:
        of_state = [test for test in tests if test.state == state]
        if not of_state:
            continue
        operator = Matrix(state, of_state, exact=options.kind == "exact")
        every = operator.cases(facts.target)
        job, truth = build(genome, genes, operator, every, facts), oracle_of(oracle, operator, every, facts)
        builds |= {b.key: {k.name: k.registers for k in b.kernels} for b in job.built.values()}
        print(f"{state} states: {len(every)} cases, {len(job.built)} builds, {time.perf_counter() - begun:.1f} s")
        if machine is None:
            found = inspected(job, facts)
        else:
            session = Session(machine, operator, BuildCache(), lambda message: None)
            session.oracle = truth
            found = checked(job, session)
        for result in found:
            operator.validate(next(case for case in every if case.name == result.case))
            results[result.case] = result
        if machine is not None:
            session.loader.close()
    rows = [row(test, results) for test in tests]
    counted = [each for each in rows if each["counted"]]
    passed = sum(each["status"] == "ok" for each in counted)
    families = show(rows)
    seconds = time.perf_counter() - begun
    verb = "built" if options.build_only else "passed"
    print(f"{options.genome.name}, class {options.kind}: {passed} of {len(counted)} tests {verb}, {seconds:.1f} s")
    report = {
        "genome": options.genome.name, "sha256": hashlib.sha256(options.genome.read_bytes()).hexdigest(),
        "species": genome.species, "genes": genes, "class": options.kind, "build_only": options.build_only,
        "device": facts.name, "versions": dict(facts.versions), "target": facts.target, "evo": evaluator_hash(),
        "passed": passed, "counted": len(counted), "families": families, "seconds": seconds, "builds": builds,
        "tests": rows,
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    if machine is not None:
        machine.close()
    return 0 if all(each["status"] == "ok" for each in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())

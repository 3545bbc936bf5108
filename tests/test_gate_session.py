"""The gate as candidates meet it: built genomes, drawn shapes, the yardstick's own error, state between timed calls."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from rig import Rig, rig

from evo.fitness.cache import BuildCache
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.serve import judged
from evo.fitness.session import Session
from evo.fitness.tasks import CalibrateTask, Subject, TimeTask
from evo.genome import Genome, compile_request
from evo.operator import Baseline, Case
from evo.operators.rmsnorm import RmsNorm
from evo.records import CaseResult, Status
from evo.target import Rejected

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")

OPERATOR = RmsNorm()
TARGET = CpuTarget()
NAME = "fp32-64x256"
GOOD = """/* evo
operator = "rmsnorm"
species  = "test"
[[launch]]
kernel = "norm"
grid   = ["M"]
block  = ["16"]
args   = ["x", "weight", "y", "i64:M", "i64:N", "eps"]
*/
#include "evo.h"
extern "C" void norm(long first, long last, int, const DTYPE_x* x, const float* weight, DTYPE_y* y, long m, long n,
                     float eps) {
    for (long row = first; row < last; ++row) {
        double sum = 0;
        for (long i = 0; i < n; ++i) { double v = evo_float(x[row * n + i]); sum += v * v; }
        const double root = 1.0 / __builtin_sqrt(sum / n + eps);
        for (long i = 0; i < n; ++i) {
            double value = evo_float(x[row * n + i]) * root * weight[i];
            /*value*/
            y[row * n + i] = evo_cast<DTYPE_y>((float)value);
        }
    }
}
"""
VALUE = "/*value*/"


@pytest.fixture(scope="module")
def bench() -> Iterator[Rig]:
    with rig("rmsnorm", "cpu", NAME) as here:
        yield here


def test_good_kernel_passes_and_drawn_cases_leave_no_rows(bench: Rig) -> None:
    found = bench.judge(GOOD, ".cpp")
    assert found.status is Status.OK, found.diagnosis
    assert {result.case for result in found.cases} <= {case.name for case in bench.stand.cases}


def test_a_kernel_for_the_listed_shapes_only_is_refused(bench: Rig) -> None:
    """Right for every row count that the operator lists, and the neighbours': fitted to what can be read."""
    listed = {case.dims["M"] for case in bench.stand.cases}
    listed |= {near.dims["M"] for case in bench.stand.cases for near in OPERATOR.neighbours(case)}
    known = " || ".join(f"m == {rows}" for rows in sorted(listed))
    found = bench.judge(GOOD.replace(VALUE, f"if (!({known})) value = 0;"), ".cpp")
    assert found.status is Status.WRONG_RESULT
    assert found.diagnosis is not None
    assert "drawn" in bench_case(found.cases)


def bench_case(cases: tuple[CaseResult, ...]) -> str:
    """The failed one, or the case whose drawn neighbour failed."""
    return " ".join(case.diagnosis.message + case.diagnosis.case for case in cases if case.diagnosis)


@pytest.mark.parametrize(
    "damage",
    [
        "if (value != value) value = 0;",  # a NaN row
        "if (root > 990) value = 0;",  # rows of zeros are right, tiny ones are not
        "if (sum < 1e-70) value = 0;",  # subnormal numbers flushed
        "if (i + 1 == n && __builtin_fabs(value) > 6) value = 0;",  # a row's last element carries it
    ],
)
def test_the_timed_shape_is_checked_with_rows_of_every_kind(bench: Rig, damage: str) -> None:
    """The fault shows on the timed shape alone, and never under the law that is timed."""
    found = bench.judge(GOOD.replace(VALUE, f"if (m == 64 && n == 256) {{ {damage} }}"), ".cpp")
    assert found.status is Status.WRONG_RESULT, found.diagnosis
    assert found.diagnosis is not None
    assert found.diagnosis.case == NAME


# --- timing


def test_drawn_shapes_are_odd_and_fit_their_case() -> None:
    rng = np.random.default_rng(1)
    cases = [case for case in OPERATOR.cases("sm_90") if case.group == "tune"]
    near = [(case, OPERATOR.drawn_near(case, rng)) for case in cases for _ in range(20)]
    assert all(same.dims["N"] == case.dims["N"] for case, (same, _) in near)
    drawn = [each for _, pair in near for each in pair] + [c for _ in range(200) for c in OPERATOR.drawn(cases, rng)]
    lengths = {case.dims["N"] for case in drawn}
    assert min(lengths) == 8
    assert max(lengths) > 100_000
    for case in drawn:
        OPERATOR.validate(case)
        assert case.group == "check"
        assert case.dims["M"] * case.dims["N"] <= max(1 << 18, 3 * case.dims["N"])
    assert {case.dims["M"] for case in drawn} >= {1, 2, 3, 31, 33, 127, 129, 257}
    assert all(n % 16 for n in lengths - {case.dims["N"] for case in cases}), "an odd number of accesses"


def timed(text: str, case: Case, folder: Path, pairs: int = 4) -> CaseResult:
    """One case timed in this process against NumPy, with the float64 reference as the truth."""
    cache = BuildCache(folder)
    genome = Genome.parse(text, ".cpp")
    values = genome.values({})
    build = TARGET.build(compile_request(genome, OPERATOR, case, values, target="cpu", arch="native"), cache.blobs)
    assert build.status is Status.OK, build.diagnosis
    subject = Subject("rmsnorm", "cpu", ".cpp", text, values, {case.name: build.key}, {build.key: build})
    session = Session(TARGET.open("cpu:0"), OPERATOR, cache, lambda what: None)
    task = TimeTask("t", subject, (case.name,), {case.name: "numpy"}, 77, fixed=True, pairs_max=pairs)
    try:
        (result,) = session.time(task)
        return result
    finally:
        session.close()


CASE = next(case for case in OPERATOR.cases("cpu") if case.name == NAME)


def test_the_opponents_own_error_is_recorded_beside_the_candidates(tmp_path: Path) -> None:
    result = timed(GOOD, CASE, tmp_path)
    assert result.status in (Status.OK, Status.UNSTABLE_TIMING), result.diagnosis
    if result.timing is not None:
        assert result.deviation is not None
        assert 1e-8 < result.timing.opponent_rms < 2e-7
        assert result.deviation.rms < result.timing.opponent_rms


def test_a_candidate_less_exact_than_its_opponent_is_refused(tmp_path: Path) -> None:
    """Within the operator's tolerance, but NumPy is several times as good."""
    result = timed(GOOD.replace(VALUE, "value *= 1 + 4e-7;"), CASE, tmp_path)
    assert result.status is Status.WRONG_RESULT
    assert result.diagnosis is not None
    assert "times the opponent's own" in result.diagnosis.message


CASES = ("fp32-64x256", "bf16-32x1024", "fp32-8x2048")


@pytest.mark.parametrize(
    ("fixed", "second", "statuses", "verdict"),
    [
        (False, Status.UNSTABLE_TIMING, ["ok", "unstable_timing", "ok"], Status.OK),
        (True, Status.UNSTABLE_TIMING, ["ok", "unstable_timing"], Status.UNSTABLE_TIMING),
        (False, Status.WRONG_RESULT, ["ok", "wrong_result"], Status.WRONG_RESULT),
    ],
)
def test_a_case_that_could_not_be_timed_costs_a_search_that_case_alone(
    monkeypatch: pytest.MonkeyPatch, fixed: bool, second: Status, statuses: list[str], verdict: Status
) -> None:
    """On an H200 at its power limit one unsteady case of nine cost twelve candidates their places."""

    def time_case(self: Session, task: TimeTask, case: Case) -> CaseResult:
        if case.name == CASES[1]:
            raise Rejected(second, "seen")
        return CaseResult(case.name, Status.OK)

    monkeypatch.setattr(Session, "_time_case", time_case)
    session = Session.__new__(Session)
    session.cases = {case.name: case for case in OPERATOR.cases("cpu")}
    task = TimeTask("t", cast(Subject, None), CASES, {}, 7, fixed=fixed)
    results = session.time(task)
    assert [str(result.status) for result in results] == statuses
    outcome = judged(task, results)
    assert (outcome.status, outcome.cases) == (verdict, results)
    assert (outcome.diagnosis is None) is (verdict is Status.OK)


def test_what_is_the_candidates_fault_comes_before_what_is_the_clocks() -> None:
    seen = [Status.OK, Status.UNSTABLE_TIMING, Status.WRONG_RESULT]
    results = tuple(CaseResult(name, status) for name, status in zip(CASES, seen, strict=True))
    task = TimeTask("t", cast(Subject, None), CASES, {}, 7)
    assert judged(task, results).status is Status.WRONG_RESULT
    assert judged(task, results[1:2]).status is Status.UNSTABLE_TIMING, "nothing was timed at all"


def test_a_baseline_that_cannot_say_its_version_is_measured_all_the_same(tmp_path: Path) -> None:
    """A library without a distribution's metadata ended the whole calibration once."""

    class Nameless:
        def __init__(self, whole: Baseline) -> None:
            self.name, self.configuration, self.prepare = whole.name, whole.configuration, whole.prepare

        def missing(self) -> str:
            return ""

        def version(self) -> str:
            return importlib.metadata.version("no-such-distribution")

    session = Session(TARGET.open("cpu:0"), OPERATOR, BuildCache(tmp_path), lambda what: None)
    session.baselines["numpy"] = Nameless(session.baselines["numpy"])
    try:
        (report,) = session.calibrate(
            CalibrateTask("t", "rmsnorm", "cpu", "cpu:0", (NAME,), None, {}, 7, names=("numpy",))
        )
    finally:
        session.close()
    assert report.version.startswith("unknown (PackageNotFoundError: ")
    assert report.times_us[NAME] > 0


MEMO = GOOD.replace("*/\n#include", '[scratch.notes]\ndtype = "fp32"\nshape = ["M * N + 16"]\n*/\n#include', 1)
MEMO = MEMO.replace('"y", ', '"y", "notes", ').replace("DTYPE_y* y, ", "DTYPE_y* y, float* notes, ")
MEMO = MEMO.replace(
    "double sum = 0;",
    """float* mine = notes + 16 + row * n;
        if (notes[row] == 777) { for (long i = 0; i < n; ++i) y[row * n + i] = mine[i]; continue; }
        double sum = 0;""",
)
MEMO = MEMO.replace("(float)value);", "(float)value);\n            mine[i] = y[row * n + i]; notes[row] = 777;")


def test_notes_in_scratch_are_of_no_use_to_the_next_call(tmp_path: Path) -> None:
    """A block makes the same calls again and again, so scratch is spoiled between them as outputs are."""
    result = timed(MEMO, CASE, tmp_path)
    assert result.status is Status.NONDETERMINISTIC, result.diagnosis

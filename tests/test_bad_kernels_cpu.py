"""Bad candidates on the real CPU target: each gets its status, and the next good one is not harmed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from rig import Rig, rig

from evo.records import Evaluation, Status

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")

GOOD = """/* evo
operator = "rmsnorm"
species  = "test"
[[launch]]
kernel = "norm"
grid   = ["M"]
block  = ["16"]
args   = ["x", "weight", "y", "i64:N", "eps"]
*/
#include "evo.h"
extern "C" void norm(long first, long last, int, const DTYPE_x* x, const float* weight, DTYPE_y* y, long n, float eps) {
    for (long row = first; row < last; ++row) {
        double sum = 0;
        for (long i = 0; i < n; ++i) { double v = evo_float(x[row * n + i]); sum += v * v; }
        const double root = 1.0 / __builtin_sqrt(sum / n + eps);
        for (long i = 0; i < n; ++i)
            y[row * n + i] = evo_cast<DTYPE_y>((float)(evo_float(x[row * n + i]) * root * weight[i]));
        /*end*/
    }
}
"""
END = "/*end*/"


@pytest.fixture(scope="module")
def bench() -> Iterator[Rig]:
    with rig("rmsnorm", "cpu", "fp32-8x2048") as here:
        yield here


def test_good_kernel_passes(bench: Rig) -> None:
    found = bench.judge(GOOD, ".cpp")
    assert found.status is Status.OK, found.diagnosis
    result = {case.case: case for case in found.cases}["fp32-8x2048"]
    assert result.deviation is not None
    assert result.deviation.rms < 5e-7
    assert result.deviation.got != 0.0


@pytest.mark.parametrize(
    ("name", "old", "new", "status", "says"),
    [
        ("unknown name", '"M"', '"MM"', Status.INVALID_GENOME, "MM"),
        ("grid overflow", '"M"', '"M * 9223372036854775807"', Status.INVALID_GENOME, "64"),
        ("missing kernel", 'kernel = "norm"', 'kernel = "none"', Status.INVALID_GENOME, "none"),
        ("syntax error", "double sum = 0;", "double sum = ;", Status.BUILD_ERROR, "error"),
        ("forbidden header", '"evo.h"', '"evo.h"\n#include "/etc/passwd"', Status.FORBIDDEN, "passwd"),
        ("writable state", "double sum = 0;", "static double sum = 0;", Status.FORBIDDEN, ""),
        ("endless loop", END, "for (volatile int spin = 1; spin;) {}", Status.TIMEOUT, ""),
        ("null pointer", END, "*(volatile float*)0 = 1;", Status.CRASH, "SIGSEGV"),
        ("trap", END, "__builtin_trap();", Status.CRASH, "SIGILL"),
        ("wrong element", END, "if (row == 3) y[row * n + 7] = evo_cast<DTYPE_y>(9.f);", Status.WRONG_RESULT, "y"),
        ("one past the end", END, "y[(row + 1) * n] = evo_cast<DTYPE_y>(1.f);", Status.OUT_OF_BOUNDS, "y"),
        ("input written", END, "const_cast<DTYPE_x*>(x)[row * n] = evo_cast<DTYPE_x>(1.f);", Status.CRASH, "SIGSEGV"),
        ("partial work", "row < last", "row < last - 1", Status.WRONG_RESULT, "y"),
    ],
)  # fmt: skip
def test_status(bench: Rig, name: str, old: str, new: str, status: Status, says: str) -> None:
    found = bench.judge_raw(GOOD.replace(old, new, 1), ".cpp")
    assert found.status is status, (name, found.diagnosis)
    assert found.diagnosis is not None
    assert says in found.diagnosis.message + found.diagnosis.detail
    assert bench.judge(GOOD, ".cpp").status is Status.OK, "the device must be as good as new"


def test_one_past_the_end_of_the_whole_tensor_only(bench: Rig) -> None:
    """A write that only the last row makes: no other row can hide it."""
    bad = GOOD.replace(END, "if (row == last - 1) y[last * n] = evo_cast<DTYPE_y>(1.f);")
    found = bench.judge_raw(bad, ".cpp")
    assert found.status in (Status.OUT_OF_BOUNDS, Status.WRONG_RESULT, Status.NONDETERMINISTIC), found.diagnosis


def test_malformed_header_is_a_verdict_not_an_exception(bench: Rig) -> None:
    found = bench.judge_raw(GOOD.replace('species  = "test"', "species = ["), ".cpp")
    assert found.status is Status.INVALID_GENOME
    assert found.diagnosis is not None


def worst(found: Evaluation) -> str:
    return found.diagnosis.detail if found.diagnosis else ""


def test_diagnosis_names_the_wrong_element(bench: Rig) -> None:
    found = bench.judge_raw(GOOD.replace(END, "if (row == 3) y[row * n + 7] = evo_cast<DTYPE_y>(9.f);"), ".cpp")
    assert "got 9" in worst(found)
    assert ", 7]" in worst(found)

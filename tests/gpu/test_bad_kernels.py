"""Bad candidates on the real device: each gets its status, and the next good one is not harmed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rig import Rig, rig

from evo.fitness.cuda.devices import list_devices
from evo.records import Status

pytestmark = pytest.mark.gpu

CASE = "bf16-32768x1024"
END = "/*end*/"
GOOD = """/* evo
operator = "rmsnorm"
species  = "test"
[[launch]]
kernel = "row_norm"
grid   = ["M"]
block  = ["128"]
args   = ["x", "weight", "y", "i64:N", "eps"]
*/
#include "evo.h"
extern "C" __global__ void row_norm(const DTYPE_x* x, const float* weight, DTYPE_y* y, long long n, float eps) {
    __shared__ float sums[128];
    const long long row = blockIdx.x;
    float sum = 0;
    for (long long i = threadIdx.x; i < n; i += 128) { float v = evo_float(x[row * n + i]); sum += v * v; }
    sums[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 128; ++i) sum += sums[i];
    const float root = 1.0f / sqrtf(sum / n + eps);
    for (long long i = threadIdx.x; i < n; i += 128)
        y[row * n + i] = evo_cast<DTYPE_y>(evo_float(x[row * n + i]) * root * weight[i]);
    __syncthreads();
    /*end*/
}
"""
FIRST = "if (row == 3 && threadIdx.x == 0) "


@pytest.fixture(scope="module")
def bench(device: str) -> Iterator[Rig]:
    target = next(facts.target for facts in list_devices() if facts.id == device)
    with rig("rmsnorm", target, CASE) as here:
        yield here


def test_good_kernel_passes(bench: Rig) -> None:
    found = bench.judge(GOOD, ".cu")
    assert found.status is Status.OK, found.diagnosis
    result = {case.case: case for case in found.cases}[CASE]
    assert result.deviation is not None
    assert 1.5e-3 < result.deviation.rms < 1.8e-3  # the rounding of bf16 and no more


@pytest.mark.parametrize(
    ("name", "old", "new", "status", "says"),
    [
        ("missing kernel", 'kernel = "row_norm"', 'kernel = "none"', Status.INVALID_GENOME, "none"),
        ("wrong argument count", ', "eps"]', "]", Status.INVALID_GENOME, "4 arguments"),
        ("grid overflow", '["M"]', '["M * 65536 * 65536"]', Status.INVALID_GENOME, "grid"),
        ("300 KB of shared memory", "args ", "shared = 307200\nargs ", Status.RESOURCE_LIMIT, "shared"),
        ("writable global", 'extern "C"', '__device__ int calls;\nextern "C"', Status.FORBIDDEN, "calls"),
        ("endless loop", END, FIRST + 'for (;;) asm volatile("nanosleep.u32 100;");', Status.TIMEOUT, ""),
        ("illegal address", END, FIRST + "*(volatile float*)1024 = 1;", Status.CRASH, "ADDRESS"),
        ("trap", END, FIRST + '{ asm volatile("trap;"); }', Status.CRASH, ""),
        ("wrong element", END, FIRST + "y[row * n + 7] = evo_cast<DTYPE_y>(9.f);", Status.WRONG_RESULT, "9"),
        ("past the end", END, "if (row == gridDim.x - 1) y[(row + 1) * n] = evo_cast<DTYPE_y>(1.f);",
         Status.OUT_OF_BOUNDS, "y"),
        ("before the start", END, FIRST + "y[-1] = evo_cast<DTYPE_y>(1.f);", Status.OUT_OF_BOUNDS, "y"),
        ("input written", END, FIRST + "const_cast<DTYPE_x*>(x)[row * n] = evo_cast<DTYPE_x>(1.f);",
         Status.INPUT_MUTATED, ""),
        ("input written and put back", END, FIRST + "{ volatile unsigned short* at = (unsigned short*)(x + row * n); "
         "const unsigned short was = *at; *at = was ^ 1; __threadfence(); *at = was; }",
         Status.INPUT_MUTATED, "for a while"),
        ("partial work", '["M"]', '["max(1, M - 1)"]', Status.WRONG_RESULT, "y"),
    ],
)  # fmt: skip
def test_status(bench: Rig, name: str, old: str, new: str, status: Status, says: str) -> None:
    text = GOOD.replace(old, new, 1)
    if name == "writable global":
        text = text.replace(END, "if (threadIdx.x == 0) atomicAdd(&calls, 1);")
    found = bench.judge_raw(text, ".cu")
    assert found.status is status, (name, found.diagnosis)
    assert found.diagnosis is not None
    assert says in found.diagnosis.message + found.diagnosis.detail
    assert bench.judge(GOOD, ".cu").status is Status.OK, "the device must be as good as new"

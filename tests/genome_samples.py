"""A small operator and two realistic genomes for the tests of the genome package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evo.operator import Case, Cost, Fill, Operator, Scalar, Tensor, Tolerance
from evo.records import DeviceFacts

GPU = DeviceFacts(
    id="cuda:0",
    name="test GPU",
    target="sm_90",
    sms=132,
    smem_block=232_448,
    smem_sm=233_472,
    l2_bytes=60 << 20,
    memory_bytes=141 << 30,
)
CPU = DeviceFacts(
    id="cpu:0", name="test CPU", target="cpu", sms=2, smem_block=0, smem_sm=0, l2_bytes=2 << 20, memory_bytes=8 << 30
)


class Norm(Operator):
    """y = x / rms(x) * weight, with an optional residual that is added first."""

    name = "norm"
    dims = ("M", "N")
    flags = ("causal",)
    tensors = (
        Tensor("x", "in", ("bf16", "fp16", "fp32"), ("M", "N")),
        Tensor("residual", "in", ("bf16", "fp32"), ("M", "N"), optional=True),
        Tensor("weight", "in", ("fp32",), ("N",)),
        Tensor("y", "out", ("bf16", "fp16", "fp32"), ("M", "N")),
        Tensor("rstd", "out", ("fp32",), ("where(causal, M, 1)",), optional=True),
    )
    scalars = (Scalar("eps", "f32"), Scalar("seed", "i64"))

    def cases(self, target: str) -> tuple[Case, ...]:
        return (case(),)

    def neighbours(self, case: Case) -> tuple[Case, ...]:
        return (case,)

    def inputs(
        self, case: Case, rng: np.random.Generator, distribution: str
    ) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
        return {"x": Fill(), "weight": Fill()}

    def reference(
        self, inputs: Mapping[str, np.ndarray[Any, Any]], case: Case
    ) -> Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]:
        x = inputs["x"].astype(np.float64)
        return {"y": x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) * inputs["weight"]}

    def tolerance(self, case: Case) -> Tolerance:
        return Tolerance(rms=4e-3, max=3e-2)

    def cost(self, case: Case) -> Cost:
        return Cost(bytes_read=1, bytes_written=1, flops=1)

    def seeds(self, target: str) -> tuple[Path, ...]:
        return ()

    def oracle(self, target: str) -> Path | None:
        return None


def case(m: int = 4096, n: int = 4096, x: str = "bf16", *present: str, causal: bool = False) -> Case:
    dtypes = {"x": x, "y": x, "weight": "fp32"}
    dtypes.update({name: "fp32" if name == "rstd" else x for name in present})
    return Case(
        name=f"{m}x{n}-{x}",
        group="tune",
        dims={"M": m, "N": n},
        dtypes=dtypes,
        present=frozenset(present),
        scalars={"eps": 1e-6, "seed": 5_000_000_000},
        flags={"causal": causal},
    )


SIMPLE = """\
// SPDX-License-Identifier: Apache-2.0
/* evo
operator = "norm"
species  = "block-per-row"
summary  = "one CTA per row, 16-byte loads"
arch     = ["sm_90a", "sm_100a"]
static   = ["N"]

[genes]
THREADS = [256, 64, 128, 512, 1024]
LOAD    = ["ld.global.v4.b32", "ld.global.nc.L1::no_allocate.L2::128B.v4.b32"]
PAD     = { low = 0, high = 4096, step = 1024 }

[let]
ROW_BYTES = "N * itemsize_x"

[constraints]
all = [
    "THREADS * 16 <= ROW_BYTES",
    "ROW_BYTES % (16 * THREADS) == 0",
    "THREADS * 64 + PAD <= SMEM_BLOCK",
]

[[launch]]
kernel = "norm_forward"
grid   = ["M"]
block  = ["THREADS"]
shared = "PAD"
args   = ["x", "weight", "y", "i32:M", "eps"]
*/
#include "evo.h"

extern "C" __global__ void __launch_bounds__(THREADS)
norm_forward(const DTYPE_x *x, const float *weight, DTYPE_y *y, int M, float eps) {
    static_assert(DIM_N % THREADS == 0);
#if LOAD_INDEX == 1
    asm volatile(LOAD " {%0, %1, %2, %3}, [%4];" : : "l"(x));
#endif
}
"""

FULL = """\
/* evo
operator = "norm"
species  = "split"
static   = ["N"]

[genes]
SPLIT    = [2, 1, 4]
STEPS    = [3, 0, 5000]
KEEP     = ["registers", "shared"]
CTAS_SM  = [1, 2]
EARLY    = [1, 0]

[default]
EARLY = 0

[let]
ROWS    = "ceildiv(M, SPLIT)"
BLOCKS  = "min(ROWS, SMS * CTAS_SM)"
TILE    = "where(dtype_x == 'fp32', 32, 64)"

[constraints]
all = ["SPLIT <= SMS", "N % 8 == 0", "dtype_x != 'fp16' or KEEP == 'registers'", "N // (M - 7) >= 0"]

[build]
fmad = false
maxrregcount = "where(KEEP == 'registers', 168, 0)"
std = "c++20"

[[launch]]
kernel = "partial"
grid   = ["BLOCKS * 2", "SPLIT"]
block  = [32, 4]
cluster = [2]
shared = "TILE * 64"
args   = ["xmap", "rmap?", "work", "i64:M * N", "f32:eps", "f32:N", "seed"]

[[launch]]
kernel = "scan"
when   = "STEPS > 0"
repeat = "STEPS"
grid   = ["max(1, BLOCKS // (ITER + 1))"]
block  = [128]
pdl    = "ITER > 0"
args   = ["work", "i32:ITER", "count"]

[[launch]]
kernel = "finish"
cooperative = true
grid   = [1]
block  = [64]
args   = ["work", "weight", "y", "rstd?"]

[[launch]]
kernel = "add_residual"
when   = "has_residual"
grid   = [1]
block  = [64]
args   = ["residual", "y"]

[scratch.work]
dtype = "fp32"
shape = ["SPLIT", "M", "N"]

[scratch.count]
dtype = "u32"
shape = ["SMS"]
align = 128
zero  = "kept"

[scratch.idle]
dtype = "u8"
shape = [16]

[tensor_maps.xmap]
tensor  = "x"
shape   = ["M // 2", "N"]
strides = ["2 * N", 1]
offset  = "N"
box     = [16, "TILE // 2"]
swizzle = "128B"
l2      = "256B"

[tensor_maps.rmap]
tensor = "residual"
box    = [8, 64]
oob    = "nan"
*/
#if HAS_residual
extern "C" __global__ void add_residual() {}
#endif
extern "C" __global__ void partial() {}
extern "C" __global__ void scan() {}
extern "C" __global__ void finish() {}
"""

PTX = """\
// a comment
/* evo
operator = "norm"
species = "ptx"
static = ["N"]
[genes]
LOAD = ["ld.global", "ld.global.nc"]
COUNT = [-4, 4]
[[launch]]
kernel = "k"
grid = ["M"]
block = [32]
args = ["x", "y"]
*/
.version 8.0
.target sm_90a
.visible .entry k()
{
    ${LOAD}.${DTYPE_x} %r1, [%r2];  // load ${LOAD_INDEX}
    add.s32 %r1, %r1, ${COUNT};
    mul.lo.s32 %r1, %r1, ${DIM_N};
}
"""


def edited(text: str, old: str, new: str) -> str:
    """`text` with one passage changed; the passage must be there."""
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    return text.replace(old, new)

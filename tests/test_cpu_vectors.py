"""evo.h's vectors on the CPU, at every width of registers: lane by lane what the scalars give, bit for bit."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which("g++") or shutil.which("clang++")
HEADER = Path(__file__).parent.parent / "fitness" / "cpu"
LEVELS = {"x86-64": (), "x86-64-v3": ("avx2", "f16c"), "x86-64-v4": ("avx512f", "avx512bw", "avx512vl", "avx512dq")}

PROGRAM = r"""
#include "evo.h"
#include <stdio.h>
#include <string.h>

static int wrong = 0;

template <class A, class B> void same(const A& a, const B& b, const char* what, long at) {
    static_assert(sizeof a == sizeof b, "");
    if (memcmp(&a, &b, sizeof a)) wrong += printf("%s, lane %ld\n", what, at) > 0;
}

static const uint32_t LOW[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff};

// 16-bit patterns all of them; of floats those around every rounding.
template <class T> void conversions(const char* what) {
    for (long first = 0; first < 65536; first += 16) {
        T in[16], out[17];
        for (int i = 0; i < 16; ++i) { uint16_t bits = first + i; memcpy(in + i, &bits, 2); }
        evo_vector v = evo_load(in);
        for (int i = 0; i < 16; ++i) same(static_cast<float>(v[i]), evo_float(in[i]), what, first + i);
        for (uint32_t low : LOW) {
            float wide[16];
            for (int i = 0; i < 16; ++i) {
                uint32_t bits = (uint32_t)(first + i) << 16 | low;
                memcpy(wide + i, &bits, 4);
            }
            evo_store(out + 1, evo_load(wide));  // not aligned
            for (int i = 0; i < 16; ++i) {
                const T alone = evo_cast<T>(wide[i]);
                const float back = evo_float(out[1 + i]);
                if (wide[i] == wide[i]) same(out[1 + i], alone, what, first + i);
                else if (back == back) wrong += printf("%s: a NaN was lost\n", what) > 0;
            }
        }
    }
}

int main() {
    conversions<evo_bf16>("bf16");
    conversions<evo_fp16>("fp16");
    float a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = 1.5f * i - 7, b[i] = 0.25f * i + 3;
    const evo_vector x = evo_load(a), y = evo_load(b);
    evo_vector z = x;
    z += y, z *= 3.0f, z -= y, z /= y, z = -z;
    const evo_vector mixed = (x * 2.0f + 1.0f - y) / y + (2.0f - x) * (1.0f / y) + evo_splat(0.5f);
    for (int i = 0; i < 16; ++i) {
        same(static_cast<float>(z[i]), -(((a[i] + b[i]) * 3.0f - b[i]) / b[i]), "assignments", i);
        const float alone = (a[i] * 2.0f + 1.0f - b[i]) / b[i] + (2.0f - a[i]) * (1.0f / b[i]) + 0.5f;
        same(static_cast<float>(mixed[i]), alone, "operators", i);
    }
    evo_vector set = {};
    for (int i = 0; i < 16; ++i) set[i] = a[i];
    same(evo_sum(set), evo_sum(x), "sum", 0);
    alignas(64) evo_bf16 streamed[16], stored[16];
    evo_stream(streamed, x), evo_fence(), evo_store(stored, x);
    same(streamed, stored, "stream", 0);
    return wrong != 0;
}
"""


@pytest.mark.skipif(not COMPILER, reason="no C++ compiler")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="another processor")
@pytest.mark.parametrize("level", LEVELS)
def test_lanes_are_what_scalars_are(tmp_path: Path, level: str) -> None:
    """What this processor has not is built, and not run."""
    (tmp_path / "vectors.cpp").write_text(PROGRAM)
    program = tmp_path / "vectors"
    options = ["-std=c++17", "-O3", f"-march={level}", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
    command = [str(COMPILER), *options, f"-I{HEADER}", "vectors.cpp", "-o", "vectors"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    if set(LEVELS[level]) <= set(flags):
        done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout[:2000]

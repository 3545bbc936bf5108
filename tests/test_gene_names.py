"""Genes become macros ahead of evo's own headers: no gene's name may be a word of theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evo.fitness.cpu.target import CpuTarget
from evo.fitness.cuda.target import CudaTarget
from evo.genome import Genome, compile_request
from evo.operators.rmsnorm import RmsNorm
from evo.records import Build, Status
from evo.target import BlobStore, Target

FITNESS = Path(__file__).parent.parent / "fitness"
HEADERS = [FITNESS / "cuda" / name for name in ("evo.h", "evo_async.h", "evo_mma.h")] + [FITNESS / "cpu" / "evo.h"]
NAMES = (
    "WIDTH", "SIZE", "HOW", "PENDING", "SIGN", "COUNT", "STEP", "KEEP", "ACROSS", "TURN", "NAME", "OPCODE", "SUFFIX",
    "TEXT", "WORDS", "POINTER", "BITS", "TYPE", "ROWS", "TILE", "VALUE", "LANES", "FROM", "PACKED", "BARRIER",
)  # fmt: skip

CUDA = """/* evo
operator = "rmsnorm"
species  = "names"
static   = ["N"]
[genes]
GENES
[[launch]]
kernel = "k"
grid   = ["M"]
block  = [128]
args   = ["x", "weight", "y", "eps"]
*/
#include "evo.h"
#include "evo_mma.h"
template <class... Int> EVO_DEVICE constexpr int folded(Int... values) {
    int all = 0;
    ((all = all * 3 + values), ...);
    return all;
}
using X = evo_words<DTYPE_x>;
template <class T> EVO_DEVICE void words(const T* x, T* y) {
    unsigned in[8], out[8];
    float some[2 * X::size];
    EVO_LOAD4("ld.global.v4.b32", in, x);
    EVO_LOAD("ld.global.v4.b32", in, x);
    evo_unpack<T>(in, some);
    evo_pack<T>(some, out);
    EVO_STORE("st.global.v4.b32", y, out);
    EVO_STORE4("st.global.v4.b32", y, out);
    evo_shared_store(0, in);
    evo_shared_load(0, out);
}
extern "C" __global__ void k(const DTYPE_x* x, const float* weight, DTYPE_y* y, float eps) {
    words(x, y);
    float d[64] = {evo_rsqrt(eps), evo_rsqrt<1>(eps), evo_rsqrt<2>(eps), evo_sum(eps), evo_sum<8>(eps)};
    unsigned a[4] = {evo_add2<evo_bf16>(1, 2), evo_sub2<evo_fp16>(1, 2), evo_mul2<evo_bf16>(1, 2)};
    evo_bulk_wait<1>();
    evo_async_wait<1>();
    evo_mma<evo_bf16>(d, a, 1, 2);
    evo_wgmma_fence();
    evo_wgmma<16>(d, a, evo_wgmma_operand(0, 128, 256));
    evo_wgmma<128, -1, true>(d, a, evo_wgmma_operand(0, 128, 256), 0);
    evo_wgmma_commit();
    evo_wgmma_wait<0>();
    evo_touch(d);
    y[0] = evo_cast<DTYPE_y>(d[0] + d[63] + folded(NAMES));
}
"""
CPU = """/* evo
operator = "rmsnorm"
species  = "names"
static   = ["N"]
[genes]
GENES
[[launch]]
kernel = "k"
grid   = ["M"]
block  = [1]
args   = ["x", "weight", "y", "eps"]
*/
#include "evo.h"
extern "C" void k(long, long, int, const DTYPE_x* x, const float* weight, DTYPE_y* y, float eps) {
    const long numbers[] = {NAMES};
    evo_store(y, evo_load(x) * evo_load(weight) + evo_splat(evo_sum(evo_load(weight)) + eps));
    evo_stream(y + 16, evo_load(x + 16) * evo_float(x[0]));
    for (int i = 0; i < 16; ++i) y[i] = evo_cast<DTYPE_y>(numbers[i] + evo_float(y[i]));
    evo_fence();
}
"""


def build(target: Target, text: str, names: tuple[str, ...], blobs: BlobStore) -> Build:
    genes = "\n".join(f"{name} = [{index}]" for index, name in enumerate(names, 2))
    text = text.replace("GENES", genes).replace("NAMES", ", ".join(names))
    genome = Genome.parse(text, ".cpp" if target.name == "cpu" else ".cu")
    case = next(case for case in RmsNorm().cases(target.name) if case.dtypes["x"] == "bf16")
    request = compile_request(genome, RmsNorm(), case, {}, target=target.name, arch=target.arch)
    assert {name for name, _ in request.defines} >= set(names)
    return target.build(request, blobs)


@pytest.mark.parametrize(("target", "text"), [(CudaTarget("sm_90"), CUDA), (CpuTarget(), CPU)], ids=["cuda", "cpu"])
def test_any_gene_name_goes_with_evo_h(target: Target, text: str, tmp_path: Path) -> None:
    if missing := target.missing():
        pytest.skip(f"needs {missing}")
    made = build(target, text, NAMES, BlobStore(tmp_path))
    assert made.status is Status.OK, made.diagnosis
    # Without a gene called SIZE the older evo_words<T>::SIZE is there: a variable, which the hash sees.
    others = tuple(name if name == "SIZE" else f"EVERY_{name}" for name in NAMES)
    plain = build(target, text, others, BlobStore(tmp_path))
    assert made.code_hash == plain.code_hash


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_headers_have_no_word_that_a_gene_could_be_named(header: Path) -> None:
    code = re.sub(r'//.*|/\*.*?\*/|"[^"\n]*"', " ", header.read_text())
    code = re.sub(r"#ifndef SIZE *\n.*\n#endif\n", "", code)  # the older name of evo_words<T>::size gives way to a gene
    words = set(re.findall(r"(?<![\w#])[A-Z][A-Z0-9_]{2,}\b", code))
    assert {word for word in words if not word.startswith("EVO_")} == set()

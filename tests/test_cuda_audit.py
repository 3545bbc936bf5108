"""What is found in SASS: forbidden and flagged instructions, and whether a gene's instruction is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.fitness.cuda import audit, claims, ptxas
from evo.fitness.cuda.target import CudaTarget
from evo.genome import Genome, compile_request, uncovered
from evo.operators.rmsnorm import RmsNorm
from evo.records import Build, BuildOptions, CompileRequest, Status
from evo.target import BlobStore

KERNEL = """#define PASTE(a, b) a##b
#define TEXT(x) #x
static __device__ __noinline__ int twice(int x) { return 2 * x; }
static __device__ __noinline__ int thrice(int x) { return 3 * x; }
typedef int (*Function)(int);
extern "C" __global__ void k(int* p) { unsigned v = p[1]; unsigned long long w = p[2]; %s p[3] = v; p[4] = w; }
"""
REFUSED = {
    'asm volatile("mov.u32 %0, %%clock;" : "=r"(v));': "reads a clock",
    'asm volatile("mov.u64 %0, %%clo" "ck64;" : "=l"(w));': "reads a clock",
    'asm volatile("mov.u32 %0, %%" TEXT(globaltimer) "_lo;" : "=r"(v));': "reads a clock",
    "w = PASTE(clo, ck64)();": "reads a clock",
    'asm volatile("mov.u32 %0, %%pm0;" : "=r"(v));': "performance counter",
    'asm volatile("mov.u64 %0, %%gridid;" : "=l"(w));': "number or the graph",
    'asm volatile("mov.b64 %0, %%current_graph_exec;" : "=l"(w));': "number or the graph",
    "Function table[2] = {twice, thrice}; v = table[p[5] & 1](p[6]);": "function pointer",
    'asm volatile("tex.1d.v4.s32.s32 {%0,%0,%0,%0}, [%1, {%2}];" : "=r"(v) : "l"(w), "r"(v));': "texture",
    'asm volatile("suld.b.1d.b32.trap %0, [%1, {%2}];" : "=r"(v) : "l"(w), "r"(v));': "surface",
}
FLAGGED = {
    'asm volatile("mov.u32 %0, %%smid;" : "=r"(v));': "reads where it runs",
    'asm volatile("mov.u32 %0, %%warpid;" : "=r"(v));': "reads where it runs",
    'asm volatile("nanosleep.u32 100;");': "sleeps",
    'if (v == 7) asm volatile("trap;");': "trap",
    'asm volatile("brkpt;");': "breakpoint",
    'asm volatile("prefetch.global.L2::evict_last [%0];" :: "l"(p));': "asks L2 to keep data",
    'asm volatile("applypriority.global.L2::evict_normal [%0], 128;" :: "l"(p));': "asks L2 to keep data",
    'asm volatile("discard.global.L2 [%0], 128;" :: "l"(p));': "discards lines",
    "int a[40]; for (int i = 0; i < 40; i++) { a[i] = p[i]; } for (int i = 0; i < 40; i++) v += a[p[i] & 31];":
        "local memory",
}  # fmt: skip
HONEST = (
    'asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(v));',
    "v = twice(p[5]);",
    "v = blockDim.x * gridDim.x + threadIdx.x + blockIdx.y;",
    'asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(v));',
    "switch (v) { case 0: v = p[9] * 3; break; case 1: v = p[8] / 7; break; case 2: w = p[7] ^ v; break; "
    "case 3: v = p[1] / 3; break; case 4: v = p[1] / p[2]; break; case 5: v = p[1] << p[5]; break; }",
    "w = w / (unsigned long long)p[7]; v = (unsigned)sqrtf((float)v);",
    "v = atomicAdd(p, 1);",
)


def build(source: str, folder: Path, target: str = "sm_90", defines: tuple[tuple[str, str], ...] = ()) -> Build:
    cuda = CudaTarget(target)
    return cuda.build(
        CompileRequest(target, cuda.arch, ".cu", source, defines, BuildOptions(), ("k",)), BlobStore(folder)
    )


def flags(outcome: Build) -> str:
    assert outcome.status is Status.OK, outcome.diagnosis
    return "; ".join(flag for kernel in outcome.kernels for flag in kernel.flags)


@pytest.mark.parametrize("body", REFUSED)
def test_refused_instructions(body: str, tmp_path: Path) -> None:
    outcome = build(KERNEL % body, tmp_path)
    assert outcome.status is Status.FORBIDDEN
    assert outcome.diagnosis is not None
    assert REFUSED[body] in outcome.diagnosis.message
    assert not outcome.blob


@pytest.mark.parametrize("body", FLAGGED)
def test_flagged_instructions(body: str, tmp_path: Path) -> None:
    assert FLAGGED[body] in flags(build(KERNEL % body, tmp_path))


def test_honest_instructions_are_not_flagged(tmp_path: Path) -> None:
    for body in HONEST:
        assert flags(build(KERNEL % body, tmp_path)) == "", body


@pytest.mark.parametrize("target", ["sm_80", "sm_100", "sm_120"])
def test_other_architectures(target: str, tmp_path: Path) -> None:
    for body in list(REFUSED)[:1] + list(REFUSED)[5:8]:
        assert build(KERNEL % body, tmp_path, target).status is Status.FORBIDDEN, body
    assert "reads where it runs" in flags(build(KERNEL % next(iter(FLAGGED)), tmp_path, target))
    assert flags(build(KERNEL % HONEST[2], tmp_path, target)) == ""


def test_a_function_apart_is_looked_at() -> None:
    found = audit.findings({"k": ["EXIT"], "helper": ["@P0 CS2R R2, SR_CLOCKLO"], "slow": ["LDL R0, [R1]"]})
    assert audit.violation(found).startswith("helper reads a clock")
    assert audit.flags(found, ["k"])["k"][-1].startswith("uses local memory")


def test_rules_are_published() -> None:
    text = " ".join((Path(__file__).parent.parent / "docs" / "genome.md").read_text().split())
    for rule in (*audit.RULES, audit.LAUNCH_IDENTITY):
        assert f"| {rule.what} | {'refused' if rule.refused else 'flagged'} | {rule.why} |" in text, rule.what


LOAD = """extern "C" __global__ void k(const uint4* p, uint4* q) {
    uint4 v; asm volatile(LOAD " {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    v.x += 1; asm volatile(STORE " [%0], {%1,%2,%3,%4};" :: "l"(q), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}"""
LOADS = (
    "ld.global.v4.b32", "ld.global.nc.v4.b32", "ld.global.nc.L1::no_allocate.v4.b32",
    "ld.global.nc.L1::no_allocate.L2::128B.v4.b32", "ld.global.nc.L1::no_allocate.L2::256B.v4.b32",
    "ld.global.L1::no_allocate.L2::256B.v4.b32", "ld.global.cs.v4.b32", "ld.global.cg.v4.b32", "ld.global.lu.v4.b32",
    "ld.global.nc.L1::evict_last.v4.b32", "ld.relaxed.gpu.global.v4.b32", "ld.volatile.global.v4.b32",
)  # fmt: skip
STORES = ("st.global.v4.b32", "st.global.cs.v4.b32", "st.global.cg.v4.b32", "st.global.wt.v4.b32",
          "st.global.L1::no_allocate.v4.b32", "st.relaxed.gpu.global.v4.b32")  # fmt: skip


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_every_claimed_access_is_shown_and_only_that(target: str, tmp_path: Path) -> None:
    for number, load in enumerate(LOADS[:6] if target == "sm_100" else LOADS):
        store = STORES[number % len(STORES)]
        defines = (("LOAD", f'"{load}"'), ("STORE", f'"{store}"'))
        outcome = build(LOAD, tmp_path, target, defines)
        assert flags(outcome) == "", (load, store)
        opcodes = CudaTarget(target).examine(outcome, BlobStore(tmp_path)).kernels[0].opcodes
        shown = [other for other in LOADS if claims.prove(other, opcodes) == "shown"]
        same = {"ld.global.cg.v4.b32", "ld.relaxed.gpu.global.v4.b32"}  # one machine instruction
        assert set(shown) - same == {load} - same, load


def test_a_claim_that_is_not_in_the_code_is_flagged(tmp_path: Path) -> None:
    defines = (("LOAD", '"ld.global.nc.L1::no_allocate.v4.b32"'), ("STORE", '"late"'))
    source = 'extern "C" __global__ void k(int* p) { const char* a = LOAD; const char* b = STORE; p[0] = a[1] + b[0]; }'
    assert flags(build(source, tmp_path, defines=defines)).endswith(
        "gene LOAD: ld.global.nc.L1::no_allocate.v4.b32 is not in the machine code"
    )


@pytest.mark.parametrize(
    ("ptx", "opcode", "verdict"),
    [
        ("ld.global.b16", "LDG.E.U16", "shown"),
        ("ld.global.s8", "LDG.E.S8", "shown"),
        ("ld.global.v8.b32", "LDG.E.ENL2.256", "shown"),
        ("ld.shared.v4.b32", "LDS.128", "shown"),
        ("ld.global.v4.b32", "LDG.E.128.CONSTANT", "absent"),
        ("ld.global.nc.v4.f32", "LDG.E.64.CONSTANT", "absent"),
        ("ld.global.L2::cache_hint.v4.b32", "LDG.E.128", "not proved"),
        ("cp.async.cg.shared.global.L2::128B", "LDGSTS.E.BYPASS.LTC128B.128", "shown"),
        ("cp.async.cg.shared.global.L2::128B", "LDGSTS.E.BYPASS.128", "absent"),
        ("cp.async.ca.shared.global", "LDGSTS.E.128", "shown"),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", "UBLKCP.S.G", "shown"),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.tile", "UTMALDG.2D", "shown"),
        ("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group", "UTMASTG.2D", "absent"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "HMMA.16816.F32.BF16", "shown"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "HMMA.16816.F32", "absent"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", "HMMA.16816.F32", "absent"),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", "HGMMA.64x8x16.F32.BF16", "shown"),
        ("red.global.add.f32", "REDG.E.ADD.F32.FTZ.RN.STRONG.GPU", "shown"),
        ("atom.shared.add.u32", "ATOMS.ADD", "shown"),
        ("bar.sync", "BAR.SYNC.DEFER_BLOCKING", "shown"),
        ("barrier.cluster.arrive.release.aligned", "UCGABAR_ARV", "shown"),
        ("mbarrier.try_wait.parity.shared::cta.b64", "SYNCS.PHASECHK.TRANS64", "absent"),
        ("fence.proxy.async", "FENCE.VIEW.ASYNC.S", "shown"),
        ("tcgen05.ld.sync.aligned", "LDTM", "not proved"),
        ("oneshot", "LDG", "no claim"),
        ("a.b.c", "LDG", "no claim"),
    ],
)
def test_verdicts(ptx: str, opcode: str, verdict: str) -> None:
    assert claims.prove(ptx, [opcode, "MOV", "EXIT"]) == verdict


def test_the_seeds_show_what_their_genes_claim(tmp_path: Path) -> None:
    operator, target = RmsNorm(), CudaTarget("sm_90")
    for path in operator.seeds("sm_90"):
        genome = Genome.read(path)
        values, facts = genome.values({}), target.nominal()
        case = next(c for c in operator.cases("sm_90") if not uncovered(genome, operator, c, values, facts))
        request = compile_request(genome, operator, case, values, target="sm_90", arch="sm_90a")
        outcome = target.build(request, BlobStore(tmp_path))
        assert "gene" not in flags(outcome), (path.name, flags(outcome))


WGMMA = """extern "C" __global__ void k(unsigned long long* q, float* y) {
    float d[4] = {0, 0, 0, 0}; unsigned long long a = q[0], b = q[1];
    asm volatile("wgmma.fence.sync.aligned;");
    for (int i = 0; i < 4; i++) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1,1,1,0,0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
        d[0] *= 2.f;
    }
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
    y[0] = d[0] + d[1] + d[2] + d[3];
}"""


def test_serialised_wgmma_is_explained(tmp_path: Path) -> None:
    outcome = build(WGMMA, tmp_path)
    assert "wgmma is serialised due to" in flags(outcome), outcome.log
    assert "before wgmma.wait_group" in flags(outcome)
    assert "C75" in outcome.log
    tidy = build(WGMMA.replace("d[0] *= 2.f;", ""), tmp_path)
    assert "serialised" not in flags(tidy), tidy.log


def test_remarks_name_their_kernel() -> None:
    log = "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x "
    log += "in function 'k'"
    assert list(ptxas.remarks(log)) == ["k"]
    assert "due to x:" in ptxas.remarks(log)["k"][0]

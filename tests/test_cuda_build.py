"""Building CUDA genomes with no driver: resource reports, machine-code identity, refusals, devices."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Literal

import pytest

from evo import extras
from evo.errors import TargetError, UnknownNameError
from evo.fitness.cuda import devices, ptxas, sass, toolchain
from evo.fitness.cuda.architectures import ARCHITECTURES, canonical_target
from evo.fitness.cuda.build import build_key, headers_digest, inspect_code
from evo.fitness.cuda.cubin import read_cubin
from evo.fitness.cuda.target import CudaTarget
from evo.records import Build, BuildOptions, CompileRequest, Stage, Status
from evo.target import BlobStore

SCALE = """
extern "C" __global__ void __launch_bounds__(128) scale(const float* x, float* y, int n, double factor) {
    __shared__ float part[100];
    part[threadIdx.x % 100] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < n) y[threadIdx.x] = part[99 - threadIdx.x % 100] * (float)factor;
}
"""
WGMMA = """
extern "C" __global__ void fence(int* y) { asm volatile("wgmma.fence.sync.aligned;"); y[0] = 1; }
"""
PTX = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry scale(.param .u64 y, .param .f32 factor)
{
    .reg .b64 %a<4>; .reg .f32 %f<3>; .reg .b32 %r<2>;
    ld.param.u64 %a1, [y]; ld.param.f32 %f1, [factor];
    mov.u32 %r1, %tid.x; mul.wide.u32 %a2, %r1, 4; add.s64 %a3, %a1, %a2;
    st.global.f32 [%a3], %f1; ret;
}
"""
needs_assembler = pytest.mark.skipif(bool(toolchain.missing_assembler()), reason="nvJitLink is not installed")


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path)


def request(
    source: str,
    *,
    target: str = "sm_90",
    kernels: tuple[str, ...] = (),
    suffix: Literal[".cu", ".ptx"] = ".cu",
    **macros: str,
) -> CompileRequest:
    return CompileRequest(
        target=target,
        arch=ARCHITECTURES[target].arch,
        suffix=suffix,
        source=source,
        defines=tuple(macros.items()),
        options=BuildOptions(),
        kernels=kernels,
    )


def build(wanted: CompileRequest, blobs: BlobStore) -> Build:
    return CudaTarget(wanted.target).build(wanted, blobs)


def rejected(wanted: CompileRequest, blobs: BlobStore) -> tuple[Status, str]:
    outcome = build(wanted, blobs)
    assert outcome.diagnosis is not None, outcome.status
    assert not outcome.blob
    return outcome.status, outcome.diagnosis.message


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_report_of_a_kernel(target: str, blobs: BlobStore) -> None:
    outcome = build(request(SCALE, target=target, kernels=("scale",)), blobs)
    assert outcome.status == Status.OK
    (kernel,) = outcome.kernels
    assert kernel.name == "scale"
    assert kernel.parameters == (8, 8, 4, 8)
    assert kernel.shared_bytes == 400  # without what the system keeps of each block
    assert kernel.max_threads == 128
    assert 8 <= kernel.registers <= 64
    assert (kernel.stack_bytes, kernel.spill_bytes) == (0, 0)
    assert outcome.toolchain == toolchain.toolchain()
    assert read_cubin(blobs.get(outcome.blob)).code_hash == outcome.code_hash


def test_tensor_map_and_large_parameters(blobs: BlobStore) -> None:
    source = """#include "evo.h"
    struct Large { char bytes[5000]; };
    extern "C" __global__ void one(const __grid_constant__ CUtensorMap map, int* y) { y[0] = ((const int*)&map)[y[1]]; }
    extern "C" __global__ void two(int* y, const __grid_constant__ Large large) { y[0] = large.bytes[y[1]]; }
    """
    outcome = build(request(source), blobs)
    assert [kernel.parameters for kernel in outcome.kernels] == [(128, 8), (8, 5000)]


def test_spills_are_reported(blobs: BlobStore) -> None:
    source = """extern "C" __global__ void spill(float* x) {
        float kept[64], sum = 0;
        for (int i = 0; i < 64; i++) kept[i] = x[i * 1024 + threadIdx.x];
        __syncthreads();
        for (int i = 0; i < 64; i++) sum += kept[(i * 7 + 31) & 63] * kept[i];
        for (int i = 0; i < 64; i++) x[i * 1024 + threadIdx.x] = sum * kept[i];
    }"""
    wanted = request(source)
    roomy = build(wanted, blobs).kernels[0]
    tight_request = dataclasses.replace(wanted, options=BuildOptions(maxrregcount=24))
    tight = build(tight_request, blobs).kernels[0]
    assert roomy.spill_bytes == 0
    assert tight.spill_bytes > 100
    assert tight.stack_bytes > 0
    assert tight.registers <= 32 < roomy.registers  # ptxas raises 24 to its own minimum


def test_options_reach_the_compiler(blobs: BlobStore) -> None:
    source = 'extern "C" __global__ void f(float* x) { x[0] = x[1] * x[2] + x[3]; }'
    fused = inspect_code(build(request(source), blobs), blobs).kernels[0].opcodes
    options = BuildOptions(fmad=False, ftz=True, std="c++20")
    wanted = dataclasses.replace(request(source), options=options)
    apart = inspect_code(build(wanted, blobs), blobs).kernels[0].opcodes
    assert "FFMA" in fused
    assert "FFMA" not in apart
    assert any(name.startswith("FMUL.FTZ") for name in apart)


def test_string_macro_reaches_inline_ptx(blobs: BlobStore) -> None:
    source = """extern "C" __global__ void f(float* x) {
        float v; asm volatile(LOAD " %0, [%1];" : "=f"(v) : "l"(x)); x[OFFSET] = v;
    }"""
    wanted = request(source, LOAD='"ld.global.nc.L1::no_allocate.f32"', OFFSET="7")
    opcodes = inspect_code(build(wanted, blobs), blobs).kernels[0].opcodes
    assert any(name.startswith("LDG") and "CONSTANT" in name for name in opcodes), opcodes


def test_code_hash_ignores_comments_names_and_launch_only_macros(blobs: BlobStore) -> None:
    base = build(request(SCALE, PAD="0"), blobs)
    comment = build(request("// a comment\n" + SCALE, PAD="1024"), blobs)
    renamed = build(request(SCALE.replace("scale", "multiply")), blobs)
    changed = build(request(SCALE.replace("99 -", "98 -")), blobs)
    assert base.code_hash == comment.code_hash == renamed.code_hash
    assert base.key != comment.key
    assert changed.status == Status.OK
    assert changed.code_hash != base.code_hash


def test_code_hash_sees_constants_launch_bounds_and_static_shared_memory(blobs: BlobStore) -> None:
    table = '__constant__ int t[4] = {1, 2, 3, 4}; extern "C" __global__ void f(int* x) { x[0] = t[x[1]]; }'
    variants = [table, table.replace("3, 4", "3, 5"), SCALE, SCALE.replace("(128)", "(256)")]
    hashes = {build(request(source), blobs).code_hash for source in variants}
    assert len(hashes) == 4
    assert "" not in hashes


def test_sass_histogram_and_text_hash(blobs: BlobStore) -> None:
    code = blobs.get(build(request(SCALE), blobs).blob)
    counts = sass.histogram(code)["scale"]
    assert counts["LDG.E"] == 1
    assert counts["STG.E"] == 1
    assert "NOP" not in counts
    other = blobs.get(build(request(SCALE.replace("99 -", "98 -")), blobs).blob)
    assert sass.text_hash(code) == sass.text_hash(bytes(code))
    assert sass.text_hash(code) != sass.text_hash(other)


def test_wgmma_builds_for_sm_90a_and_is_explained_for_sm_100a(blobs: BlobStore) -> None:
    assert build(request(WGMMA), blobs).status == Status.OK
    status, message = rejected(request(WGMMA, target="sm_100"), blobs)
    assert status == Status.BUILD_ERROR
    assert "wgmma.fence" in message
    assert "sm_100a" in message
    assert "`arch`" in message


def test_compile_error_names_the_line(blobs: BlobStore) -> None:
    outcome = build(request('\nextern "C" __global__ void f(int* x) { x[0] = absent; }'), blobs)
    assert outcome.status == Status.BUILD_ERROR
    assert outcome.diagnosis is not None
    assert outcome.diagnosis.stage == Stage.BUILD
    assert outcome.diagnosis.message == 'candidate.cu(2): identifier "absent" is undefined'
    assert ptxas.SOURCE_FOLDER not in outcome.diagnosis.detail
    assert "x[0] = absent" in outcome.diagnosis.detail


def test_warnings_are_kept_in_the_log(blobs: BlobStore) -> None:
    outcome = build(request('extern "C" __global__ void f(int* x) { int unused; x[0] = 1; }'), blobs)
    assert outcome.status == Status.OK
    assert '"unused" was declared but never referenced' in outcome.log
    assert "Used" not in outcome.log


def test_too_much_static_shared_memory(blobs: BlobStore) -> None:
    source = SCALE.replace("part[100]", "part[76800]")  # 300 KB
    status, message = rejected(request(source), blobs)
    assert status == Status.RESOURCE_LIMIT
    assert "scale" in message
    assert "0x4b000" in message


def test_missing_kernel(blobs: BlobStore) -> None:
    status, message = rejected(request(SCALE, kernels=("scale", "absent")), blobs)
    assert status == Status.INVALID_GENOME
    assert "'absent'" in message
    assert "scale" in message


@pytest.mark.parametrize("source", ["", "static __device__ int helper(int x) { return x; }"])
def test_source_without_kernels(source: str, blobs: BlobStore) -> None:
    status, message = rejected(request(source, kernels=("scale",)), blobs)
    assert status == Status.INVALID_GENOME
    assert "which has: none" in message


@needs_assembler
def test_ptx(blobs: BlobStore) -> None:
    outcome = build(request(PTX, suffix=".ptx", kernels=("scale",)), blobs)
    assert outcome.status == Status.OK, outcome.diagnosis
    assert outcome.kernels[0].parameters == (8, 4)
    assert outcome.kernels[0].registers > 0
    status, message = rejected(request(PTX.replace("ret;", "retrun;"), suffix=".ptx"), blobs)
    assert status == Status.BUILD_ERROR
    assert message.startswith("PTX line 9: ")


def test_ptx_without_assembler_is_not_the_candidates_fault(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "nvjitlink_version", lambda: "")
    status, message = rejected(request(PTX, suffix=".ptx"), blobs)
    assert status == Status.EVALUATOR_ERROR
    assert "pip install nvidia-nvjitlink" in message


def test_key_depends_on_request_and_toolchain() -> None:
    base = request(SCALE)
    keys = {
        build_key(base, "nvrtc 13.5.37"),
        build_key(base, "nvrtc 13.0.88"),
        build_key(request(SCALE, THREADS="64"), "nvrtc 13.5.37"),
        build_key(dataclasses.replace(base, options=BuildOptions(ftz=True)), "nvrtc 13.5.37"),
    }
    assert len(keys) == 4
    assert build_key(request(SCALE), "nvrtc 13.5.37") in keys


def test_report_of_an_older_compiler() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    96 bytes stack frame, 40 bytes spill stores, 48 bytes spill loads
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in function 'k'
ptxas info    : Used 32 registers, used 1 barriers, 400 bytes smem
"""
    assert ptxas.parse_report(log) == {"k": ptxas.Usage(stack_bytes=96, spill_bytes=88)}
    assert ptxas.notices(log).startswith("ptxas info    : (C7510) Potential Performance Loss")
    assert len(ptxas.notices(log).splitlines()) == 1


def test_not_a_cubin() -> None:
    with pytest.raises(ValueError, match="not a cubin"):
        read_cubin(b"\x7fELF and then nothing")


@pytest.mark.parametrize(
    ("name", "target"),
    [("sm_90", "sm_90"), ("sm_90a", "sm_90"), ("H100", "sm_90"), ("h200", "sm_90"), ("B200", "sm_100")],
)
def test_names_of_targets(name: str, target: str) -> None:
    assert canonical_target(name) == target
    assert CudaTarget(name).name == target
    assert CudaTarget(name).arch == f"{target}a"


def test_unknown_target_gives_near_names() -> None:
    with pytest.raises(UnknownNameError, match="H20"):
        canonical_target("H20")


def test_nominal_facts() -> None:
    facts = CudaTarget("H200").nominal()
    assert facts.names() == {"SMS": 132, "SMEM_BLOCK": 232448, "SMEM_SM": 233472, "L2_BYTES": 62914560}
    assert (facts.id, facts.peak_bytes_per_s, facts.peak_flops) == ("", 4.8e12, 989e12)
    assert all(CudaTarget(name).nominal().target == name for name in ARCHITECTURES)


def test_visible_devices_are_numbered_as_cuda_does() -> None:
    uuids = ["GPU-aaaa", "GPU-abbb", "GPU-cccc"]
    assert devices.visible_order(None, uuids) == [0, 1, 2]
    assert devices.visible_order("", uuids) == []
    assert devices.visible_order("2, 0", uuids) == [2, 0]
    assert devices.visible_order("1,7,0", uuids) == [1]
    assert devices.visible_order("-1", uuids) == []
    assert devices.visible_order("GPU-c,GPU-aa", uuids) == [2, 0]
    assert devices.visible_order("GPU-a", uuids) == []  # ambiguous
    assert devices.visible_order("0,0", uuids) == []


def test_no_devices_where_nvml_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    target = CudaTarget("sm_90")
    assert target.devices() == ()
    assert "no such GPU here" in target.describe()
    with pytest.raises(TargetError, match="no GPU of this kind"):
        target.open("cuda:0")


def test_missing_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "nvrtc_version", lambda: "")
    assert CudaTarget("sm_90").missing() == extras.install("cuda")
    with pytest.raises(TargetError, match=r"\[cuda\]"):
        CudaTarget("sm_90").toolchain()


@pytest.mark.parametrize("header", ["evo.h", "evo_async.h", "evo_mma.h"])
def test_key_depends_on_every_header_of_evo(header: str, tmp_path: Path) -> None:
    changed = tmp_path / "include"
    shutil.copytree(toolchain.EVO_HEADERS, changed, ignore=lambda _, names: [n for n in names if not n.endswith(".h")])
    assert headers_digest(changed) == headers_digest(toolchain.EVO_HEADERS)
    with (changed / header).open("a") as file:
        file.write("// changed\n")
    headers_digest.cache_clear()
    assert headers_digest(changed) != headers_digest(toolchain.EVO_HEADERS)

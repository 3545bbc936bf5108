"""What a CUDA source must not reach: files, the driver's services, state between calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.fitness.cuda.architectures import ARCHITECTURES
from evo.fitness.cuda.policy import source_violation, symbol_violation
from evo.fitness.cuda.target import CudaTarget
from evo.records import Build, BuildOptions, CompileRequest, Status
from evo.target import BlobStore

# On an H200 a second launch of the first one reads what its first launch stored.
WRITTEN_CONSTANTS = (
    """extern "C" { __constant__ int table[4] = {1, 2, 3, 4}; }
    extern "C" __global__ void k(int* p) {
        p[0] = table[p[2]];
        asm volatile("{.reg .u64 a; mov.u64 a, table; cvta.const.u64 a, a; st.u32 [a], %0;}" ::"r"(p[1]));
    }""",
    """__constant__ int table[4] = {1, 2, 3, 4};
    extern "C" __global__ void k(int* p) {
        int* to = p[1] ? const_cast<int*>(table) : p;
        p[0] = table[1];
        to[p[2]] = 9;
    }
    """,
)
KERNEL = 'extern "C" __global__ void k(int* p) { p[0] = 1; }\n'


def build(source: str, folder: Path, target: str = "sm_90") -> Build:
    cuda = CudaTarget(target)
    request = CompileRequest(target, cuda.arch, ".cu", source, (), BuildOptions(), ("k",))
    return cuda.build(request, BlobStore(folder))


def message(outcome: Build) -> str:
    assert outcome.diagnosis is not None, outcome.status
    return outcome.diagnosis.message


@pytest.mark.parametrize(
    "header",
    [
        "evo.h",
        "evo_async.h",
        "evo_mma.h",
        "cuda_bf16.h",
        "cuda_fp16.h",
        "cuda_fp8.h",
        "cooperative_groups.h",
        "mma.h",
        "cuda/ptx",
        "cuda/std/cstdint",
    ],
)
def test_allowed_headers_compile(header: str, tmp_path: Path) -> None:
    for source in (f'#include "{header}"\n', f"#  include /* why */ <{header}>\n"):
        assert source_violation(source + KERNEL) == ""
    outcome = build(f'#include "{header}"\n{KERNEL}', tmp_path)
    assert outcome.status == Status.OK, outcome.diagnosis


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('#include "/etc/hostname"', "absolute or parent path"),
        ('#include "../secret.h"', "absolute or parent path"),
        ("#include <cuda/../../secret>", "absolute or parent path"),
        ("#include <stdio.h>", "'stdio.h' is not allowed"),
        ("#include <cuda.h>", "'cuda.h' is not allowed"),
        ("#include <cooperative_groups/details/../x.h>", "absolute or parent path"),
        ("#define H <cuda.h>\n#include H", "line 2: #include of a macro"),
        ("#inc\\\nlude <stdio.h>", "'stdio.h'"),
        ("#inc\\ \nlude <stdio.h>", "'stdio.h'"),
        ("%:include <stdio.h>", "'stdio.h'"),
        ("??=include <stdio.h>", "trigraph"),
        ('#/*\n*/include /* " */ "/etc/hostname"', "absolute"),
        ("//\\ \n#include </etc/hostname>", "absolute"),
        ('const char* r = R"(\n)"; /*"*/\n#include </etc/hostname>\n//*/', "absolute"),
        ("#include_next <stdio.h>", "'stdio.h'"),
        ("#import <stdio.h>", "'stdio.h'"),
        ('#if __has_include("/etc/hostname")\n#endif', "absolute"),
        ('#embed "/etc/hostname"', "#embed"),
        ("const char s[] = {\n#  embed </etc/hostname>\n};", "#embed"),
        ('asm(".incbin \\"/etc/hostname\\"");', "assembler directive"),
        ("#\\u0069nclude <stdio.h>", "universal character"),
        ("\0", "NUL"),
        ("x" * (1 << 20) + KERNEL, "larger than"),
    ],
)
def test_refused_sources(source: str, reason: str) -> None:
    assert reason in source_violation(source + "\n" + KERNEL)


def test_macro_value_cannot_hold_a_directive() -> None:
    assert "macro LOAD" in source_violation(KERNEL, [("LOAD", '"x"\n#include </etc/hostname>')])
    assert source_violation(KERNEL, [("LOAD", '"ld.global.nc.f32"')]) == ""


def test_forbidden_source_is_not_compiled(tmp_path: Path) -> None:
    outcome = build('#include "/etc/hostname"\n' + KERNEL, tmp_path)
    assert outcome.status == Status.FORBIDDEN
    assert "line 1" in message(outcome)
    assert not outcome.blob
    assert not list(tmp_path.iterdir())


def test_headers_in_the_working_folder_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evo.h").write_text("#error the wrong evo.h\n")
    monkeypatch.chdir(tmp_path)
    assert build('#include "evo.h"\n' + KERNEL, tmp_path / "blobs").status == Status.OK


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('printf("%d", p[0]);', "printf in device code"),
        ("assert(p[0]);", "assert in device code"),
        ("p[0] = (int)(long)malloc(8);", "malloc in device code"),
        ("free(p);", "free in device code"),
    ],
)
def test_driver_services_are_refused(body: str, reason: str, tmp_path: Path) -> None:
    outcome = build(f'extern "C" __global__ void k(int* p) {{ {body} }}', tmp_path)
    assert outcome.status == Status.FORBIDDEN
    assert reason in message(outcome)


def test_unknown_driver_service_is_named() -> None:
    assert "cudaLaunchDevice" in symbol_violation(["cudaLaunchDevice"])
    assert symbol_violation([]) == ""


@pytest.mark.parametrize("target", ARCHITECTURES)
def test_state_is_refused_for_every_architecture(target: str, tmp_path: Path) -> None:
    variable = '__device__ int counter; extern "C" __global__ void k(int* p) { p[0] = counter++; }'
    outcome = build(variable, tmp_path, target)
    assert outcome.status == Status.FORBIDDEN
    assert "counter" in message(outcome)
    for constant in WRITTEN_CONSTANTS:
        outcome = build(constant, tmp_path, target)
        assert outcome.status == Status.FORBIDDEN, constant
        assert "`__constant__` variable is taken" in message(outcome)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(
    "source",
    [
        '__device__ int counter; extern "C" __global__ void k(int* p) { p[0] = counter++; }',
        '__device__ int counter = 5; extern "C" __global__ void k(int* p) { p[0] = counter++; }',
        'extern "C" __global__ void k(int* p) { static int counter; p[0] = counter++; }',
        '__managed__ int counter; extern "C" __global__ void k(int* p) { p[0] = counter++; }',
        "__device__ int counter[2]; __constant__ int* at = &counter[1];"
        'extern "C" __global__ void k(int* p) { p[0] = (*at)++; }',
    ],
)
def test_state_between_calls_is_refused(source: str, target: str, tmp_path: Path) -> None:
    outcome = build(source, tmp_path, target)
    assert outcome.status == Status.FORBIDDEN
    assert "counter" in message(outcome)
    assert "[scratch]" in message(outcome)


@pytest.mark.parametrize(
    "source",
    [
        '__constant__ int table[4] = {1, 2, 3, 4}; extern "C" __global__ void k(int* p) { p[0] = table[p[1] & 3]; }',
        'extern "C" __global__ void k(int* p) { constexpr int table[4] = {1, 2, 3, 4}; p[0] = table[p[1] & 3]; }',
        '__device__ constexpr int table[4] = {1, 2, 3, 4}; extern "C" __global__ void k(int* p) { p[0] = table[2]; }',
        '#include "evo.h"\nextern "C" __global__ void k(const __grid_constant__ CUtensorMap m, int* p)'
        '{ asm volatile("prefetch.tensormap [%0];" ::"l"(&m)); p[0] = ((const int*)&m)[p[1]]; }',
        "template <class T> struct Words { static constexpr int SIZE = 16 / sizeof(T); };"
        'extern "C" __global__ void k(int* p) { p[0] = Words<int>::SIZE; }',
        '__device__ int unused; extern "C" __global__ void k(int* p) { p[0] = 1; }',
    ],
)
def test_constant_tables_are_allowed(source: str, tmp_path: Path) -> None:
    outcome = build(source, tmp_path)
    assert outcome.status == Status.OK, outcome.diagnosis

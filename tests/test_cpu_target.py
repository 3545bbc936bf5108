"""The cpu target's builds: what is accepted, what is refused and how it is said, and what evo.h computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.errors import TargetError
from evo.fitness.cpu import elf, vet
from evo.fitness.cpu.target import CpuTarget
from evo.records import Build, BuildOptions, CompileRequest, Status
from evo.target import BlobStore, Rejected

TARGET = CpuTarget()
pytestmark = pytest.mark.skipif(bool(TARGET.missing()), reason=f"needs {TARGET.missing()}")

PLAIN = 'extern "C" void k(long first, long last, int, float* y) { while (first < last) y[first++] = 1; }\n'


def build(tmp_path: Path, source: str, *defines: tuple[str, str], options: BuildOptions | None = None) -> Build:
    request = CompileRequest("cpu", "native", ".cpp", source, defines, options or BuildOptions(), ("k",))
    return TARGET.build(request, BlobStore(tmp_path))


def message(build: Build) -> str:
    assert build.diagnosis
    return build.diagnosis.message


def test_build_names_kernels_and_their_instructions(tmp_path: Path) -> None:
    source = '#include <immintrin.h>\nextern "C" void other(long, long, int) { _mm_pause(); }\n' + PLAIN
    made = build(tmp_path, source)
    assert (made.status, made.diagnosis) == (Status.OK, None)
    assert [kernel.name for kernel in made.kernels] == ["k", "other"]
    assert dict(made.kernels[1].opcodes)["nop"] == 1  # pause is `rep nop`
    assert set(elf.vet(BlobStore(tmp_path).get(made.blob)).entries) == {"k", "other"}


def test_code_hash_depends_on_code_alone(tmp_path: Path) -> None:
    first, same = build(tmp_path, PLAIN), build(tmp_path, "// a remark\n" + PLAIN, ("UNUSED", "3"))
    other = build(tmp_path, PLAIN.replace("= 1", "= VALUE"), ("VALUE", "2"))
    assert first.code_hash == same.code_hash != other.code_hash
    assert first.key != same.key


def test_fmad_decides_contraction(tmp_path: Path) -> None:
    source = 'extern "C" void k(long, long, int, float* y, float a, float b) { y[0] = y[1] * a + b; }'
    fused, plain = (build(tmp_path, source, options=BuildOptions(fmad=fmad)) for fmad in (True, False))
    assert [any("fmadd" in op for op in made.kernels[0].opcodes) for made in (fused, plain)] == [True, False]


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ('#include "/etc/passwd"', "#include '/etc/passwd'"),
        ("#include <stdio.h>", "#include 'stdio.h'"),
        ("#inc\\\nlude </etc/passwd>", "#include '/etc/passwd'"),
        ("/* */ # /* ' */ include/**/</etc/passwd>", "'# /*'"),
        ("#define WHERE <stdio.h>\n#include WHERE", "#include 'WHERE'"),
        ("char c = '\"';\n#embed <x>\n", "#embed"),
        ("%:include <stdio.h>", "%:"),
        ("#if __has_include(</etc/passwd>)\n#endif", "__has_include"),
        ('const char* s = R"(" /* )";\n#include <stdio.h>\n//*/', "#include 'stdio.h'"),
        ('asm(".inc" "bin \\"/etc/passwd\\"");', ".incbin"),
        ('asm(".irp x, bin\\n.inc\\\\x \\"/etc/passwd\\"\\n.endr");', ".irp"),
        ("static int calls;\n" + PLAIN.replace("= 1", "= ++calls"), "section .bss: writable static data"),
        ("int calls = 3;", "section .data: writable static data"),
        ("static float volatile x; int f(); int y = f();", "section .init_array"),
        ("thread_local int x = 1;\n" + PLAIN.replace("= 1", "= x++"), "thread-local"),
        ("__attribute__((constructor)) void f() { __builtin_trap(); }", "section .init_array: code that runs"),
        ('void g();\nextern "C" void k(long, long, int) { g(); }', "undefined symbol _Z1gv"),
        ('extern "C" int puts(const char*);\nvoid f() { puts(""); }', "undefined symbol puts"),
        ('extern "C" void* f() { return 0; }\nextern "C" void k() __attribute__((ifunc("f")));', "indirect"),
        ('asm(".section .evil,\\"ax\\"\\nnop");', "section .evil"),
    ],
)  # fmt: skip
def test_forbidden(tmp_path: Path, source: str, part: str) -> None:
    made = build(tmp_path, source)
    assert made.status is Status.FORBIDDEN
    assert part in message(made)
    assert (made.blob, made.code_hash, made.kernels) == ("", "", ())


def test_quotes_numbers_and_comments_do_not_mislead() -> None:
    source = """int n = 1'000; char q = '"'; // it's "#include <math.h>"
    #include <math.h>
    /* #include <evo.h> */ #pragma once"""
    assert vet.source_objection(source) == ""


def test_syntax_error_carries_the_compilers_text(tmp_path: Path) -> None:
    made = build(tmp_path, 'extern "C" void k( { }')
    assert made.status is Status.BUILD_ERROR
    assert "genome.cpp:1" in message(made)
    assert made.diagnosis
    assert "error" in made.diagnosis.detail


def test_jump_tables_and_constants_are_linked(tmp_path: Path) -> None:
    source = """#include <string.h>
    static const char* const words[] = {"a", "bc", "def"};
    extern "C" void k(long first, long, int, char* y, const char* x, long n) {
        memcpy(y, x, n);
        y[0] = words[first][first];
    }"""
    made = build(tmp_path, source)
    assert made.status is Status.OK, made.diagnosis
    linked = elf.vet(BlobStore(tmp_path).get(made.blob))
    assert {relocation.symbol for relocation in linked.relocations} == {"", "memcpy"}
    images = [linked.link(base, {"memcpy": base - 16}) for base in (1 << 29, 1 << 30)]
    assert images[0] != images[1]
    assert len(images[0]) == len(linked.image)


@pytest.mark.parametrize("kept", [slice(0), slice(200), slice(0, None, 2)])
def test_damaged_object_is_refused(tmp_path: Path, kept: slice) -> None:
    code = BlobStore(tmp_path).get(build(tmp_path, PLAIN).blob)
    with pytest.raises(Rejected) as caught:
        elf.vet(code[kept])
    assert caught.value.status is Status.FORBIDDEN


def test_devices_and_unknown_device() -> None:
    (facts,) = TARGET.devices()
    assert (facts.id, facts.target, facts.smem_block) == ("cpu:0", "cpu", 0)
    assert facts.sms >= 1
    assert facts.l2_bytes > 1 << 16
    assert facts.memory_bytes > 1 << 28
    assert facts.name in TARGET.describe()
    with pytest.raises(TargetError, match=r"no device 'cpu:1'\n  there is cpu:0"):
        TARGET.open("cpu:1")


def test_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evo.fitness.cpu.compiler.find", lambda: "")
    assert "apt install g++" in TARGET.missing()
    assert TARGET.devices() == ()
    with pytest.raises(TargetError, match="cannot build here"):
        TARGET.toolchain()

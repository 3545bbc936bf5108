"""What hostile kernels tried on the cpu target, each written anew and each met with its own status."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from evo.errors import TargetError
from evo.fitness.cpu import compiler, executable, runner, vet
from evo.fitness.cpu.machine import CpuMachine
from evo.fitness.cpu.target import CpuTarget
from evo.operator import Fill
from evo.plan import Argument, Launch, LaunchPlan
from evo.records import BuildOptions, CompileRequest, Status
from evo.target import BlobStore, Buffer, BufferSpec, Call, Rejected

TARGET = CpuTarget()
pytestmark = pytest.mark.skipif(bool(TARGET.missing()), reason=f"needs {TARGET.missing()}")

ROWS, WIDTH, LANES = 64, 64, 3
HEAD = '#include "evo.h"\nextern "C" void k(long first, long last, int, const float* x, float* y) '
PLAIN = "#include <evo.h>\n#pragma once\n"
WORK = f"for (long i = first * {WIDTH}; i < last * {WIDTH}; ++i) y[i] = 3 * x[i] + 1;"
# The runner's `report` page: the pointer to it stands somewhere in the runner's data, near the code that called us.
# The kernel puts mappings at 0x7e... or 0x7f..., as chance has it.
REPORT = """char* at = (char*)((unsigned long)__builtin_return_address(0) & ~4095ul);
    volatile unsigned long* report = 0;
    for (unsigned long* p = (unsigned long*)(at + 4096); !report; ++p)
        if (*p >> 41 == 0x3f && !(*p & 4095) && *(unsigned*)*p == 1 && ((unsigned long*)*p)[16])
            report = (unsigned long*)*p;"""


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> BlobStore:
    return BlobStore(tmp_path_factory.mktemp("blobs"))


@pytest.fixture(scope="module")
def machine() -> Iterator[CpuMachine]:
    opened = TARGET.open("cpu:0")
    opened.deadline_s = 0.5
    yield opened
    opened.close()


def prepare(
    machine: CpuMachine, blobs: BlobStore, body: str, dtype: str = "fp32", width: int = WIDTH
) -> tuple[list[Call], list[Buffer]]:
    """Calls of one kernel on lanes of their own outputs, and these outputs."""
    source = HEAD.replace("float*", f"{'evo_' if '16' in dtype else ''}{dtype.replace('fp32', 'float')}*") + body
    build = TARGET.build(CompileRequest("cpu", "native", ".cpp", source, (), BuildOptions(), ("k",)), blobs)
    assert build.status is Status.OK, build.diagnosis
    shape = (ROWS, width)
    x, *ys = machine.allocate(
        [BufferSpec("x", dtype, shape, "input"), *LANES * [BufferSpec("y", dtype, shape, "output")]]
    )
    machine.fill(x, Fill(), 7)
    args = (Argument("tensor", "x"), Argument("tensor", "y"))
    plan = LaunchPlan((Launch("k", (ROWS, 1, 1), (ROWS, 1, 1), args),))
    program = machine.load(build, blobs.get(build.blob), plan)
    return [machine.bind(program, {"x": x, "y": y}) for y in ys], ys


def digests(machine: CpuMachine, ys: list[Buffer]) -> list[int]:
    return [machine.digest(y, 1) for y in ys]


def rejected(machine: CpuMachine, call: Call) -> Rejected:
    with pytest.raises(Rejected) as caught:
        machine.run(call)
    return caught.value


@pytest.mark.parametrize(
    ("body", "same"),
    [
        (f"{{ {WORK} }}", True),
        (f"{{ for (long i = 0; i < last * {WIDTH}; i += 5) if (y[i] != y[i]) {{ {WORK} return; }} }}", False),
        (f"{{ if (y[{ROWS * WIDTH - 1}] != 3 * x[{ROWS * WIDTH - 1}] + 1) {{ {WORK} }} }}", False),
    ],
    ids=["honest", "sees no poison", "looks at the last element"],
)  # fmt: skip
def test_kernel_that_skips_what_is_done_leaves_other_bits(
    machine: CpuMachine, blobs: BlobStore, body: str, same: bool
) -> None:
    calls, ys = prepare(machine, blobs, body)
    for call, y in zip(calls, ys, strict=True):
        machine.poison(y, 5)
        machine.run(call)
    checked = digests(machine, ys)
    watch = machine.stopwatch(calls, 10.0)
    for key in range(3):
        for y in ys:
            machine.poison(y, key)
        watch.sample()
        found = [a == b for a, b in zip(digests(machine, ys), checked, strict=True)]
        assert found == [same] * LANES


@pytest.mark.parametrize("workers", [1, 3])
def test_spoiling_waits_for_all_workers(blobs: BlobStore, workers: int) -> None:
    """One lane alone: the next call writes what was just spoiled, so a change made too late would stay."""
    import dataclasses

    machine = CpuMachine(dataclasses.replace(TARGET.devices()[0], sms=workers))
    calls, ys = prepare(machine, blobs, f"{{ {WORK} }}")
    machine.run(calls[0])
    checked = digests(machine, ys[:1])
    steps, outputs = [calls[0].steps], [calls[0].outputs]  # type: ignore[attr-defined]
    table = runner.Table.of(steps, outputs)
    for count in (1, 2, 300):
        machine._runner.block(table, 0, count, 5.0, knocks=1)
        assert digests(machine, ys[:1]) == checked
    machine.close()


@pytest.mark.parametrize(("dtype", "width"), [("fp32", 64), ("bf16", 64), ("fp16", 33)])
def test_spoiled_elements_are_few_near_and_never_the_same(
    machine: CpuMachine, blobs: BlobStore, dtype: str, width: int
) -> None:
    """A kernel that does nothing shows what a block of two calls on one lane did to its output: two spoils of four."""
    calls, (y, *_) = prepare(machine, blobs, "{}", dtype, width)
    table = runner.Table.of([calls[0].steps], [calls[0].outputs])  # type: ignore[attr-defined]
    places = set()
    for _ in range(4):
        machine.fill(y, Fill("constant", 1.5), 0)
        before = machine.read(y).view(f"u{machine.read(y).itemsize}")
        machine._runner.block(table, 0, 2, 1.0, knocks=1)
        after = machine.read(y)
        changed = np.flatnonzero(after.view(before.dtype) != before)
        assert 6 <= changed.size <= 8
        np.testing.assert_allclose(after.astype(np.float64), 1.5, rtol=0.02)
        places.add(tuple(changed))
    assert len(places) == 4


def test_each_layout_has_a_runner_of_its_own(machine: CpuMachine, blobs: BlobStore) -> None:
    """So that a kernel which takes the process over and stays is gone with its own case."""
    calls, _ = prepare(machine, blobs, f"{{ {WORK} }}")
    machine.run(calls[0])
    first = machine._runner._process
    machine.run(calls[1])
    assert machine._runner._process is first
    calls, _ = prepare(machine, blobs, f"{{ {WORK} }}")
    machine.run(calls[0])
    assert first
    assert machine._runner._process
    assert first.poll() == -signal.SIGKILL
    assert machine._runner._process.pid != first.pid


@pytest.mark.parametrize(
    "place", ["(char*)y + (1l << 30)", f"(char*){runner.OUTPUTS_BASE + (3 << 30)}", "(char*)x + (1l << 30)"]
)
def test_nothing_beyond_the_layout_can_be_reached(machine: CpuMachine, blobs: BlobStore, place: str) -> None:
    calls, _ = prepare(machine, blobs, f"{{ y[0] = *(volatile char*)({place}); {WORK} }}")
    machine.copy_rate(1 << 20)  # it reaches further for a moment
    assert (fault := rejected(machine, calls[0])).status is Status.CRASH
    assert fault.message.startswith("SIGSEGV: address 0x")


def test_end_of_the_last_page_is_guarded(machine: CpuMachine) -> None:
    for buffer in machine.allocate([BufferSpec("y", "u8", (n,), "output") for n in (1, 4095, 5000)]):
        assert buffer.high % 4096 == 0 or buffer.high < machine._used[1]  # type: ignore[attr-defined]
    assert machine._used[1] == max(b.high for b in machine._buffers)
    assert machine._used[1] % 4096 == 0


@pytest.mark.parametrize(
    ("deed", "status", "part"),
    [
        ("report[16] = 1ul << 60;", Status.IMPLAUSIBLE, "announced"),
        ("report[16] += 5;", Status.IMPLAUSIBLE, "announced"),
        ("((volatile unsigned*)report)[1] = 4000000; asm volatile(\"syscall\" :: \"a\"(231), \"D\"(200) : \"rcx\", "
         "\"r11\", \"memory\");", Status.CRASH, "signal 4000000: "),
        ("asm volatile(\"syscall\" :: \"a\"(231), \"D\"(0) : \"rcx\", \"r11\", \"memory\");", Status.CRASH,
         "exit code 0"),
    ],
    ids=["count beyond all", "count a little more", "signal made up", "exit"],
)  # fmt: skip
def test_forged_report_is_refused(machine: CpuMachine, blobs: BlobStore, deed: str, status: Status, part: str) -> None:
    calls, _ = prepare(machine, blobs, f"{{ {REPORT} {deed} }}")
    fault = rejected(machine, calls[0])
    assert fault.status is status, fault.message
    assert part in fault.message
    calls, ys = prepare(machine, blobs, f"{{ {WORK} }}")
    machine.run(calls[0])
    assert np.isfinite(machine.read(ys[0])).all()


def test_kill_from_outside_is_not_the_candidates_fault(machine: CpuMachine, blobs: BlobStore) -> None:
    calls, _ = prepare(machine, blobs, f"{{ {WORK} }}")
    machine.run(calls[0])
    assert machine._runner._process
    os.kill(machine._runner._process.pid, signal.SIGKILL)
    fault = rejected(machine, calls[0])
    assert fault.status is Status.EVALUATOR_ERROR
    assert "SIGKILL: something outside" in fault.message
    machine.run(calls[0])


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ('#if 0\n\' /*\n#endif\n#include "/etc/passwd"\n#if 0\n*/\n#endif', "#include '/etc/passwd'"),
        ('#if 0\n" /*\n#endif\n#include "/etc/passwd"\n#if 0\n*/ "\n#endif', "#include '/etc/passwd'"),
        ("int x; /* #include <stdio.h> */", "#include 'stdio.h'"),
        ("#in\\\nclude \\\n <stdio.h>", "#include 'stdio.h'"),
        ("#include /* */ <evo.h>", "#include"),
        ("#/* */include </etc/passwd>", "'#/*'"),
        ("#include_next <math.h>", "'#include_next'"),
        ('#line 1 "/etc/passwd"\nx', "'#line'"),
        ('# 1 "/etc/passwd"\nx', "'# 1 \"'"),
        ('_Pragma("GCC dependency \\"/etc/passwd\\"")', "dependency"),
        ("#inc\\u006cude </etc/passwd>", "#inc"),
        ("#if __has_include(<stdio.h>)", "__has_include"),
    ],
)
def test_no_way_of_writing_reads_a_file(source: str, part: str) -> None:
    assert part in vet.source_objection(source)


def test_scan_is_linear() -> None:
    assert vet.source_objection("#/**/" * 200_000)
    assert vet.source_objection("# define A /* */\n" * 60_000 + "#include <math.h>") == ""


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("".join(f'extern "C" void k{i}() {{}}\n' for i in range(65)), "65 global functions"),
        ('extern "C" void k() {}\nasm(".section .rodata\\n.rept 20001\\n.quad k\\n.endr\\n.text");', "20,001 reloc"),
        ('asm(".section .rodata\\n.fill 4194304\\n.text");', "bytes of object file"),
    ],
)  # fmt: skip
def test_object_of_unusual_size_is_refused(blobs: BlobStore, source: str, part: str) -> None:
    build = TARGET.build(CompileRequest("cpu", "native", ".cpp", source, (), BuildOptions(), ("k",)), blobs)
    assert build.status is Status.RESOURCE_LIMIT
    assert build.diagnosis
    assert part in build.diagnosis.message


@pytest.mark.parametrize("name", ["/bin/true", "/bin/false", "/bin/cat"])
def test_what_is_no_compiler_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("CXX", name)
    monkeypatch.setattr("evo.fitness.cpu.compiler.find", compiler.find.__wrapped__)
    assert f"{name} (from CXX) is none" in TARGET.missing()
    assert name in TARGET.describe()
    for ask in (TARGET.toolchain, lambda: TARGET.open("cpu:0"), runner.binary):
        with pytest.raises(TargetError, match=name):
            ask()


def test_damaged_executable_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVO_CACHE", str(tmp_path))
    path = runner.binary()
    sound, made = path.read_bytes(), path.stat().st_mtime_ns
    assert runner.binary().stat().st_mtime_ns == made
    assert subprocess.run([path], check=False).returncode == 64
    for damaged in (b"", sound[:5000], sound[:-1], sound[:4000] + b"\0" + sound[4001:]):
        path.write_bytes(damaged)
        assert runner.binary() == path
        assert executable._sound(path)
    path.chmod(0o600)
    assert runner.binary() == path
    assert os.access(path, os.X_OK)
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_only_the_header_may_talk_of_directives() -> None:
    header = "/* evo\n[genes]\nROWS = [1]  # include <all> rows\n# line by line\n*/\n"
    assert vet.source_objection(header + PLAIN) == ""
    assert "# line" in vet.source_objection("// " + header + PLAIN)
    assert "include" in vet.source_objection(header.replace("*/", "*\\ \n/\n#include <stdio.h>\n/**/") + PLAIN)
    assert "'??/'" in vet.source_objection(header.replace("*/", "*??/\n/\n#include <stdio.h>\n/**/") + PLAIN)

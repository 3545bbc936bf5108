"""The cpu target's machine: right results, and every kind of misbehaviour met with its own status."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from evo.fitness.cpu.machine import CpuMachine
from evo.fitness.cpu.runner import CODE_SLOTS
from evo.fitness.cpu.target import CpuTarget
from evo.operator import Fill
from evo.plan import Argument, Launch, LaunchPlan, Scratch
from evo.records import BuildOptions, CompileRequest, Status
from evo.target import BlobStore, BufferSpec, Call, Rejected

TARGET = CpuTarget()
pytestmark = pytest.mark.skipif(bool(TARGET.missing()), reason=f"needs {TARGET.missing()}")

SHAPE = (33, 48)
X, Y = BufferSpec("x", "fp32", SHAPE, "input"), BufferSpec("y", "fp32", SHAPE, "output", 32)
HEAD = '#include "evo.h"\nextern "C" void k(long first, long last, int worker, const float* x, float* y) '


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> BlobStore:
    return BlobStore(tmp_path_factory.mktemp("blobs"))


@pytest.fixture(scope="module")
def machine() -> Iterator[CpuMachine]:
    opened = TARGET.open("cpu:0")
    opened.deadline_s = 0.3
    yield opened
    opened.close()


def argument(name: str) -> Argument:
    return Argument("tensor", name)


def prepare(
    machine: CpuMachine, blobs: BlobStore, source: str, *scalars: Argument, specs: tuple[BufferSpec, ...] = (X, Y),
    items: int = SHAPE[0], scratch: tuple[Scratch, ...] = (),
) -> tuple[Call, list[Any]]:  # fmt: skip
    """Builds a source with one kernel `k`, allocates, and binds the tensors, scratch and scalars in this order."""
    buffers = machine.allocate(specs)
    for buffer in buffers:
        machine.fill(buffer, Fill(), 7)
    machine.guard(buffers, 11)
    return attach(machine, blobs, source, buffers, *scalars, items=items, scratch=scratch), buffers


def attach(
    machine: CpuMachine, blobs: BlobStore, source: str, buffers: list[Any], *scalars: Argument,
    items: int = SHAPE[0], scratch: tuple[Scratch, ...] = (),
) -> Call:  # fmt: skip
    build = TARGET.build(CompileRequest("cpu", "native", ".cpp", source, (), BuildOptions(), ("k",)), blobs)
    assert build.status is Status.OK, build.diagnosis
    named = {buffer.spec.name: buffer for buffer in buffers}
    args = (*map(argument, named), *scalars)
    plan = LaunchPlan((Launch("k", (items, 1, 1), (4, 1, 1), args),), scratch)
    return machine.bind(machine.load(build, blobs.get(build.blob), plan), named)


def rejection(machine: CpuMachine, call: Call) -> Rejected:
    with pytest.raises(Rejected) as caught:
        machine.run(call)
    assert not caught.value.fatal
    return caught.value


@pytest.mark.parametrize("workers", [1, 3])
def test_kernel_equals_numpy_whoever_runs_it(blobs: BlobStore, workers: int) -> None:
    facts = dataclasses.replace(TARGET.devices()[0], sms=workers)
    machine = CpuMachine(facts)
    source = HEAD.replace("float* y)", "float* y, int n, double b, long one, float a)") + """{
        for (long r = first; r < last; ++r)
            for (int i = 0; i < n; ++i) y[r * n + i] = x[r * n + i] * a + float(b) + float(one) + 1000 * worker;
    }"""  # fmt: skip
    scalars = [("n", "i32", 48), ("b", "f64", -0.5), ("one", "i64", 1), ("a", "f32", 2.0)]
    call, (x, y) = prepare(machine, blobs, source, *(Argument("scalar", name, w, v) for name, w, v in scalars))
    machine.poison(y, 5)
    machine.run(call)
    worker = (np.arange(SHAPE[0]) // 4 % workers)[:, None]
    np.testing.assert_allclose(machine.read(y), machine.read(x) * 2 + 0.5 + 1000 * worker, rtol=1e-6, atol=1e-6)
    assert machine.breach([x, y], 11) == ""
    machine.close()


@pytest.mark.parametrize("head", ["", "#undef __AVX512F__\n#undef __F16C__\n"], ids=["native", "portable"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_evo_h_converts_as_numpy_does(machine: CpuMachine, blobs: BlobStore, dtype: str, head: str) -> None:
    """All 65,536 values widened, and as many floats (ties, subnormals, overflow) narrowed, by scalar and by vector."""
    kind = ml_dtypes.bfloat16 if dtype == "bf16" else np.float16
    source = f"""{head}#include "evo.h"
    typedef evo_{dtype} T;
    extern "C" void k(long first, long last, int, const T* h, const float* f, float* w, T* n, float* wv, T* nv) {{
        for (long i = 16 * first; i < 16 * last; ++i) w[i] = evo_float(h[i]), n[i] = evo_cast<T>(f[i]);
        for (long i = 16 * first; i < 16 * last; i += 16)
            evo_store(wv + i, evo_load(h + i)), evo_stream(nv + i, evo_load(f + i));
        evo_fence();
    }}"""
    size = 1 << 16
    names = [("h", dtype), ("f", "fp32"), ("w", "fp32"), ("n", dtype), ("wv", "fp32"), ("nv", dtype)]
    specs = tuple(BufferSpec(n, d, (size,), "input" if n in "hf" else "output") for n, d in names)
    call, (h, f, w, n, wv, nv) = prepare(machine, blobs, source, specs=specs, items=size // 16)
    halves = np.arange(size, dtype=np.uint16).view(kind)
    wide = halves.astype(np.float32)
    rng = np.random.default_rng(1)
    half_a_unit = np.float32(2.0**-8 if dtype == "bf16" else 2.0**-11)
    floats = np.where(np.isfinite(wide), wide, 1) * (1 + half_a_unit)  # ties, and values one bit beside them
    floats = (floats.view(np.uint32) + rng.integers(-1, 2, size)).astype(np.uint32).view(np.float32)
    floats[:5] = [np.inf, -np.inf, np.nan, 65519.996, 65520.0]
    machine.fill(h, halves, 0)
    machine.fill(f, floats, 0)
    machine.run(call)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = floats.astype(kind).astype(np.float32)
    for buffer, want in ((w, wide), (wv, wide), (n, narrow), (nv, narrow)):
        np.testing.assert_array_equal(machine.read(buffer).astype(np.float32), want)


def test_scratch_zeroed_each_call_and_null_and_supplied_functions(machine: CpuMachine, blobs: BlobStore) -> None:
    source = """#include <math.h>
    #include <string.h>
    extern "C" void k(long first, long, int, const float* x, float* y, float* total, const float* none, long n) {
        memmove(y, x, n * sizeof(float));
        for (long i = 0; i < n; ++i) total[0] += expf(x[i]) + (none ? 1 : 0);
        y[0] = total[0];
    }"""
    scratch = Scratch("total", "fp32", (1,), zero="each")
    specs = (X, Y, BufferSpec("total", "fp32", (1,), "scratch"))
    scalars = (Argument("null", "none"), Argument("scalar", "n", "i64", X.shape[0] * X.shape[1]))
    call, (x, y, _) = prepare(machine, blobs, source, *scalars, specs=specs, items=1, scratch=(scratch,))
    for _ in range(2):
        machine.run(call)
        want = machine.read(x)
        got = machine.read(y)
        assert got[0, 0] == pytest.approx(np.exp(want.astype(np.float64)).sum(), rel=1e-4)
        np.testing.assert_array_equal(got.flat[1:], want.flat[1:])


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ("{ for (;;) asm volatile(\"\"); }", Status.TIMEOUT, "no end after 0.3 s"),
        ("{ *(volatile int*)16 = 1; }", Status.CRASH, "SIGSEGV: address 0x10"),
        ("{ ((volatile float*)x)[2] = 1; }", Status.CRASH, "SIGSEGV: byte 8 of input x (6336 bytes, read-only)"),
        ("{ asm volatile(\"ud2\"); }", Status.CRASH, "SIGILL"),
        ("{ volatile int zero = 0; y[0] = 7 / zero; }", Status.CRASH, "SIGFPE"),
        ("{ *(volatile char*)0x20000000 = 1; }", Status.CRASH, "SIGSEGV: address 0x20000000"),
        ("{ ((void (*)())y)(); }", Status.CRASH, "SIGSEGV"),
        ("{ char big[1 << 24]; for (long i = 0; i < 1 << 24; i += 64) ((volatile char*)big)[i] = 1; }", Status.CRASH,
         "SIGSEGV"),
        ("{ y[0] = __builtin_ia32_rdtsc(); }", Status.CRASH, "SIGSEGV: rdtsc"),
        ("{ long n; asm volatile(\"syscall\" : \"=a\"(n) : \"a\"(39) : \"rcx\", \"r11\", \"memory\"); y[0] = n; }",
         Status.FORBIDDEN, "SIGSYS: a system call"),
        ("{ asm volatile(\"int $0x80\" : : \"a\"(20)); }", Status.FORBIDDEN, "SIGSYS"),
    ],
)  # fmt: skip
def test_misbehaviour_has_its_status_and_the_machine_goes_on(
    machine: CpuMachine, blobs: BlobStore, body: str, status: Status, part: str
) -> None:
    call, _ = prepare(machine, blobs, HEAD + body)
    fault = rejection(machine, call)
    assert fault.status is status
    assert part in fault.message
    good, (x, y) = prepare(machine, blobs, HEAD + "{ for (long i = first * 48; i < last * 48; ++i) y[i] = -x[i]; }")
    machine.run(good)
    np.testing.assert_array_equal(machine.read(y), -machine.read(x))


def test_floating_point_control_does_not_outlive_a_call(machine: CpuMachine, blobs: BlobStore) -> None:
    """The first block leaves round-up, flush-to-zero and a backward direction behind; the others must not see it."""
    call, (_, y) = prepare(machine, blobs, HEAD + """{
        volatile float tiny = 1e-39f, one = 1;
        volatile double many = 1e-17;
        for (long r = first; r < last; ++r) y[r] = (tiny * one != 0) + 2 * (one + (float)many == 1);
        __builtin_ia32_ldmxcsr(0x1f80 | 0x8040 | 0x4000);
        asm volatile("std");
    }""")  # fmt: skip
    machine.run(call)
    np.testing.assert_array_equal(machine.read(y).flat[: SHAPE[0]], np.full(SHAPE[0], 3, np.float32))


@pytest.mark.parametrize(("index", "place"), [(33 * 48, "0 byte(s) past its end"), (-1, "1 byte(s) before its start")])
def test_write_outside_a_buffer_is_seen(machine: CpuMachine, blobs: BlobStore, index: int, place: str) -> None:
    call, buffers = prepare(machine, blobs, HEAD + f"{{ y[{index}] = 12345; }}", items=1)
    assert machine.breach(buffers, 11) == ""
    machine.run(call)
    assert machine.breach(buffers, 11).startswith("output y: ")
    assert machine.breach(buffers, 11).endswith(place)


def test_plan_that_does_not_fit_is_refused(machine: CpuMachine, blobs: BlobStore) -> None:
    build = TARGET.build(CompileRequest("cpu", "native", ".cpp", HEAD + "{}", (), BuildOptions(), ("k",)), blobs)
    code = blobs.get(build.blob)
    good = Launch("k", (8, 1, 1), (1, 1, 1), ())
    nine = tuple(Argument("scalar", f"a{i}", "f32", 0) for i in range(9))
    for change, part in (
        ({"kernel": "absent"}, "there are: k"), ({"grid": (8, 2, 1)}, "only the first extent"),
        ({"shared": 64}, "no meaning on the CPU"), ({"args": nine}, "0 pointers and integers and 9 floats"),
        ({"args": (Argument("map", "m"),)}, "no tensor maps"),
    ):  # fmt: skip
        with pytest.raises(Rejected, match=part) as caught:
            machine.load(build, code, LaunchPlan((dataclasses.replace(good, **change),)))
        assert caught.value.status is Status.INVALID_GENOME
    with pytest.raises(Rejected, match="buffers need") as caught:
        machine.allocate([BufferSpec("big", "fp32", (1 << 40,), "output")])
    assert caught.value.status is Status.RESOURCE_LIMIT


def test_closed_programs_make_room(machine: CpuMachine, blobs: BlobStore) -> None:
    build = TARGET.build(CompileRequest("cpu", "native", ".cpp", HEAD + "{}", (), BuildOptions(), ("k",)), blobs)
    code = blobs.get(build.blob)
    for _ in range(CODE_SLOTS + 1):
        program = machine.load(build, code, LaunchPlan(()))
        program.close()
        program.close()  # twice does no harm
    large = HEAD + '{ asm volatile(".skip 1048576, 0x90"); }'
    build = TARGET.build(CompileRequest("cpu", "native", ".cpp", large, (), BuildOptions(), ("k",)), blobs)
    with pytest.raises(Rejected, match="bytes of code; the limit is 1,048,576") as caught:
        machine.load(build, blobs.get(build.blob), LaunchPlan(()))
    assert caught.value.status is Status.RESOURCE_LIMIT


def test_widest_alignment_keeps_its_guards(machine: CpuMachine) -> None:
    buffers = machine.allocate([BufferSpec(name, "u8", (10,), "output", 1 << 16) for name in "abc"])
    machine.guard(buffers, 3)
    assert machine.breach(buffers, 3) == ""
    assert machine.breach(buffers, 4).startswith("output a: ")
    with pytest.raises(Rejected, match="a wants 131,072 bytes alignment"):
        machine.allocate([BufferSpec("a", "u8", (10,), "scratch", 1 << 17)])


def test_placement_is_exact_random_and_apart(machine: CpuMachine) -> None:
    specs = [BufferSpec(f"b{i}", "bf16", (i, 3), "output", align) for i, align in enumerate((16, 64, 256, 4096), 1)]
    seen = set()
    for _ in range(4):
        buffers = machine.allocate(specs)
        seen.add(tuple(buffer.start for buffer in buffers))  # type: ignore[attr-defined]
        for buffer, spec in zip(buffers, specs, strict=True):
            assert buffer.address % (2 * spec.align) == spec.align  # type: ignore[attr-defined]
            assert min(buffer.start - buffer.low, buffer.high - buffer.end) >= 4096  # type: ignore[attr-defined]
    assert len(seen) == 4


def test_contents_depend_on_seed_and_key_alone(machine: CpuMachine) -> None:
    a, b = machine.allocate([BufferSpec(name, "bf16", (300, 1000), "output") for name in "ab"])
    for fill, mean, deviation in (
        (Fill(a=1, b=2), 1, 2), (Fill("uniform", -1, 3), 1, 4 / 12**0.5), (Fill("constant", 0.5), 0.5, 0),
        (Fill("constant", 1, 0, (2, 2), 0.5, 3.0), 8, 4),
    ):  # fmt: skip
        machine.fill(a, fill, 3)
        machine.fill(b, fill, 3)
        assert machine.digest(a, 9) == machine.digest(b, 9) != machine.digest(b, 10)
        values = machine.read(a).astype(np.float64)
        assert values.mean() == pytest.approx(mean, abs=0.05)
        assert values.std() == pytest.approx(deviation, abs=0.05)
    machine.fill(b, Fill(), 4)
    assert machine.digest(a, 9) != machine.digest(b, 9)
    machine.poison(a, 0)
    assert 0.8 < np.isnan(machine.read(a).astype(np.float32)).mean() < 0.95
    first = machine.digest(a, 9)
    machine.poison(a, 2)
    assert machine.digest(a, 9) != first
    machine.zero(a)
    assert machine.is_zero(a)
    machine.fill(b, machine.read(a), 0)
    assert machine.compare(a, b).rms == 0
    last = machine.read(a)
    last.flat[-1] = 1
    machine.fill(a, last, 0)
    assert not machine.is_zero(a)
    assert machine.compare(a, b).max == np.inf


def test_stopwatch_sees_a_known_amount_of_work(machine: CpuMachine, blobs: BlobStore) -> None:
    body = "{ evo_vector v = evo_load(x); for (long i = 0; i < WORK; ++i) v = v * v + v; evo_store(y, v); }"
    short, buffers = prepare(machine, blobs, HEAD + body.replace("WORK", "10000"), items=1)
    long = attach(machine, blobs, HEAD + body.replace("WORK", "40000"), buffers, items=1)
    watches = [machine.stopwatch([call, call], 10.0) for call in (short, long)]
    assert [watch.protocol for watch in watches] == ["warm", "warm"]
    least = np.full(2, np.inf)  # microseconds: a neighbour can only add
    for _ in range(10):
        least = np.minimum(least, np.min([[watch.sample() for watch in watches] for _ in range(15)], axis=0))
        if least[1] / least[0] == pytest.approx(4.0, rel=0.1):
            break
    assert least[1] / least[0] == pytest.approx(4.0, rel=0.1)
    for watch in watches:
        watch.close()


def test_baseline_runs_here_on_views(machine: CpuMachine) -> None:
    x, y = machine.allocate([X, Y])
    machine.fill(x, Fill(), 1)

    def returned(tensors: Any, stream: int) -> dict[str, Any]:
        assert stream == 0
        assert not tensors["x"].flags.writeable
        time.sleep(0.001)
        return {"y": tensors["x"] * 2}

    call = machine.adopt(returned, {"x": x, "y": y})
    machine.run(call)
    np.testing.assert_array_equal(machine.read(y), machine.read(x) * 2)
    watch = machine.stopwatch([call], 100.0)
    assert 1000 < watch.sample() < 20000


def test_copy_rate_is_the_best_seen_and_leaves_buffers_alone(machine: CpuMachine) -> None:
    _, y = machine.allocate([X, Y])
    machine.fill(y, Fill(), 1)
    before = machine.digest(y, 1)
    rate = machine.copy_rate(4 << 20)
    assert 1e8 < rate < 1e13
    assert machine.copy_rate(4 << 20) >= rate
    assert machine.digest(y, 1) == before


def test_idle_runner_sleeps_wakes_and_ends_with_its_machine(blobs: BlobStore) -> None:
    machine = TARGET.open("cpu:0")
    call, _ = prepare(machine, blobs, HEAD + "{}")
    machine.run(call)
    process = machine._runner._process
    assert process
    time.sleep(0.4)  # past the spinning
    before = cpu_ticks(process.pid)
    time.sleep(0.2)
    assert cpu_ticks(process.pid) - before <= 1
    machine.run(call)
    machine.close()
    assert not Path(f"/proc/{process.pid}").exists()


def cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[11])

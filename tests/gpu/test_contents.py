"""Fill, poison, guard bands, digests and comparison, against NumPy."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest

from evo.dtypes import FLOATS, numpy_dtype
from evo.fitness.compare import deviation
from evo.fitness.cuda.arena import DeviceBuffer
from evo.fitness.cuda.machine import CudaMachine
from evo.fitness.cuda.trusted import derive
from evo.operator import Fill
from evo.target import Buffer, BufferSpec, Rejected

pytestmark = pytest.mark.gpu

Array = np.ndarray[Any, Any]
SHAPES = [("bf16", (37, 264)), ("fp16", (5, 1000)), ("fp32", (3, 100003)), ("fp64", (7, 33))]


def allocate(machine: CudaMachine, *shapes: tuple[str, tuple[int, ...]]) -> list[Buffer]:
    return machine.allocate([BufferSpec(f"b{i}", dtype, shape, "output") for i, (dtype, shape) in enumerate(shapes)])


def hashes(seed: int, purpose: int, count: int) -> Array:
    """splitmix64 of the counters 0, 1, ... under the seed of one purpose, as the device draws them."""
    with np.errstate(over="ignore"):
        x = np.uint64(derive(seed, purpose)) + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed


def unit(bits: Array, wide: bool) -> Array:
    """U(0, 1) of 32 bits: all of them for fp64 and integers, the upper 23 for the smaller floats."""
    shift, size = (0, 2.0**32) if wide else (9, 2.0**23)
    uniform: Array = ((bits >> np.uint64(shift)).astype(np.float64) + 0.5) / size
    return uniform


def expected_fill(data: Fill, seed: int, dtype: str, shape: tuple[int, ...]) -> Array:
    """The device's contents in float64, before they are rounded to `dtype`."""
    wide = dtype not in {"bf16", "fp16", "fp32"}
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    draw = hashes(seed, 0, rows * columns)
    high, low = unit(draw >> np.uint64(32), wide), unit(draw & np.uint64(0xFFFFFFFF), wide)
    value = {
        "normal": data.a + data.b * np.sqrt(-2 * np.log(high)) * np.cos(2 * np.pi * low),
        "uniform": data.a + (data.b - data.a) * high,
        "constant": np.full(rows * columns, data.a),
    }[data.law]
    exponent = data.row_log2[0] + (data.row_log2[1] - data.row_log2[0]) * unit(
        hashes(seed, 1, rows) >> np.uint64(32), wide
    )
    value = (value.reshape(rows, columns) * np.exp2(exponent)[:, None]).reshape(-1)
    outlier = unit(hashes(seed, 2, rows * columns) >> np.uint64(32), wide) < data.outlier_rate
    scaled: Array = np.where(outlier, value * data.outlier_scale, value).reshape(shape)
    return scaled


@pytest.mark.parametrize(("dtype", "shape"), SHAPES)
@pytest.mark.parametrize(
    "data",
    [
        Fill("normal", 0.5, 2.0),
        Fill("uniform", -3.0, 5.0, row_log2=(-4.0, 3.0)),
        Fill("normal", outlier_rate=0.01, outlier_scale=64.0),
        Fill("constant", 1.25),
    ],
    ids=["normal", "row exponents", "outliers", "constant"],
)
def test_fill_is_the_counter_based_law(machine: CudaMachine, dtype: str, shape: tuple[int, ...], data: Fill) -> None:
    (buffer,) = allocate(machine, (dtype, shape))
    machine.fill(buffer, data, 77)
    got, want = machine.read(buffer).astype(np.float64), expected_fill(data, 77, dtype, shape)
    rounding = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-23, "fp64": 2.0**-52}[dtype]
    arithmetic = 2.0**-40 if dtype == "fp64" else 2.0**-19
    magnitude = (abs(data.a) + abs(data.b)) * 2.0 ** data.row_log2[1] * data.outlier_scale
    excess = np.abs(got - want) / (1.01 * rounding * np.abs(want) + arithmetic * magnitude)
    worst = np.unravel_index(np.argmax(excess), shape)
    assert excess[worst] < 1, f"at {worst}: {got[worst]} is not {want[worst]}"


def test_fill_depends_on_the_seed_only(machine: CudaMachine) -> None:
    one, two = allocate(machine, ("bf16", (64, 100)), ("bf16", (64, 100)))
    machine.fill(one, Fill(), 1)
    machine.fill(two, Fill(), 1)
    assert np.array_equal(machine.read(one).view(np.uint16), machine.read(two).view(np.uint16))
    machine.fill(two, Fill(), 2)
    assert np.mean(machine.read(one).view(np.uint16) == machine.read(two).view(np.uint16)) < 0.1


def test_integers_are_rounded_and_saturate(machine: CudaMachine) -> None:
    small, signed, wide = allocate(machine, ("u8", (4000,)), ("i8", (4000,)), ("i32", (3, 333)))
    machine.fill(small, Fill("uniform", -50.0, 300.0), 5)
    machine.fill(signed, Fill("uniform", -300.0, 300.0), 6)
    machine.fill(wide, Fill("uniform", -9.0, 9.0), 7)
    got = machine.read(small)
    want = np.clip(np.rint(expected_fill(Fill("uniform", -50.0, 300.0), 5, "u8", (1, 4000))[0]), 0, 255)
    assert np.array_equal(got, want)
    assert (machine.read(signed).min(), machine.read(signed).max()) == (-128, 127)
    want = np.rint(expected_fill(Fill("uniform", -9.0, 9.0), 7, "i32", (3, 333)))
    assert np.array_equal(machine.read(wide), want)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64", "u8", "i8", "i32", "u32", "i64", "u64"])
def test_arrays_go_there_and_back(machine: CudaMachine, dtype: str) -> None:
    (buffer,) = allocate(machine, (dtype, (5, 3, 7)))
    data = np.random.default_rng(3).integers(0, 100, (5, 3, 7)).astype(numpy_dtype(dtype))
    machine.fill(buffer, data, 0)
    back = machine.read(buffer)
    assert back.dtype == data.dtype
    assert np.array_equal(back, data)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64"])
def test_one_poison_is_mostly_nan_and_else_huge(machine: CudaMachine, dtype: str) -> None:
    (buffer,) = allocate(machine, (dtype, (63, 401)))
    machine.zero(buffer)
    machine.poison(buffer, 8)
    first = machine.read(buffer)
    nan = np.isnan(first)
    assert 0.8 < nan.mean() < 0.95
    huge = np.abs(first[~nan].astype(np.float64))
    largest = float(np.finfo(np.float16).max) if dtype == "fp16" else float(2.0**127 if dtype != "fp64" else 2.0**1023)
    assert np.all(np.isfinite(huge))
    assert huge.min() >= largest / 2
    bits = np.dtype(f"u{first.itemsize}")
    assert np.unique(first[nan].view(bits)).size > 100, "payloads do not vary"
    machine.poison(buffer, 12)
    assert np.mean(machine.read(buffer).view(bits) == first.view(bits)) < 0.05, "the key does not matter"


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4097])
def test_poison_covers_the_last_byte(machine: CudaMachine, size: int) -> None:
    (buffer,) = allocate(machine, ("u8", (size,)))
    seen = set()
    for key in range(4):
        machine.poison(buffer, key)
        seen.add(int(machine.read(buffer)[-1]))
    assert len(seen) > 1


def test_zero_and_is_zero(machine: CudaMachine) -> None:
    for size in (1, 15, 16, 100003):
        (buffer,) = allocate(machine, ("u8", (size,)))
        machine.zero(buffer)
        assert machine.is_zero(buffer), size
        for place in {0, size // 2, size - 1}:
            data = np.zeros(size, np.uint8)
            data[place] = 128
            machine.fill(buffer, data, 0)
            assert not machine.is_zero(buffer), (size, place)


def stray(buffer: Buffer, offset: int) -> DeviceBuffer:
    """One byte at an offset from a buffer's start."""
    assert isinstance(buffer, DeviceBuffer)
    return dataclasses.replace(
        buffer, spec=BufferSpec("stray", "u8", (1,), "output"), nbytes=1, address=buffer.address + offset
    )


def test_guard_bands_name_the_buffer_and_the_distance(machine: CudaMachine) -> None:
    buffers = allocate(machine, ("bf16", (37, 263)), ("u8", (13,)))
    first, second = buffers
    machine.guard(buffers, 4)
    for buffer in buffers:
        machine.poison(buffer, 8)
    assert machine.breach(buffers, 4) == ""
    assert machine.breach(buffers, 5) != "", "the key does not matter"
    places = [(first, first.nbytes, "'b0'", "byte 1 past its end"), (first, -1, "'b0'", "byte 1 before its start")]
    places += [(second, 13, "'b1'", "byte 1 past its end"), (second, 13 + 65535, "'b1'", "byte 65536 past its end")]
    places += [(second, -65536, "'b1'", "byte 65536 before its start")]
    for buffer, offset, name, where in places:
        machine.guard(buffers, 4)
        before = machine.read(stray(buffer, offset))
        machine.fill(stray(buffer, offset), before ^ np.uint8(1), 0)
        message = machine.breach(buffers, 4)
        assert name in message, message
        assert where in message, message


def test_digest_tells_contents_apart(machine: CudaMachine) -> None:
    one, two = allocate(machine, ("bf16", (37, 264)), ("bf16", (37, 264)))
    data = np.random.default_rng(1).standard_normal((37, 264)).astype(numpy_dtype("bf16"))
    machine.fill(one, data, 0)
    machine.fill(two, data, 0)
    base = machine.digest(one, 123)
    assert base == machine.digest(two, 123)
    assert base != machine.digest(one, 124)
    variants = {base}
    flat = data.view(np.uint16).reshape(-1)
    changes = [[(i, 1 << (i % 16))] for i in range(0, flat.size, 97)]
    changes += [[(3, 0x8000), (7, 0x8000)], [(11, 0x8000), (8 * 11 + 3, 0x8000)]]  # two signs of high lanes
    for change in changes:
        changed = flat.copy()
        for place, bit in change:
            changed[place] ^= bit
        machine.fill(two, changed.reshape(data.shape).view(data.dtype), 0)
        variants.add(machine.digest(two, 123))
    swapped = flat.copy()
    swapped[[0, 8]] = swapped[[8, 0]]
    machine.fill(two, swapped.reshape(data.shape).view(data.dtype), 0)
    variants.add(machine.digest(two, 123))
    assert len(variants) == len(changes) + 2


def test_digest_sees_the_tail(machine: CudaMachine) -> None:
    (buffer,) = allocate(machine, ("u8", (33,)))
    digests = set()
    for value in range(3):
        data = np.zeros(33, np.uint8)
        data[-1] = value
        machine.fill(buffer, data, 0)
        digests.add(machine.digest(buffer, 1))
    assert len(digests) == 3


PAIRS = [
    ("bf16", "bf16", (37, 264)),
    ("fp32", "fp32", (3, 100003)),
    ("fp16", "fp32", (5, 1000)),
    ("fp64", "fp64", (1, 70001)),
    ("fp32", "fp64", (2000, 1)),
    ("bf16", "fp32", (4, 2, 2056)),
    ("fp32", "fp32", (9001,)),
    ("bf16", "bf16", (1, 1 << 17)),
]


def compare_arrays(machine: CudaMachine, out: Array, ref: Array, names: tuple[str, str]) -> None:
    """Device and NumPy agree on every field."""
    actual, expected = allocate(machine, (names[0], out.shape), (names[1], ref.shape))
    machine.fill(actual, out, 0)
    machine.fill(expected, ref, 0)
    got, want = machine.compare(actual, expected), deviation(out, ref)
    for field in ("rms", "max", "row"):
        assert getattr(got, field) == pytest.approx(getattr(want, field), rel=1e-5), (field, got, want)
    assert got.index == want.index, (got, want)
    np.testing.assert_equal((got.got, got.expected), (want.got, want.expected))


@pytest.mark.parametrize(("actual", "expected", "shape"), PAIRS)
def test_compare_agrees_with_numpy(machine: CudaMachine, actual: str, expected: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(11)
    ref = rng.standard_normal(shape) * np.exp2(rng.uniform(-6, 6, (*shape[:-1], 1)))
    noise = ref + 0.01 * rng.standard_normal(shape) * np.abs(ref).mean(axis=-1, keepdims=True)
    out, truth = noise.astype(numpy_dtype(actual)), ref.astype(numpy_dtype(expected))
    compare_arrays(machine, out, truth, (actual, expected))
    compare_arrays(machine, truth.astype(out.dtype), truth, (actual, expected))
    out.reshape(-1)[out.size * 2 // 3] += 1000
    compare_arrays(machine, out, truth, (actual, expected))


@pytest.mark.parametrize("columns", [263, 264, 20000])
def test_compare_with_zero_rows_and_non_finite_elements(machine: CudaMachine, columns: int) -> None:
    rng = np.random.default_rng(5)
    ref = rng.standard_normal((6, columns)).astype(np.float32)
    ref[2] = 0
    ref[3, 7] = np.inf
    ref[4, 9] = np.nan
    out = ref + np.float32(1e-3) * (ref != 0)
    names = ("fp32", "fp32")
    compare_arrays(machine, out, ref, names)  # exact where the truth is zero, inf or NaN
    for row, column, value in (
        (2, 5, 1e-30),
        (0, 3, np.nan),
        (5, 0, np.inf),
        (3, 7, -np.inf),
        (3, 7, 1.0),
        (4, 9, 0.0),
    ):
        wrong = out.copy()
        wrong[row, column] = value
        compare_arrays(machine, wrong, ref, names)
        assert deviation(wrong, ref).max == np.inf
    compare_arrays(machine, np.zeros_like(ref), np.zeros_like(ref), names)


def test_compare_refuses_other_shapes(machine: CudaMachine) -> None:
    one, two = allocate(machine, ("fp32", (4, 6)), ("fp32", (6, 4)))
    with pytest.raises(Exception, match="comparing 'b0'"):
        machine.compare(one, two)


def test_buffers_of_an_earlier_layout_are_void(machine: CudaMachine) -> None:
    (old,) = allocate(machine, ("fp32", (4,)))
    allocate(machine, ("fp32", (4,)))
    with pytest.raises(Exception, match="void"):
        machine.read(old)


def test_starts_are_aligned_and_no_more(machine: CudaMachine) -> None:
    for align in (16, 256, 4096):
        specs = [BufferSpec(f"b{i}", "fp32", (i + 1, 5), "output", align) for i in range(20)]
        for buffer in machine.allocate(specs):
            assert isinstance(buffer, DeviceBuffer)
            assert buffer.address % (2 * align) == align


def test_what_does_not_fit_is_a_resource_limit(machine: CudaMachine) -> None:
    with pytest.raises(Rejected) as caught:
        machine.allocate([BufferSpec("big", "fp64", (1 << 20, 1 << 20), "output")])
    assert caught.value.status == "resource_limit"
    (buffer,) = allocate(machine, ("fp32", (4,)))  # and the machine lives on
    machine.zero(buffer)
    assert machine.is_zero(buffer)


@pytest.mark.alone
@pytest.mark.parametrize("shape", [(1 << 20, 256), (1, 1 << 28), (1 << 14, 1 << 14)])
def test_large_comparisons_run_near_memory_speed(machine: CudaMachine, shape: tuple[int, ...]) -> None:
    one, two = allocate(machine, ("bf16", shape), ("bf16", shape))
    for buffer in (one, two):
        machine.fill(buffer, Fill(), 1)
    assert machine.compare(one, two).max == 0
    begin = time.perf_counter()
    machine.compare(one, two)
    rate = (one.nbytes + 2 * two.nbytes) / (time.perf_counter() - begin)
    assert rate > 0.15 * machine.facts.peak_bytes_per_s, f"{rate / 1e12:.2f} TB/s for {shape}"


def test_every_float_is_covered() -> None:
    assert {dtype for dtype, _ in SHAPES} == FLOATS

"""The parts of the CUDA machine that need no device."""

from __future__ import annotations

import ctypes
import random
from itertools import pairwise

import numpy as np
import pytest
from cuda.bindings import driver
from hypothesis import given
from hypothesis import strategies as st

from evo.errors import EvoError
from evo.fitness.cuda.arena import GUARD, DeviceBuffer, close_gaps, place, room_for, size_of
from evo.fitness.cuda.comparison import tile
from evo.fitness.cuda.copying import round_size
from evo.fitness.cuda.dlpack import DeviceTensor, describe
from evo.fitness.cuda.driver import failure
from evo.fitness.cuda.launch import bind, configuration
from evo.fitness.cuda.protocols.rotation import Lengths, lengths_for
from evo.fitness.cuda.tensormap import objection
from evo.fitness.cuda.trusted import THREADS, Contents, derive, mix
from evo.plan import Argument, Launch, LaunchPlan, TensorMap
from evo.records import Status
from evo.target import BufferSpec

SPECS = st.lists(
    st.builds(
        BufferSpec,
        name=st.just("b"),
        dtype=st.sampled_from(["u8", "bf16", "fp32", "fp64"]),
        shape=st.lists(st.integers(0, 50), max_size=3).map(tuple),
        role=st.just("output"),
        align=st.sampled_from([1, 2, 16, 256, 4096]),
    ),
    min_size=1,
    max_size=12,
)


@given(specs=SPECS, seed=st.integers(0, 2**32), spare=st.integers(0, 1 << 25))
def test_buffers_lie_apart_within_the_arena_and_exactly_aligned(specs: list[BufferSpec], seed: int, spare: int) -> None:
    base, capacity = 0x7F0000000000, room_for(specs) + spare
    addresses = place(specs, base, capacity, random.Random(seed))
    ends = base
    for address, spec in sorted(zip(addresses, specs, strict=True), key=lambda pair: pair[0]):
        assert address % (2 * spec.align) == spec.align
        assert address - GUARD >= ends
        ends = address + size_of(spec) + GUARD
    assert ends <= base + capacity


@given(specs=SPECS, seed=st.integers(0, 2**32))
def test_no_byte_between_two_buffers_is_unguarded(specs: list[BufferSpec], seed: int) -> None:
    addresses = place(specs, 0x7F0000000000, room_for(specs), random.Random(seed))
    buffers = [DeviceBuffer(spec, size_of(spec), address) for spec, address in zip(specs, addresses, strict=True)]
    close_gaps(buffers)
    buffers.sort(key=lambda buffer: buffer.address)
    for buffer, following in pairwise(buffers):
        assert buffer.address + buffer.nbytes + buffer.after == following.address - GUARD
        assert buffer.after >= GUARD
    assert buffers[-1].after == GUARD


def test_placement_follows_the_seed() -> None:
    specs = [BufferSpec(f"b{i}", "fp32", (100,), "output") for i in range(5)]
    room = room_for(specs)
    layouts = {tuple(place(specs, 0, room, random.Random(seed))) for seed in (1, 1, 2, 3)}
    assert len(layouts) == 3


def test_alignments_are_powers_of_two() -> None:
    spec = BufferSpec("x", "fp32", (4,), "output", align=48)
    with pytest.raises(EvoError, match="alignment 48 of 'x'"):
        place([spec], 0, room_for([spec]), random.Random(0))


@given(rows=st.integers(1, 1 << 21), columns=st.integers(1, 1 << 31))
def test_tiles_cover_each_row_once(rows: int, columns: int) -> None:
    tiling = tile(rows, columns)
    assert (tiling.segments - 1) * tiling.length < columns <= tiling.segments * tiling.length
    assert tiling.segments == 1 or tiling.length % 8 == 0
    assert tiling.lanes in (32, THREADS)
    assert tiling.segments == 1 or tiling.lanes == THREADS
    assert (tiling.blocks - 1) * (THREADS // tiling.lanes) < tiling.tiles <= tiling.blocks * (THREADS // tiling.lanes)
    assert tiling.blocks < 2**31


def test_lengths_follow_the_protocol() -> None:
    assert [lengths_for(us) for us in (2, 29.9, 30, 500, 501, 1e6)] == [
        Lengths(64, 16), Lengths(64, 16), Lengths(12, 4), Lengths(12, 4), Lengths(1, 0), Lengths(1, 0),
    ]  # fmt: skip


@given(nbytes=st.integers(0, 1 << 40))
def test_copy_sizes_are_near_and_few(nbytes: int) -> None:
    size = round_size(nbytes)
    assert size % 32 == 0, "both halves are whole 16-byte units"
    assert round_size(size) == size
    clamped = min(max(nbytes, 1 << 20), 1 << 30)
    assert abs(size - clamped) <= clamped / 8


def test_seeds_of_different_purposes_are_unrelated() -> None:
    derived = {derive(seed, purpose) for seed in range(50) for purpose in range(8)}
    assert len(derived) == 400
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF  # the first output of splitmix64 from seed 0


def test_contents_have_the_layout_of_the_device_struct() -> None:
    assert ctypes.sizeof(Contents) == 120
    assert Contents.law.offset == 88


@pytest.mark.parametrize(
    ("code", "status", "fatal"),
    [
        ("ILLEGAL_ADDRESS", Status.CRASH, True),
        ("MISALIGNED_ADDRESS", Status.CRASH, True),
        ("ILLEGAL_INSTRUCTION", Status.CRASH, True),
        ("LAUNCH_FAILED", Status.CRASH, True),
        ("ASSERT", Status.CRASH, True),
        ("HARDWARE_STACK_ERROR", Status.CRASH, True),
        ("LAUNCH_TIMEOUT", Status.TIMEOUT, True),
        ("OUT_OF_MEMORY", Status.RESOURCE_LIMIT, False),
        ("LAUNCH_OUT_OF_RESOURCES", Status.RESOURCE_LIMIT, False),
        ("INVALID_VALUE", Status.LAUNCH_ERROR, False),
        ("INVALID_IMAGE", Status.LAUNCH_ERROR, False),
        ("ECC_UNCORRECTABLE", Status.EVALUATOR_ERROR, True),
    ],
)
def test_driver_results_stand_for_statuses(
    code: str, status: Status, fatal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "cuGetErrorString", lambda result: (0, b"text"))
    error = failure(getattr(driver.CUresult, f"CUDA_ERROR_{code}"), "launching k")
    assert (error.status, error.fatal) == (status, fatal)
    assert error.message == f"launching k: {code} (text)"


def make_map(**changes: object) -> TensorMap:
    fields: dict[str, object] = {
        "name": "m", "tensor": "x", "dtype": "bf16", "shape": (128, 256), "strides": (256, 1), "offset": 0,
        "box": (64, 64), "element_strides": (1, 1), "swizzle": "128B",
    }  # fmt: skip
    return TensorMap(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"box": (64,)}, "box has 1 entries, the shape 2"),
        ({"strides": (256, 2)}, "innermost stride is 2"),
        ({"strides": (252, 1), "shape": (128, 252)}, "multiples of 16 bytes"),
        ({"box": (257, 64)}, "each must be 1 to 256"),
        ({"box": (64, 60)}, "innermost box is 120 bytes"),
        ({"box": (64, 128)}, "more than its 128B swizzle"),
        ({"element_strides": (9, 1)}, "each must be 1 to 8"),
        ({"offset": 8}, "reaches element 32775 of a buffer of 32768"),
        ({"shape": (0, 256)}, "each must be 1 to 2^32"),
    ],
)
def test_tensor_maps_that_the_hardware_cannot_have(changes: dict[str, object], words: str) -> None:
    found = objection(make_map(**changes), 2 * 128 * 256, 0x7F0000000100 + 2 * int(changes.get("offset", 0)))  # type: ignore[call-overload]
    assert (found == "") == (words == "")
    assert words in found


def test_tensor_maps_start_at_sixteen_bytes() -> None:
    assert "not 16-byte aligned" in objection(make_map(shape=(64, 64), offset=4), 2 * 128 * 256, 0x7F0000000108)


class NullStream:
    handle = 0


def test_a_configuration_counts_blocks_and_carries_its_attributes() -> None:
    launch = Launch("k", (16, 2, 1), (128, 1, 1), (), cluster=(8, 1, 1), shared=1024, cooperative=True, pdl=True)
    names = driver.CUlaunchAttributeID
    config = configuration(launch, NullStream(), first=False)  # type: ignore[arg-type]
    assert (config.gridDimX, config.gridDimY, config.blockDimX, config.sharedMemBytes) == (16, 2, 128, 1024)
    found = {attribute.id: attribute.value for attribute in config.attrs}
    cluster = found[names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION].clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (8, 1, 1)
    assert found[names.CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative == 1
    pdl = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert found[pdl].programmaticStreamSerializationAllowed == 1
    first = configuration(launch, NullStream())  # type: ignore[arg-type]
    assert pdl not in {attribute.id for attribute in first.attrs}, "a call's first launch overlaps nothing"


def test_binding_without_a_buffer_names_it() -> None:
    plan = LaunchPlan((Launch("k", (1, 1, 1), (1, 1, 1), (Argument("tensor", "gone"),)),))
    with pytest.raises(EvoError, match="no buffer 'gone'"):
        bind(plan, {"k": 0}, {}, NullStream())  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64", "u8", "i8", "i32", "u32", "i64", "u64"])
def test_dlpack_describes_what_it_exports(dtype: str) -> None:
    spec = BufferSpec("x", dtype, (37, 1, 264), "input")
    tensor = DeviceTensor(DeviceBuffer(spec, size_of(spec), 0x7F0000000100), 3)
    for _ in range(2):
        found = describe(tensor)
        assert (found.address, found.dtype, found.shape) == (0x7F0000000100, dtype, (37, 1, 264))
        assert (found.contiguous, found.device) == (True, (2, 3))
    with pytest.raises(BufferError, match="never copied"):
        tensor.__dlpack__(copy=True)


def test_dlpack_sees_strides() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    whole, turned, part = describe(array), describe(array.T), describe(array[1:, 2:])
    assert (whole.contiguous, turned.contiguous, part.contiguous) == (True, False, False)
    assert (turned.shape, part.shape) == ((6, 4), (3, 4))
    assert part.address == array.ctypes.data + 4 * 8
    with pytest.raises(EvoError, match="is no tensor"):
        describe(3)

"""CUtensorMap descriptors, which the TMA unit reads, from a launch plan's tensor maps."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver

from evo.dtypes import ITEMSIZE
from evo.fitness.cuda.arena import DeviceBuffer
from evo.fitness.cuda.driver import SUCCESS, failure
from evo.plan import TensorMap
from evo.records import Status
from evo.target import Rejected

DESCRIPTOR_BYTES = 128
_ALIGN = 64

_DTYPES = {
    "bf16": "BFLOAT16", "fp16": "FLOAT16", "fp32": "FLOAT32", "fp64": "FLOAT64", "u8": "UINT8", "i8": "UINT8",
    "i32": "INT32", "u32": "UINT32", "i64": "INT64", "u64": "UINT64",
}  # fmt: skip
_SWIZZLE_BYTES = {"32B": 32, "64B": 64, "128B": 128}


def encode(entry: TensorMap, buffer: DeviceBuffer) -> Any:
    """128 bytes (a ctypes array) that describe `entry` over `buffer`.

    Plans list dimensions outermost first and count strides in elements; the driver wants innermost first, strides in
    bytes and none for the innermost. Raises `Rejected(INVALID_GENOME)` for what the hardware cannot do.
    """
    size = ITEMSIZE[entry.dtype]
    address = buffer.given() + entry.offset * size
    fault = objection(entry, buffer.nbytes, address)
    if fault:
        raise Rejected(Status.INVALID_GENOME, f"tensor map {entry.name!r}: {fault}")
    room = (ctypes.c_char * (DESCRIPTOR_BYTES + _ALIGN))()
    descriptor = (ctypes.c_char * DESCRIPTOR_BYTES).from_buffer(room, -ctypes.addressof(room) % _ALIGN)
    oob = "NAN_REQUEST_ZERO_FMA" if entry.oob == "nan" else "NONE"
    l2 = "NONE" if entry.l2 == "none" else f"L2_{entry.l2}"
    result = driver.CUresult(
        _encoder()(
            descriptor,
            _value("CUtensorMapDataType", "TENSOR_MAP_DATA_TYPE", _DTYPES[entry.dtype]),
            len(entry.shape),
            address,
            _list(ctypes.c_uint64, entry.shape),
            _list(ctypes.c_uint64, [stride * size for stride in entry.strides[:-1]]),
            _list(ctypes.c_uint32, entry.box),
            _list(ctypes.c_uint32, entry.element_strides),
            _value("CUtensorMapInterleave", "TENSOR_MAP_INTERLEAVE", entry.interleave.upper()),
            _value("CUtensorMapSwizzle", "TENSOR_MAP_SWIZZLE", entry.swizzle.upper()),
            _value("CUtensorMapL2promotion", "TENSOR_MAP_L2_PROMOTION", l2),
            _value("CUtensorMapFloatOOBfill", "TENSOR_MAP_FLOAT_OOB_FILL", oob),
        )
    )
    if result != SUCCESS:
        error = failure(result, f"tensor map {entry.name!r}")
        raise Rejected(Status.INVALID_GENOME, error.message, detail=repr(entry), fatal=error.fatal)
    return descriptor


def objection(entry: TensorMap, nbytes: int, address: int) -> str:
    """ "" or the rule of cuTensorMapEncodeTiled that `entry` breaks; the driver itself says only INVALID_VALUE."""
    size = ITEMSIZE[entry.dtype]
    rank = len(entry.shape)
    lists = {"strides": entry.strides, "box": entry.box, "element_strides": entry.element_strides}
    for name, values in lists.items():
        if len(values) != rank:
            return f"{name} has {len(values)} entries, the shape {rank}"
    if not 1 <= rank <= 5:
        return f"rank {rank}; the hardware has 1 to 5"
    if entry.strides[-1] != 1:
        return f"the innermost stride is {entry.strides[-1]}; it must be 1"
    if not all(1 <= extent <= 2**32 for extent in entry.shape):
        return f"shape {entry.shape}; each must be 1 to 2^32"
    if not all(1 <= extent <= 256 for extent in entry.box):
        return f"box {entry.box}; each must be 1 to 256"
    if not all(1 <= step <= 8 for step in entry.element_strides):
        return f"element strides {entry.element_strides}; each must be 1 to 8"
    if any(stride * size % 16 or not 0 <= stride * size < 2**40 for stride in entry.strides[:-1]):
        return f"strides {entry.strides} of {size} bytes; all but the innermost must be multiples of 16 bytes"
    if address % (32 if entry.interleave == "32B" else 16):
        return f"it starts at an address that is not 16-byte aligned (offset {entry.offset} elements)"
    inner = entry.box[-1] * size
    if entry.interleave == "none" and inner % 16:
        return f"the innermost box is {inner} bytes; it must be a multiple of 16"
    if entry.interleave == "none" and inner > _SWIZZLE_BYTES.get(entry.swizzle, inner):
        return f"the innermost box is {inner} bytes, more than its {entry.swizzle} swizzle"
    last = entry.offset + sum((extent - 1) * stride for extent, stride in zip(entry.shape, entry.strides, strict=True))
    if entry.offset < 0 or (last + 1) * size > nbytes:
        return f"it reaches element {last} of a buffer of {nbytes // size}"
    return ""


@functools.cache
def _encoder() -> Any:
    """The driver's function itself: it writes to memory aligned to 64 bytes, which the binding's own object is not."""
    function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    pointer, word = ctypes.c_void_p, ctypes.c_uint32
    function.argtypes = (pointer, word, word, pointer, pointer, pointer, pointer, pointer, word, word, word, word)
    function.restype = ctypes.c_int
    return function


def _value(enumeration: str, prefix: str, name: str) -> int:
    return int(getattr(getattr(driver, enumeration), f"CU_{prefix}_{name}"))


def _list(kind: Any, values: Sequence[int]) -> Any:
    """A C array, innermost first; of at least one element, since an empty one has no address."""
    return (kind * max(1, len(values)))(*reversed(values))

"""DLPack both ways, by the C layout of version 0.8: the CUDA array interface has no name for bf16."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from evo.errors import RunError
from evo.fitness.cuda.arena import DeviceBuffer

_CUDA = 2  # kDLCUDA
_CAPSULE = b"dltensor"
_CODES = {
    "bf16": (4, 16), "fp16": (2, 16), "fp32": (2, 32), "fp64": (2, 64), "u8": (1, 8), "i8": (0, 8), "i32": (0, 32),
    "u32": (1, 32), "i64": (0, 64), "u64": (1, 64),
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)

# A consumer reads the description again when it drops its tensor, possibly at interpreter exit, when no Python callback
# may run. So there is no deleter, and descriptions (about 300 bytes) live as long as the process.
_described: list[tuple[_Managed, Any]] = []


class DeviceTensor:
    """A buffer as other libraries take it: `__dlpack__`, `shape`, `dtype` (evo's name), `data_ptr()`.

    It does not own the memory. The contents are in order on the stream that a baseline is given.
    """

    def __init__(self, buffer: DeviceBuffer, device: int) -> None:
        self.shape = buffer.spec.shape
        self.dtype = buffer.spec.dtype
        self._address = buffer.live()
        self._device = device
        self._description: _Managed | None = None

    def data_ptr(self) -> int:
        return self._address

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CUDA, self._device)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """An unversioned capsule, which every consumer takes. Raises `BufferError` when a copy is asked for."""
        if copy:
            raise BufferError("a device buffer is shared, never copied")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"a buffer of CUDA device {self._device}, asked for on {tuple(dl_device)}")
        if self._description is None:
            self._description = self._describe()
        return _new_capsule(ctypes.addressof(self._description), _CAPSULE, None)

    def _describe(self) -> _Managed:
        rank = len(self.shape)
        extents = (ctypes.c_int64 * max(1, rank))(*self.shape)
        code, bits = _CODES[self.dtype]
        tensor = _Tensor(self._address, _CUDA, self._device, rank, code, bits, 1, extents, None, 0)
        description = _Managed(tensor, None, None)
        _described.append((description, extents))
        return description


@dataclass(frozen=True, slots=True)
class Described:
    """What a foreign tensor says of itself."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool
    device: tuple[int, int]


def describe(tensor: Any) -> Described:
    """Reads a tensor's DLPack description. Raises `RunError` for what cannot be described."""
    if not hasattr(tensor, "__dlpack__"):
        raise RunError(f"a {type(tensor).__name__} is no tensor", fix="return objects with `__dlpack__`")
    device = tuple(int(part) for part in tensor.__dlpack_device__())
    capsule = tensor.__dlpack__(stream=-1) if device[0] == _CUDA else tensor.__dlpack__()  # -1: no synchronisation
    managed = _Managed.from_address(_pointer_of(capsule, _CAPSULE))
    view = managed.tensor
    shape = tuple(view.shape[i] for i in range(view.ndim))
    strides = tuple(view.strides[i] for i in range(view.ndim)) if view.strides else _contiguous(shape)
    return Described(
        address=(view.data or 0) + view.byte_offset,
        dtype=_NAMES.get((view.code, view.bits), f"DLPack type {view.code} of {view.bits} bits"),
        shape=shape,
        contiguous=all(
            size == 1 or ours == theirs for size, ours, theirs in zip(shape, strides, _contiguous(shape), strict=True)
        ),
        device=(device[0], device[1]),
    )


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))

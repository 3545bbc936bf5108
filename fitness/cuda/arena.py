"""One allocation for all of a session's buffers, so that pools of inputs and outputs cost no allocation each time."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cuda.bindings import driver

from evo.dtypes import ITEMSIZE
from evo.errors import RunError
from evo.fitness.cuda.driver import call
from evo.fitness.cuda.mapping import Mapping
from evo.records import Status
from evo.target import BufferSpec, Rejected

GUARD = 64 << 10  # bytes of guard band on each side of a buffer
_SCATTER = 64 << 10  # random bytes between the bands of neighbours
_SLACK = 16 << 20  # at most so much of a larger arena's spare room goes before the first buffer


@dataclass(eq=False, slots=True)
class DeviceBuffer:
    """`nbytes` bytes at `address`, with `GUARD` bytes of band before and `after` bytes behind.

    `readonly`: the same bytes at an address where a write is a fault.
    """

    spec: BufferSpec
    nbytes: int
    address: int
    void: bool = False  # a later layout took the memory over
    after: int = GUARD
    readonly: int = 0

    @property
    def rows(self) -> tuple[int, int]:
        """(number of rows, elements a row), rows running along the last axis."""
        columns = self.spec.shape[-1] if self.spec.shape else 1
        return math.prod(self.spec.shape[:-1]), columns

    def live(self) -> int:
        """The address. Raises `RunError` for a buffer of an earlier layout."""
        if self.void:
            raise RunError(
                f"buffer {self.spec.name!r} is void", fix="use the buffers of the last `allocate` and no earlier ones"
            )
        return self.address

    def given(self) -> int:
        """The address that programs get. Raises `RunError` as `live`."""
        address = self.live()
        return self.readonly if self.spec.readonly and self.readonly else address


def size_of(spec: BufferSpec) -> int:
    return math.prod(spec.shape) * ITEMSIZE[spec.dtype]


def room_for(specs: Sequence[BufferSpec]) -> int:
    """Bytes that `place` needs at most."""
    return sum(size_of(spec) + 2 * GUARD + _SCATTER + 2 * spec.align for spec in specs)


def place(specs: Sequence[BufferSpec], base: int, capacity: int, rng: random.Random) -> list[int]:
    """An address for each spec within `capacity` bytes from `base`: in random order, at random distances, with room
    for both bands, and aligned to the spec's alignment but to no more."""
    order = list(range(len(specs)))
    rng.shuffle(order)
    cursor = base + 256 * rng.randrange(min(capacity - room_for(specs), _SLACK) // 256 + 1)
    addresses = [0] * len(specs)
    for index in order:
        spec = specs[index]
        if spec.align < 1 or spec.align & (spec.align - 1):
            raise RunError(f"alignment {spec.align} of {spec.name!r}", fix="use a power of two")
        earliest = cursor + GUARD + 256 * rng.randrange(_SCATTER // 256)
        odd = -(-(earliest - spec.align) // (2 * spec.align))  # the first odd multiple at or after `earliest`
        addresses[index] = odd * 2 * spec.align + spec.align
        cursor = addresses[index] + size_of(spec) + GUARD
    return addresses


def close_gaps(buffers: Sequence[DeviceBuffer]) -> None:
    """Widens the bands behind the buffers, so that every byte between two of them is in a band."""
    placed = sorted(buffers, key=lambda buffer: buffer.address)
    for buffer, following in pairwise(placed):
        buffer.after = following.address - GUARD - (buffer.address + buffer.nbytes)


class Arena:
    """Device memory, grown on demand and reused."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._mapping: Mapping | None = None
        self._capacity = 0
        self._buffers: list[DeviceBuffer] = []

    def layout(self, specs: Sequence[BufferSpec]) -> list[DeviceBuffer]:
        """Buffers for all specs; those of the layout before become void. Raises `Rejected(RESOURCE_LIMIT)`."""
        for buffer in self._buffers:
            buffer.void = True
        self._buffers = []
        mapping = self._reserve(room_for(specs))
        addresses = place(specs, mapping.base, self._capacity, self._rng)
        away = mapping.readonly - mapping.base
        self._buffers = [
            DeviceBuffer(spec, size_of(spec), address, readonly=address + away)
            for spec, address in zip(specs, addresses, strict=True)
        ]
        close_gaps(self._buffers)
        return list(self._buffers)

    def _reserve(self, nbytes: int) -> Mapping:
        if self._mapping is not None and nbytes <= self._capacity:
            return self._mapping
        self._release()
        try:
            self._mapping = Mapping(nbytes)
        except Rejected as error:
            if error.status is not Status.RESOURCE_LIMIT:
                raise
            free, total = call(driver.cuMemGetInfo)
            message = f"the buffers take {nbytes / 2**30:.2f} GiB; the device has {free / 2**30:.2f} GiB free"
            raise Rejected(error.status, message, detail=f"of {total / 2**30:.2f} GiB") from error
        self._capacity = nbytes
        return self._mapping

    def _release(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
        self._mapping, self._capacity = None, 0

    def close(self) -> None:
        for buffer in self._buffers:
            buffer.void = True
        self._release()


class Workspace:
    """A little device memory for evo's own kernels, apart from the arena; contents last until the next `get`."""

    def __init__(self) -> None:
        self._address = 0
        self._capacity = 0

    def get(self, nbytes: int) -> int:
        """The address of at least `nbytes` bytes, 256-byte aligned. Raises `Rejected(RESOURCE_LIMIT)`."""
        if nbytes > self._capacity:
            self.close()
            self._address = int(call(driver.cuMemAlloc, max(nbytes, 1 << 20)))
            self._capacity = max(nbytes, 1 << 20)
        return self._address

    def close(self) -> None:
        if self._address:
            call(driver.cuMemFree, self._address)
        self._address = self._capacity = 0

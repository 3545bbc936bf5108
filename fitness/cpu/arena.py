"""Shared memory: files in memory that this process writes and the runner maps, and how buffers lie in them."""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evo.dtypes import numpy_dtype
from evo.records import Status
from evo.target import BufferSpec, Rejected

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_PAGE = 4096
GUARD = 4096  # least width of a guard band, bytes
_SPREAD = 16 * 4096  # placements vary by so much
_MAX_ALIGN = 1 << 16
_PATTERN = 1 << 18  # bytes: longer than any guard band


class Arena:
    """`size` bytes of anonymous file; pages exist once they are touched."""

    def __init__(self, name: str, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create(f"evo-{name}", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self._map = mmap.mmap(self.fd, size)
        self.bytes: Bytes = np.frombuffer(self._map, np.uint8)

    def forget(self, start: int, end: int) -> None:
        """Gives the pages from `start` to `end` (multiples of the page size) back; they read as zero."""
        if start < end:
            self._map.madvise(mmap.MADV_REMOVE, start, end - start)

    def close(self) -> None:
        """Closes the file; the memory itself lives until the last array over it is gone."""
        os.close(self.fd)


@dataclass(frozen=True, slots=True, eq=False)
class HostBuffer:
    """Bytes `start` to `end` of an arena. All from `low` to `high` round them is guard band."""

    spec: BufferSpec
    arena: Arena
    base: int  # the runner's address of the arena
    low: int
    start: int
    end: int
    high: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start

    @property
    def address(self) -> int:
        return self.base + self.start

    @property
    def raw(self) -> Bytes:
        return self.arena.bytes[self.start : self.end]

    @property
    def view(self) -> np.ndarray[Any, Any]:
        return self.raw.view(numpy_dtype(self.spec.dtype)).reshape(self.spec.shape)


def lay_out(
    specs: Sequence[BufferSpec], arena: Arena, base: int, rng: np.random.Generator
) -> tuple[dict[int, HostBuffer], int]:
    """Buffers by their position in `specs`, in random order with random gaps, and the page behind them.

    Every byte before, between and behind belongs to a guard band. A start is a multiple of `align`, never of twice it.
    """
    spans: list[tuple[int, int, int, int]] = []
    cursor = 0
    for index in rng.permutation(len(specs)):
        spec = specs[index]
        if spec.align > _MAX_ALIGN:
            raise Rejected(
                Status.RESOURCE_LIMIT, f"{spec.name} wants {spec.align:,} bytes alignment, over {_MAX_ALIGN:,}"
            )
        step = 2 * spec.align
        gap = int(rng.integers(_SPREAD // step + 1)) * step
        start = -(-(cursor + GUARD) // step) * step + gap + spec.align
        size = numpy_dtype(spec.dtype).itemsize * int(np.prod(spec.shape, dtype=np.int64))
        spans.append((int(index), cursor, start, start + size))
        cursor = start + size + GUARD
    cursor = -(-cursor // _PAGE) * _PAGE  # what the runner can reach is whole pages, all of it guarded
    if cursor > arena.size:
        raise Rejected(Status.RESOURCE_LIMIT, f"buffers need {cursor:,} bytes; there are {arena.size:,}")
    highs = [*(low for _, low, _, _ in spans), cursor][1:]
    found = {
        index: HostBuffer(specs[index], arena, base, low, start, end, high)
        for (index, low, start, end), high in zip(spans, highs, strict=True)
    }
    return found, cursor


def guard(buffers: Sequence[HostBuffer], key: int) -> None:
    """Writes the guard bands of `buffers` with the pattern of `key`."""
    for buffer in buffers:
        for band, pattern in _bands(buffer, key):
            band[:] = pattern


def breach(buffers: Sequence[HostBuffer], key: int) -> str:
    """ "" when all guard bands still hold the pattern of `key`, else the first change."""
    for buffer in buffers:
        for (band, pattern), before in zip(_bands(buffer, key), (True, False), strict=True):
            changed = np.flatnonzero(band != pattern)
            if changed.size:
                offset = band.size - int(changed[-1]) if before else int(changed[0])
                place = f"{offset} byte(s) before its start" if before else f"{offset} byte(s) past its end"
                return f"{buffer.spec.role} {buffer.spec.name}: {changed.size} guard byte(s) changed, nearest {place}"
    return ""


@functools.lru_cache(maxsize=4)
def _pattern(key: int) -> Bytes:
    return np.random.default_rng(key).integers(0, 256, _PATTERN, np.uint8)


def _bands(buffer: HostBuffer, key: int) -> list[tuple[Bytes, Bytes]]:
    data = buffer.arena.bytes
    bands = (data[buffer.low : buffer.start], data[buffer.end : buffer.high])
    pattern = _pattern(key)
    shift = (buffer.start * 31) % GUARD  # so that no two buffers have the same
    return [(band, pattern[shift + side : shift + side + band.size]) for side, band in enumerate(bands)]

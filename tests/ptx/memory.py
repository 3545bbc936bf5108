"""An address space of buffers with guard bands between them. What was not written yet is poison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
READ, WRITE = 1, 2
POISON = 0xFF  # every byte: NaN in bf16, fp16 and fp32


class Fault(Exception):
    """A kernel did what no kernel may do."""


@dataclass(frozen=True, slots=True)
class Area:
    name: str
    nbytes: int
    align: int = 256
    writable: bool = True


class Space:
    """Areas one after the other, `guard` bytes apart, each aligned as asked for and to no more.

    Raises `Fault` for any access that is misaligned, or not wholly inside an area that allows it.
    """

    def __init__(self, name: str, areas: Sequence[Area], *, base: int, guard: int) -> None:
        self.name, self.base = name, base
        self.areas: list[tuple[Area, int]] = []  # with their first byte's place
        cursor = 0
        for area in areas:
            cursor = -(-(cursor + guard - area.align) // (2 * area.align)) * 2 * area.align + area.align
            self.areas.append((area, cursor))
            cursor += area.nbytes
        size = -(-(cursor + guard) // 16) * 16
        self.bytes = np.full(size, POISON, np.uint8)
        self.rights = np.zeros(size, np.uint8)
        for area, start in self.areas:
            self.rights[start : start + area.nbytes] = READ | (WRITE if area.writable else 0)
        self._words = {width: self.bytes.view(f"u{width}") for width in (1, 2, 4, 8)}

    def address(self, name: str) -> int:
        return next(self.base + start for area, start in self.areas if area.name == name)

    def contents(self, name: str) -> Array:
        """The area's bytes, not a copy."""
        return next(self.bytes[start : start + area.nbytes] for area, start in self.areas if area.name == name)

    def take(self, at: Array, kind: Any, count: int = 1) -> list[Array]:
        """`count` neighbouring elements from each address."""
        width = np.dtype(kind).itemsize
        index = self._places(at, width * count, READ) // width
        return [self._words[width][index + i].view(kind) for i in range(count)]

    def put(self, at: Array, values: Sequence[Array]) -> None:
        """Neighbouring elements to each address."""
        width = values[0].dtype.itemsize
        index = self._places(at, width * len(values), WRITE) // width
        for i, value in enumerate(values):
            self._words[width][index + i] = value.view(f"u{width}")

    def span(self, at: int, nbytes: int, right: int) -> Array:
        """Bytes in one piece, not a copy; for bulk copies, so all of it in units of 16."""
        if nbytes % 16:
            raise Fault(f"{nbytes} bytes are copied, no multiple of 16")
        start = at - self.base
        self._places(at + np.arange(0, max(nbytes, 16), 16), 16, right)
        return self.bytes[start : start + nbytes]

    def check(self, at: Array, nbytes: int, right: int) -> None:
        """Raises `Fault` where `nbytes` bytes at each address may not be accessed."""
        self._places(at, nbytes, right)

    def _places(self, at: Array, nbytes: int, right: int) -> Array:
        index = at - self.base
        inside = index.min() >= 0 and index.max() + nbytes <= self.bytes.size and not (index % nbytes).any()
        if not inside or not (self.rights[index] & self.rights[index + nbytes - 1] & right).all():
            raise self._fault(index, nbytes, right)
        return index

    def _fault(self, index: Array, nbytes: int, right: int) -> Fault:
        """What is wrong with the first of the addresses that is wrong, by the area next to it."""
        if not self.areas:
            return Fault(f"there is no {self.name} memory")
        verb = "written" if right == WRITE else "read"
        for place in (int(each) for each in index.flat):
            area, start = min(self.areas, key=lambda each: max(each[1] - place, place - each[1] - each[0].nbytes))
            where = f"byte {place - start} of {area.name!r}"
            if place % nbytes:
                return Fault(f"{nbytes} bytes are {verb} at {where}: misaligned")
            if not start <= place <= start + area.nbytes - nbytes:
                return Fault(f"{nbytes} bytes are {verb} at {where}, which has {area.nbytes}")
            if right == WRITE and not area.writable:
                return Fault(f"{where}, an input, is written")
        raise AssertionError("all addresses are right")

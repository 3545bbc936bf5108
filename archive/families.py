"""Families of cases: ranges of a size, or an element type, in which a thing may hold while it does not elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evo.lesson import CaseFacts


@dataclass(frozen=True, slots=True)
class Family:
    """Cases in `mask` are those that `name` describes; `rest` describes the others."""

    name: str
    rest: str
    mask: np.ndarray[Any, np.dtype[np.bool_]]


def families(names: Sequence[str], cases: Mapping[str, CaseFacts]) -> list[Family]:
    """All ways to part the named cases by a size or by the element type; of equal ones the first."""
    found: dict[tuple[bool, ...], Family] = {}

    def add(name: str, rest: str, inside: list[bool]) -> None:
        if any(inside) and not all(inside) and tuple(not each for each in inside) not in found:
            found.setdefault(tuple(inside), Family(name, rest, np.array(inside)))

    for dim in dict.fromkeys(dim for name in names for dim in cases[name].dims):
        for cut in sorted({cases[name].dims[dim] for name in names if dim in cases[name].dims})[1:]:
            inside = [cases[name].dims.get(dim, 0) >= cut for name in names]
            add(f"{dim} >= {cut}", f"{dim} < {cut}", inside)
    for dtype in dict.fromkeys(cases[name].dtype for name in names):
        add(dtype, f"not {dtype}", [cases[name].dtype == dtype for name in names])
    return list(found.values())


def describe(about: Sequence[CaseFacts]) -> str:
    """What some cases have in common with each other, for a person: "N = 65536"; "" when nothing is worth saying."""
    parts = []
    for dim in dict.fromkeys(dim for facts in about for dim in facts.dims):
        sizes = {facts.dims[dim] for facts in about if dim in facts.dims}
        if len(sizes) == 1:
            parts.append(f"{dim} = {sizes.pop()}")
    return ", ".join(parts)

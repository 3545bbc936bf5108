"""A launch plan: what the trusted launcher does with a candidate's kernels, as data, every number resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel argument, in the order of the kernel's signature.

    `tensor`, `scratch` and `map` name a buffer or tensor map; `scalar` carries its width ("i32", "i64", "f32", "f64")
    and value; `null` is an optional tensor that the case does not have (a null pointer).
    """

    kind: Literal["tensor", "scratch", "map", "scalar", "null"]
    name: str
    width: str = ""
    value: int | float = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. On CUDA `grid` counts blocks (not clusters).

    On the CPU target `grid[0]` is the number of work items and `block[0]` how many of them one call gets.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Argument, ...]
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0  # bytes of dynamic shared memory
    cooperative: bool = False
    pdl: bool = False  # programmatic dependent launch on the launch before


@dataclass(frozen=True, slots=True)
class Scratch:
    """Working memory. `zero`: "" poisoned before every call, "each" a timed memset before every call, "kept" zeroed
    once and left zero by the candidate (checked after every call)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    align: int = 256
    zero: Literal["", "each", "kept"] = ""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A CUtensorMap over a tensor or scratch buffer; lists are outermost first, strides and offset in elements."""

    name: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: Literal["none", "32B", "64B", "128B"] = "none"
    interleave: Literal["none", "16B", "32B"] = "none"
    l2: Literal["none", "64B", "128B", "256B"] = "none"
    oob: Literal["zero", "nan"] = "zero"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All launches of one call of the operator, in order, with `when` and `repeat` already resolved."""

    launches: tuple[Launch, ...]
    scratch: tuple[Scratch, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()

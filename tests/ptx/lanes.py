"""A warp's values: 32 lanes of one type; how an instruction's operands are read and written."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ptx.parser import Kernel
    from ptx.warp import Warp

Lanes = np.ndarray[Any, np.dtype[Any]]  # [32]
Mask = Lanes | None  # which lanes take part; None: all
Reader = Callable[["Warp"], Lanes]
Writer = Callable[["Warp", Lanes, Mask], None]

WIDTH = 32
LANE = np.arange(WIDTH)
TYPES: Mapping[str, Any] = {
    "b8": np.uint8, "u8": np.uint8, "s8": np.int8, "b16": np.uint16, "u16": np.uint16, "s16": np.int16,
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "f32": np.float32,
    "b64": np.uint64, "u64": np.uint64, "s64": np.int64, "f64": np.float64, "pred": np.bool_,
    "f16": np.float16,
}  # fmt: skip
_NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$")
_ADDRESS = re.compile(r"\[([^\]+]+)(?:\+(-?\d+))?\]$")


def width(kind: Any) -> int:
    return int(np.dtype(kind).itemsize)


@functools.cache
def poison(kind: str) -> Lanes:
    """NaN, -1, or false, by a register's type. Lanes are never changed in place, so these are shared."""
    bits = 8 * width(TYPES[kind])
    return np.zeros(WIDTH, np.bool_) if kind == "pred" else np.full(WIDTH, (1 << bits) - 1, f"u{bits // 8}")


def constant(token: str, kind: Any) -> Lanes | None:
    """An immediate as lanes; None for what is none."""
    if token[:2] in ("0f", "0d"):
        word = int(token[2:], 16).to_bytes((len(token) - 2) // 2, "little")
        return np.full(WIDTH, np.frombuffer(word, kind)[0])
    if _NUMBER.match(token):
        value = int(token.rstrip("U"), 0) & ((1 << 8 * width(kind)) - 1)
        return np.full(WIDTH, np.frombuffer(value.to_bytes(width(kind), "little"), kind)[0])
    return None


def vector(token: str) -> list[str]:
    """The registers of {a, b, ...}, or the one there is."""
    return [each.strip() for each in token.strip("{}").split(",")]


class Operands:
    """Finds the registers of one kernel in a warp's list of them; `symbols` are addresses of shared arrays."""

    def __init__(self, kernel: Kernel, symbols: Mapping[str, int]) -> None:
        self.kernel, self.symbols = kernel, symbols
        self.slots = {name: place for place, name in enumerate(kernel.registers)}
        self.poison = [poison(kind) for kind in kernel.registers.values()]  # of every register

    def reader(self, token: str, kind: Any) -> Reader:
        """The operand's lanes as `kind`; of a wider register the low bits."""
        if (fixed := constant(token, kind)) is not None:
            return lambda warp: fixed
        if token in self.symbols:
            there = np.full(WIDTH, self.symbols[token], kind)
            return lambda warp: there
        if token not in self.slots:
            return lambda warp: warp.special(token).view(kind)
        slot = self.slots[token]
        ratio = width(TYPES[self.kernel.registers[token]]) // width(kind)
        if ratio > 1:
            return lambda warp: np.ascontiguousarray(warp.registers[slot].view(kind)[::ratio])
        if kind is np.bool_:
            return lambda warp: warp.registers[slot]
        return lambda warp: warp.registers[slot].view(kind)

    def condition(self, token: str) -> Reader:
        """A predicate, perhaps negated."""
        read = self.reader(token.lstrip("!"), np.bool_)
        return (lambda warp: ~read(warp)) if token.startswith("!") else read

    def writer(self, token: str, kind: Any) -> Writer:
        """Takes lanes of `kind`; a wider register is extended by zeros or the sign."""
        if token == "_":
            return lambda warp, value, mask: None
        slot = self.slots[token]
        register = np.dtype(TYPES[self.kernel.registers[token]])
        raw: Any = register if register == np.bool_ else np.dtype(f"u{register.itemsize}")
        wider: Any = np.dtype(f"i{register.itemsize}") if np.dtype(kind).kind == "i" else raw
        extend = width(kind) < register.itemsize

        def write(warp: Warp, value: Lanes, mask: Mask) -> None:
            bits = (value.astype(wider) if extend else value).view(raw)
            registers = warp.registers
            registers[slot] = bits if mask is None else np.where(mask, bits, registers[slot])

        return write

    def address(self, token: str) -> Reader:
        """Of [register + offset], as int64."""
        match = _ADDRESS.match(token.replace(" ", ""))
        assert match, token
        offset = int(match[2] or 0)
        if match[1] in self.symbols or _NUMBER.match(match[1]):
            fixed = np.full(WIDTH, (self.symbols.get(match[1]) or int(match[1], 0)) + offset, np.int64)
            return lambda warp: fixed
        wide = width(TYPES[self.kernel.registers[match[1]]]) == 8
        read = self.reader(match[1], np.int64 if wide else np.uint32)
        return (lambda warp: read(warp) + offset) if wide else (lambda warp: read(warp).astype(np.int64) + offset)

"""Arithmetic, logic, comparisons and conversions, lane by lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ptx.lanes import TYPES, WIDTH, Lanes, Mask, Operands, Reader, width
from ptx.parser import Instruction
from ptx.table import Action, emulates, require
from ptx.warp import Warp

Function = Callable[..., Any]
BF16: Any = ml_dtypes.bfloat16
TINY = np.float32(2.0**-126)


def apply(operands: Operands, into: str, kind: Any, function: Function, reads: list[Reader]) -> Action:
    """Writes what `function` makes of the operands' lanes, as `kind`."""
    write = operands.writer(into, kind)

    def act(warp: Warp, mask: Mask) -> None:
        write(warp, np.asarray(function(*[read(warp) for read in reads])).astype(kind, copy=False), mask)

    return act


def plain(operands: Operands, ins: Instruction, function: Function) -> Action:
    """All operands and the result have the type that the opcode ends in."""
    kind = TYPES[ins.parts[-1]]
    return apply(operands, ins.operands[0], kind, function, [operands.reader(each, kind) for each in ins.operands[1:]])


def _fused(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    """Floats by way of float64, in which the product of smaller ones is exact."""
    return x.astype(np.float64) * y + z if x.dtype.kind == "f" else x * y + z


def _quotient(x: Lanes, y: Lanes) -> Lanes:
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    safe = np.where(y == 0, 1, y).astype(np.int64 if x.dtype.kind == "i" else x.dtype)
    whole = np.abs(x.astype(safe.dtype)) // np.abs(safe) * (np.sign(x) * np.sign(safe)).astype(safe.dtype)
    return np.where(y == 0, -1, whole).astype(x.dtype)


_BINARY: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _quotient,
    "rem": lambda x, y: x - _quotient(x, y) * y,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_UNARY: dict[str, Function] = {"neg": np.negative, "abs": np.abs, "not": np.invert}
_APPROXIMATE: dict[str, Function] = {
    "ex2": np.exp2, "lg2": np.log2, "rcp": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt,
    "tanh": np.tanh,
}  # fmt: skip


@emulates(*_BINARY, modifiers="lo rn")
def binary(operands: Operands, ins: Instruction) -> Action:
    return plain(operands, ins, _BINARY[ins.parts[0]])


@emulates("min", "max")
def extreme(operands: Operands, ins: Instruction) -> Action:
    if ins.parts[-1][0] == "f":  # the operand that is no NaN
        return plain(operands, ins, np.fmin if ins.parts[0] == "min" else np.fmax)
    return plain(operands, ins, np.minimum if ins.parts[0] == "min" else np.maximum)


@emulates(*_UNARY)
def unary(operands: Operands, ins: Instruction) -> Action:
    return plain(operands, ins, _UNARY[ins.parts[0]])


@emulates("fma", "mad", modifiers="lo rn")
def multiply_add(operands: Operands, ins: Instruction) -> Action:
    return plain(operands, ins, _fused)


@emulates("mul.wide", "mad.wide")
def widening(operands: Operands, ins: Instruction) -> Action:
    kind = TYPES[ins.parts[-1]]
    wide = np.dtype(f"{np.dtype(kind).kind}{2 * width(kind)}").type
    reads = [operands.reader(each, kind) for each in ins.operands[1:3]]
    reads += [operands.reader(each, wide) for each in ins.operands[3:]]
    return apply(operands, ins.operands[0], wide, lambda x, y, z=0: x.astype(wide) * y.astype(wide) + z, reads)


@emulates("mul.hi")
def high_half(operands: Operands, ins: Instruction) -> Action:
    kind = np.dtype(TYPES[ins.parts[-1]])
    wide = np.dtype(f"{kind.kind}8")
    require(kind.itemsize == 4, ins)
    return plain(operands, ins, lambda x, y: (x.astype(wide) * y.astype(wide)) >> wide.type(32))


@emulates(*_APPROXIMATE, modifiers="approx ftz rn")
def approximate(operands: Operands, ins: Instruction) -> Action:
    """Better than the hardware's approximations: a test must allow for these anyway."""
    function = _APPROXIMATE[ins.parts[0]]
    if "ftz" not in ins.parts:
        return plain(operands, ins, function)

    def flushed(x: Lanes) -> Lanes:
        return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x)

    return plain(operands, ins, lambda x: flushed(function(flushed(x)).astype(np.float32)))


@emulates("shl", "shr")
def shift(operands: Operands, ins: Instruction) -> Action:
    kind = TYPES[ins.parts[-1]]
    bits, left, signed = 8 * width(kind), ins.parts[0] == "shl", np.dtype(kind).kind == "i"

    def function(x: Lanes, count: Lanes) -> Lanes:
        by = np.minimum(count, bits - 1).astype(kind)
        value: Lanes = np.left_shift(x, by) if left else np.right_shift(x, by)
        return value if signed and not left else np.where(count >= bits, kind(0), value)

    reads = [operands.reader(ins.operands[1], kind), operands.reader(ins.operands[2], np.uint32)]
    return apply(operands, ins.operands[0], kind, function, reads)


@emulates("shf", modifiers="l r wrap")
def funnel(operands: Operands, ins: Instruction) -> Action:
    def function(low: Lanes, high: Lanes, count: Lanes) -> Lanes:
        both, by = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32), count.astype(np.uint64) % 32
        return both >> by if "r" in ins.parts else (both << by) >> np.uint64(32)

    return plain(operands, ins, function)


@emulates("prmt")
def permute_bytes(operands: Operands, ins: Instruction) -> Action:
    def function(x: Lanes, y: Lanes, selector: Lanes) -> Lanes:
        pool = np.concatenate([each.view(np.uint8).reshape(WIDTH, 4) for each in (x, y)], axis=1)
        chosen = selector[:, None] >> np.array([0, 4, 8, 12], np.uint32)
        taken = np.take_along_axis(pool, (chosen & 7).astype(np.int64), axis=1)
        taken = np.where(chosen & 8, np.where(taken >> 7, 0xFF, 0), taken).astype(np.uint8)  # the byte's sign instead
        return np.ascontiguousarray(taken).view(np.uint32).reshape(WIDTH)

    return plain(operands, ins, function)


@emulates("bfi")
def insert_bits(operands: Operands, ins: Instruction) -> Action:
    def function(source: Lanes, target: Lanes, start: Lanes, length: Lanes) -> Lanes:
        one, first = np.uint64(1), start.astype(np.uint64) & np.uint64(255)
        mask = ((one << (length.astype(np.uint64) & np.uint64(255))) - one) << first
        return (target & ~mask) | (source.astype(np.uint64) << first & mask)

    require(ins.parts[-1] == "b32", ins)
    return plain(operands, ins, function)


@emulates("bfe")
def extract_bits(operands: Operands, ins: Instruction) -> Action:
    def function(source: Lanes, start: Lanes, length: Lanes) -> Lanes:
        mask = (np.uint64(1) << length.astype(np.uint64)) - np.uint64(1)
        return source.astype(np.uint64) >> start.astype(np.uint64) & mask

    require(ins.parts[-1] == "u32", ins)
    return plain(operands, ins, function)


@emulates("selp")
def select(operands: Operands, ins: Instruction) -> Action:
    kind = TYPES[ins.parts[-1]]
    reads = [operands.reader(each, kind) for each in ins.operands[1:3]] + [operands.condition(ins.operands[3])]
    return apply(operands, ins.operands[0], kind, lambda x, y, choice: np.where(choice, x, y), reads)


_COMPARE: dict[str, Function] = {
    "eq": np.equal, "ne": lambda x, y: (x < y) | (x > y), "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
    "nan": lambda x, y: np.isnan(x) | np.isnan(y), "neu": np.not_equal, "ltu": lambda x, y: ~(x >= y),
    "leu": lambda x, y: ~(x > y), "gtu": lambda x, y: ~(x <= y), "geu": lambda x, y: ~(x < y),
}  # fmt: skip


@emulates("setp", modifiers=" ".join((*_COMPARE, "and", "or")))
def compare(operands: Operands, ins: Instruction) -> Action:
    kind, test = TYPES[ins.parts[-1]], _COMPARE[ins.parts[1]]
    reads = [operands.reader(each, kind) for each in ins.operands[1:3]]
    if len(ins.parts) == 3:
        return apply(operands, ins.operands[0], np.bool_, test, reads)
    join = np.logical_and if ins.parts[2] == "and" else np.logical_or
    reads.append(operands.condition(ins.operands[3]))
    return apply(operands, ins.operands[0], np.bool_, lambda x, y, more: join(test(x, y), more), reads)


@emulates("cvt.rn.bf16x2.f32", "cvt.rn.f16x2.f32")
def convert_pair(operands: Operands, ins: Instruction) -> Action:
    """The first source becomes the upper half."""
    small = BF16 if "bf16x2" in ins.parts else np.float16
    reads = [operands.reader(each, np.float32) for each in ins.operands[1:]]

    def function(high: Lanes, low: Lanes) -> Lanes:
        return np.stack([low, high], axis=1).astype(small).view(np.uint32).reshape(WIDTH)

    return apply(operands, ins.operands[0], np.uint32, function, reads)


@emulates("cvt", modifiers="rn bf16")
def convert(operands: Operands, ins: Instruction) -> Action:
    """Between floats, to nearest even; from integers to floats; between integers, by their low bits."""
    after, before = (BF16 if name == "bf16" else TYPES[name] for name in ins.parts[-2:])
    require("f" in ins.parts[-2] or ins.parts[-1][0] in "us", ins)
    raw_before, raw_after = (np.uint16 if kind is BF16 else kind for kind in (before, after))
    read = operands.reader(ins.operands[1], raw_before)
    return apply(operands, ins.operands[0], raw_after, lambda x: x.view(before).astype(after).view(raw_after), [read])

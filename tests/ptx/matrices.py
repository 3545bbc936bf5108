"""Matrices over the lanes of a warp: ldmatrix, stmatrix, movmatrix, mma and wgmma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ptx.lanes import WIDTH, Lanes, Mask, Operands, vector
from ptx.memory import Array, Fault
from ptx.parser import Instruction
from ptx.table import Action, emulates, require
from ptx.warp import Warp

FORMS = "sync aligned m8n8 m16n8k16 x1 x2 x4 trans shared row col bf16"
TILES = "m64n8k16 m64n16k16 m64n32k16 m64n64k16 m64n128k16"  # of wgmma
ELEMENTS: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


def _tile(lanes: Lanes) -> Array:
    """An 8 x 8 matrix of 16-bit elements: lane 4 r + c holds columns 2 c and 2 c + 1 of row r."""
    return np.ascontiguousarray(lanes).view(np.uint16).reshape(8, 8)


def _lanes(tile: Array) -> Lanes:
    return np.ascontiguousarray(tile).view(np.uint32).reshape(WIDTH)


@emulates("ldmatrix", modifiers=FORMS, together=True)
def load_matrix(operands: Operands, ins: Instruction) -> Action:
    """Lane 8 i + r has the address of row r of matrix i."""
    writes = [operands.writer(name, np.uint32) for name in vector(ins.operands[0])]
    address, transposed = operands.address(ins.operands[1]), "trans" in ins.parts

    def act(warp: Warp, mask: Mask) -> None:
        rows = np.stack(warp.block.shared.take(address(warp)[: 8 * len(writes)], np.uint16, 8), axis=1)
        for place, write in enumerate(writes):
            tile = rows[8 * place : 8 * place + 8]
            write(warp, _lanes(tile.T if transposed else tile), mask)

    return act


@emulates("stmatrix", modifiers=FORMS, together=True)
def store_matrix(operands: Operands, ins: Instruction) -> Action:
    reads = [operands.reader(name, np.uint32) for name in vector(ins.operands[1])]
    address, transposed = operands.address(ins.operands[0]), "trans" in ins.parts

    def act(warp: Warp, mask: Mask) -> None:
        tiles = [_tile(read(warp)) for read in reads]
        rows = np.concatenate([tile.T if transposed else tile for tile in tiles])
        columns = [np.ascontiguousarray(rows[:, column]) for column in range(8)]
        warp.block.shared.put(address(warp)[: 8 * len(reads)], columns)

    return act


@emulates("movmatrix", modifiers=FORMS, together=True)
def transpose(operands: Operands, ins: Instruction) -> Action:
    require("trans" in ins.parts, ins)
    read, write = operands.reader(ins.operands[1], np.uint32), operands.writer(ins.operands[0], np.uint32)
    return lambda warp, mask: write(warp, _lanes(_tile(read(warp)).T), mask)


def _left(registers: Sequence[Lanes], element: Any) -> Array:
    """[16, 16] float32: quarters top left, bottom left, top right, bottom right."""
    quarters = [_tile(each).view(element) for each in registers]
    return np.block([[quarters[0], quarters[2]], [quarters[1], quarters[3]]]).astype(np.float32)


@emulates("mma", modifiers=FORMS, together=True)
def product(operands: Operands, ins: Instruction) -> Action:
    """[16, 16] by [16, 8] of bf16 or fp16; sums in fp32."""
    into, left, right, add = (vector(each) for each in ins.operands)
    element = ELEMENTS[ins.parts[-2]]
    require(ins.parts[-4:] in (("f32", "bf16", "bf16", "f32"), ("f32", "f16", "f16", "f32")), ins)
    a, b = ([operands.reader(name, np.uint32) for name in names] for names in (left, right))
    c = [operands.reader(name, np.float32) for name in add]
    writes = [operands.writer(name, np.float32) for name in into]

    def act(warp: Warp, mask: Mask) -> None:
        first = _left([read(warp) for read in a], element)
        second = np.concatenate([_tile(read(warp)).view(element).T for read in b]).astype(np.float32)
        found = _accumulators(first @ second)
        for write, lanes, read in zip(writes, found, c, strict=True):
            write(warp, lanes + read(warp), mask)

    return act


def _accumulators(product: Array) -> Array:
    """[16, n] to [n / 2, 32]: register 4 j + 2 h + p of lane 4 r + c is row r + 8 h, column 8 j + 2 c + p."""
    columns = product.shape[1]
    parts = product.reshape(2, 8, columns // 8, 4, 2)  # h, r, j, c, p
    return np.ascontiguousarray(parts.transpose(2, 0, 4, 1, 3)).reshape(columns // 2, WIDTH)


# --- products of a warpgroup, in flight until they are waited for


def _operand(warp: Warp, descriptor: int, rows: int, transposed: bool) -> Array:
    """[rows, 16] bf16 in shared memory, 16 along K, as core matrices of 8 x 16 bytes without swizzle.

    `transposed`: K is not the axis that is contiguous. Distances are from core matrix to core matrix.
    """
    if descriptor >> 62 or descriptor >> 49 & 7:
        raise Fault(f"the emulator does not know the swizzle of matrix descriptor {descriptor:#x}")
    start, along, across = ((descriptor >> place & 0x3FFF) << 4 for place in (0, 16, 32))
    n, k = np.arange(rows)[:, None], np.arange(16)[None]
    inner = k % 8 * 16 + n % 8 * 2 if transposed else n % 8 * 16 + k % 8 * 2
    (bits,) = warp.block.shared.take(start + k // 8 * along + n // 8 * across + inner, np.uint16)
    operand: Array = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    return operand


@emulates("wgmma.mma_async", modifiers=f"sync aligned bf16 {TILES}", together=True)
def group_product(operands: Operands, ins: Instruction) -> Action:
    """Operands are read when it lands; until it was waited for, the accumulators' registers are poison."""
    require(ins.parts[5:] == ("f32", "bf16", "bf16"), ins)
    columns, into = int(ins.parts[4][4:-3]), [operands.slots[name] for name in vector(ins.operands[0])]
    registers = [operands.reader(name, np.uint32) for name in vector(ins.operands[1])]
    descriptor, keeps = operands.reader(ins.operands[2], np.uint64), operands.condition(ins.operands[3])
    sign_a, sign_b, *transposed = (int(each) for each in ins.operands[4:])
    in_shared = not ins.operands[1].startswith("{")
    first = operands.reader(ins.operands[1], np.uint64) if in_shared else None

    def land(warp: Warp, left: int | None, right: int, keep: bool) -> None:
        if left is None:
            a = _left([read(warp) for read in registers], ml_dtypes.bfloat16)
        else:
            rows = slice(16 * (warp.number % 4), 16 * (warp.number % 4) + 16)
            a = _operand(warp, left, 64, bool(transposed[0]))[rows]
        b = _operand(warp, right, columns, bool(transposed[-1]))
        for slot, lanes in zip(into, _accumulators(a @ b.T * np.float32(sign_a * sign_b)), strict=True):
            old = warp.in_flight[slot].view(np.float32)
            warp.in_flight[slot] = (lanes + old if keep else lanes).view(np.uint32)

    def act(warp: Warp, mask: Mask) -> None:
        left, right, keep = int(first(warp)[0]) if first else None, int(descriptor(warp)[0]), bool(keeps(warp)[0])
        warp.lend(into)
        warp.products.issue(lambda: land(warp, left, right, keep))

    return act


@emulates("wgmma.commit_group", modifiers="sync aligned", together=True)
def commit_products(operands: Operands, ins: Instruction) -> Action:
    def act(warp: Warp, mask: Mask) -> None:
        warp.products.commit()
        if warp.block.early():
            warp.products.land()

    return act


@emulates("wgmma.wait_group", modifiers="sync aligned", together=True)
def wait_for_products(operands: Operands, ins: Instruction) -> Action:
    left = int(ins.operands[0])

    def act(warp: Warp, mask: Mask) -> None:
        warp.products.wait(left)
        warp.give_back(left)

    return act

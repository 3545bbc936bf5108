"""Moves, loads, stores, shuffles and branches."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptx.lanes import LANE, TYPES, WIDTH, Mask, Operands, vector, width
from ptx.memory import Fault, Space
from ptx.parser import Instruction
from ptx.table import Action, emulates
from ptx.warp import Warp

CACHING = "nc ca cg cs cv lu wb wt L1::no_allocate L1::evict_last L1::evict_first L2::64B L2::128B L2::256B v2 v4"


@emulates("mov", "cvta.to.global")
def move(operands: Operands, ins: Instruction) -> Action:
    """Also between a register and the parts of it, lowest first."""
    into, source = ins.operands
    kind = TYPES[ins.parts[-1]]
    if source.startswith("{"):
        return _join(operands, into, vector(source), kind)
    if into.startswith("{"):
        return _split(operands, vector(into), source, kind)
    read, write = operands.reader(source, kind), operands.writer(into, kind)
    return lambda warp, mask: write(warp, read(warp), mask)


def _part(kind: Any, count: int) -> Any:
    return np.dtype(f"u{width(kind) // count}").type


def _join(operands: Operands, into: str, names: list[str], kind: Any) -> Action:
    part, write = _part(kind, len(names)), operands.writer(into, kind)
    reads = [operands.reader(name, part) for name in names]

    def act(warp: Warp, mask: Mask) -> None:
        write(warp, np.stack([read(warp) for read in reads], axis=1).view(kind).reshape(WIDTH), mask)

    return act


def _split(operands: Operands, names: list[str], source: str, kind: Any) -> Action:
    part, read = _part(kind, len(names)), operands.reader(source, kind)
    writes = [operands.writer(name, part) for name in names]

    def act(warp: Warp, mask: Mask) -> None:
        parts = read(warp).view(part).reshape(WIDTH, len(names))
        for place, write in enumerate(writes):
            write(warp, np.ascontiguousarray(parts[:, place]), mask)

    return act


@emulates("ld.param")
def load_parameter(operands: Operands, ins: Instruction) -> Action:
    name, kind, write = (
        ins.operands[1].strip("[]"),
        TYPES[ins.parts[-1]],
        operands.writer(ins.operands[0], TYPES[ins.parts[-1]]),
    )

    def act(warp: Warp, mask: Mask) -> None:
        if name not in warp.block.parameters:
            raise Fault(f"the emulator does not know the parameter {name!r}")
        write(warp, np.full(WIDTH, np.frombuffer(warp.block.parameters[name], kind)[0]), mask)

    return act


def _space(warp: Warp, shared: bool) -> Space:
    """A generic address is one in global memory here: any other faults."""
    return warp.block.shared if shared else warp.block.memory


@emulates("ld", "ld.global", "ld.shared", modifiers=CACHING)
def load(operands: Operands, ins: Instruction) -> Action:
    kind, shared, address = TYPES[ins.parts[-1]], "shared" in ins.parts, operands.address(ins.operands[1])
    writes = [operands.writer(name, kind) for name in vector(ins.operands[0])]

    def act(warp: Warp, mask: Mask) -> None:
        at = address(warp)
        found = _space(warp, shared).take(at if mask is None else at[mask], kind, len(writes))
        for write, value in zip(writes, found, strict=True):
            if mask is not None:
                value, some = np.zeros(WIDTH, kind), value
                value[mask] = some
            write(warp, value, mask)

    return act


@emulates("st", "st.global", "st.shared", modifiers=CACHING)
def store(operands: Operands, ins: Instruction) -> Action:
    kind, shared, address = TYPES[ins.parts[-1]], "shared" in ins.parts, operands.address(ins.operands[0])
    reads = [operands.reader(name, kind) for name in vector(ins.operands[1])]

    def act(warp: Warp, mask: Mask) -> None:
        chosen = slice(None) if mask is None else mask
        _space(warp, shared).put(address(warp)[chosen], [read(warp)[chosen] for read in reads])

    return act


@emulates("shfl.sync", modifiers="bfly idx up down", together=True)
def shuffle(operands: Operands, ins: Instruction) -> Action:
    mode, kind = ins.parts[2], np.uint32
    into, _, valid = ins.operands[0].partition("|")
    write = operands.writer(into, kind)
    flag = operands.writer(valid, np.bool_) if valid else None
    reads = [operands.reader(each, kind) for each in ins.operands[1:4]]

    def act(warp: Warp, mask: Mask) -> None:
        value, by, clamp = (read(warp).astype(np.int64) for read in reads)
        segment, bound = clamp >> 8 & 31, clamp & 31
        first = LANE & segment
        last = first | (bound & ~segment)
        source = {"bfly": LANE ^ by, "idx": first | (by & ~segment), "up": LANE - by, "down": LANE + by}[mode]
        inside = source >= last if mode == "up" else source <= last
        source = np.where(inside, source, LANE)
        if mask is not None and not mask[source[mask]].all():
            raise Fault("a shuffle reads a lane that has ended")
        write(warp, value[source].astype(kind), mask)
        if flag:
            flag(warp, inside, mask)

    return act


@emulates("bra", modifiers="uni")
def branch(operands: Operands, ins: Instruction) -> Action:
    target = operands.kernel.labels[ins.operands[0]]
    return lambda warp, mask: warp.jump(target, mask)


@emulates("ret", "exit")
def leave(operands: Operands, ins: Instruction) -> Action:
    return lambda warp, mask: warp.leave(mask)


@emulates("trap")
def trap(operands: Operands, ins: Instruction) -> Action:
    def act(warp: Warp, mask: Mask) -> None:
        raise Fault("the kernel traps")

    return act

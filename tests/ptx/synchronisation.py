"""Barriers, memory barriers, and asynchronous copies into shared memory."""

from __future__ import annotations

import numpy as np

from ptx.block import MemoryBarrier, NamedBarrier
from ptx.copies import Landing
from ptx.lanes import WIDTH, Lanes, Mask, Operands
from ptx.memory import READ, WRITE, Fault
from ptx.parser import Instruction
from ptx.table import Action, emulates, require
from ptx.warp import Warp


@emulates("fence", modifiers="proxy async shared::cta mbarrier_init release cluster acq_rel sc cta gpu sys")
@emulates("griddepcontrol", modifiers="wait launch_dependents")
@emulates("wgmma.fence", "setmaxnreg", modifiers="sync aligned inc dec")
@emulates("membar", modifiers="cta gl sys")
def nothing(operands: Operands, ins: Instruction) -> Action:
    """Orders what is in order here anyway."""
    return lambda warp, mask: None


@emulates("bar.warp.sync", together=True)
def meet_lanes(operands: Operands, ins: Instruction) -> Action:
    return lambda warp, mask: None


@emulates("bar.sync", "bar.arrive", "barrier.sync", "barrier.cta.sync", modifiers="aligned", together=True)
def meet(operands: Operands, ins: Instruction) -> Action:
    number = operands.reader(ins.operands[0], np.uint32)
    count = operands.reader(ins.operands[1], np.uint32) if len(ins.operands) > 1 else None
    waits = "arrive" not in ins.parts

    def act(warp: Warp, mask: Mask) -> None:
        barrier = warp.block.named.setdefault(int(number(warp)[0]), NamedBarrier())
        phase = barrier.arrive(int(count(warp)[0]) if count else warp.block.threads, WIDTH)
        if waits:
            warp.waits = lambda: barrier.phase != phase

    return act


@emulates("bar.red.or", modifiers="pred", together=True)
def meet_and_vote(operands: Operands, ins: Instruction) -> Action:
    """__syncthreads_or, among all threads."""
    require(len(ins.operands) == 3, ins)
    number, vote = operands.reader(ins.operands[1], np.uint32), operands.condition(ins.operands[2])
    write = operands.writer(ins.operands[0], np.bool_)

    def act(warp: Warp, mask: Mask) -> None:
        barrier = warp.block.named.setdefault(int(number(warp)[0]), NamedBarrier())
        phase = barrier.phase
        barrier.votes[phase] = barrier.votes.get(phase, False) or bool(vote(warp).any())
        barrier.arrive(warp.block.threads, WIDTH)

        def met() -> bool:
            if barrier.phase == phase:
                return False
            write(warp, np.full(WIDTH, barrier.votes[phase]), mask)
            return True

        warp.waits = met

    return act


# --- mbarriers


def _each(lanes: Lanes, mask: Mask) -> list[int]:
    """The values of the lanes that take part."""
    return [int(value) for value in (lanes if mask is None else lanes[mask])]


@emulates("mbarrier.init", modifiers="shared shared::cta")
def make_barrier(operands: Operands, ins: Instruction) -> Action:
    address, count = operands.address(ins.operands[0]), operands.reader(ins.operands[1], np.uint32)

    def act(warp: Warp, mask: Mask) -> None:
        for at, arrivals in zip(_each(address(warp), mask), _each(count(warp), mask), strict=True):
            warp.block.shared.take(np.array([at]), np.uint64)  # faults where no barrier may be
            warp.block.barriers[at] = MemoryBarrier(arrivals, arrivals)

    return act


@emulates("mbarrier.arrive", modifiers="expect_tx shared shared::cta release cta")
def arrive(operands: Operands, ins: Instruction) -> Action:
    require(ins.operands[0] == "_", ins)
    address = operands.address(ins.operands[1])
    expect = operands.reader(ins.operands[2], np.uint32) if "expect_tx" in ins.parts else None

    def act(warp: Warp, mask: Mask) -> None:
        places = _each(address(warp), mask)
        for at, nbytes in zip(places, _each(expect(warp), mask) if expect else [0] * len(places), strict=True):
            warp.block.barrier(at).arrive(nbytes)

    return act


@emulates("mbarrier.try_wait.parity", modifiers="acquire cluster cta shared shared::cta")
def wait(operands: Operands, ins: Instruction) -> Action:
    """Goes on when the phase of this parity has ended, and so is never answered with false."""
    write, address = operands.writer(ins.operands[0], np.bool_), operands.address(ins.operands[1])
    parity = operands.reader(ins.operands[2], np.uint32)

    def act(warp: Warp, mask: Mask) -> None:
        pairs = sorted(set(zip(_each(address(warp), mask), _each(parity(warp), mask), strict=True)))
        barriers = [(warp.block.barrier(at), which) for at, which in pairs]
        write(warp, np.ones(WIDTH, np.bool_), mask)

        def over() -> bool:
            return all(barrier.phase & 1 != which for barrier, which in barriers)

        warp.waits = None if over() else over

    return act


# --- copies


@emulates("cp.async.cg", "cp.async.ca", modifiers="shared shared::cta global L2::128B L2::256B")
def copy(operands: Operands, ins: Instruction) -> Action:
    """Up to 16 bytes a lane, of which the first some are read and the rest is zero."""
    target, source, size = operands.address(ins.operands[0]), operands.address(ins.operands[1]), int(ins.operands[2])
    count = operands.reader(ins.operands[3], np.uint32) if len(ins.operands) > 3 else None

    def act(warp: Warp, mask: Mask) -> None:
        chosen = slice(None) if mask is None else mask
        to, at = target(warp)[chosen], source(warp)[chosen]
        there = count(warp)[chosen] > 0 if count else np.ones(len(to), np.bool_)
        if count and not np.isin(count(warp)[chosen], (0, size)).all():
            raise Fault("the emulator does not know copies of a part")

        if there.any():
            warp.block.memory.check(at[there], size, READ)
        warp.block.shared.check(to, size, WRITE)

        def land() -> None:
            words = [np.zeros(len(to), np.uint32) for _ in range(size // 4)]
            if there.any():
                for word, found in zip(words, warp.block.memory.take(at[there], np.uint32, size // 4), strict=True):
                    word[there] = found
            warp.block.shared.put(to, words)

        if warp.block.early():
            land()
        else:
            warp.copies.issue(land)

    return act


@emulates("cp.async.commit_group", together=True)
def commit_copies(operands: Operands, ins: Instruction) -> Action:
    return lambda warp, mask: warp.copies.commit()


@emulates("cp.async.wait_group", together=True)
def wait_for_copies(operands: Operands, ins: Instruction) -> Action:
    left = int(ins.operands[0])
    return lambda warp, mask: warp.copies.wait(left)


@emulates("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes")
def copy_bulk(operands: Operands, ins: Instruction) -> Action:
    target, source, barrier = (operands.address(ins.operands[place]) for place in (0, 1, 3))
    size = operands.reader(ins.operands[2], np.uint32)

    def act(warp: Warp, mask: Mask) -> None:
        fields = [_each(read(warp), mask) for read in (target, source, size, barrier)]
        for to, at, nbytes, signal in zip(*fields, strict=True):
            landing = _bulk(warp, to, at, nbytes, signal)
            if warp.block.early():
                landing()
            else:
                warp.block.bulk.append(landing)

    return act


def _bulk(warp: Warp, to: int, at: int, nbytes: int, signal: int) -> Landing:
    block = warp.block
    into, read = block.shared.span(to, nbytes, WRITE), block.memory.span(at, nbytes, READ)
    barrier = block.barrier(signal)

    def land() -> None:
        into[:] = read
        barrier.complete(nbytes)

    return land

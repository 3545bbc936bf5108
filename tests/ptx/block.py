"""One thread block: its warps take turns in random order, and meet at barriers."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from ptx.copies import Landing
from ptx.lanes import WIDTH
from ptx.memory import Fault, Space
from ptx.warp import Code, Warp

TURNS = (5, 50, 500, 5000)  # instructions that a warp runs before another one may

Shape = tuple[int, int, int]


@dataclass(slots=True)
class NamedBarrier:
    """`bar.sync` with one number."""

    threads: int = 0  # that it is for
    arrived: int = 0
    phase: int = 0
    votes: dict[int, bool] = field(default_factory=dict)  # by phase

    def arrive(self, threads: int, arriving: int) -> int:
        """The phase that the arriving threads end or wait for. Raises `Fault` where counts do not fit."""
        if self.arrived and self.threads != threads:
            raise Fault(f"a barrier for {self.threads} threads is met for {threads}")
        self.threads, self.arrived, phase = threads, self.arrived + arriving, self.phase
        if self.arrived > threads:
            raise Fault(f"{self.arrived} threads arrive at a barrier for {threads}")
        if self.arrived == threads:
            self.arrived, self.phase = 0, phase + 1
        return phase


@dataclass(slots=True)
class MemoryBarrier:
    """An mbarrier: a phase ends when all arrivals are in and all expected bytes came."""

    count: int
    pending: int
    phase: int = 0
    nbytes: int = 0  # still to come

    def arrive(self, expect: int = 0) -> None:
        if self.pending == 0:
            raise Fault("an mbarrier gets more arrivals than it was made for")
        self.nbytes += expect
        self.pending -= 1
        self._end()

    def complete(self, nbytes: int) -> None:
        self.nbytes -= nbytes
        self._end()

    def _end(self) -> None:
        if self.pending == 0 and self.nbytes == 0:
            self.phase, self.pending = self.phase + 1, self.count


class Block:
    """`place` among the launch's blocks, `shape` in threads; `parameters` are the arguments' bytes by name."""

    def __init__(
        self, code: Code, memory: Space, parameters: Mapping[str, bytes], shared: Space,
        *, place: Shape, grid: Shape, shape: Shape, rng: random.Random,
    ) -> None:  # fmt: skip
        self.code, self.memory, self.shared, self.parameters = code, memory, shared, parameters
        self.place, self.grid, self.shape, self.rng = place, grid, shape, rng
        self.threads = math.prod(shape)
        self.hurry = rng.choice((0.0, 0.5, 1.0))  # how probably something in flight lands early
        self.named: dict[int, NamedBarrier] = {}
        self.barriers: dict[int, MemoryBarrier] = {}  # by address
        self.bulk: list[Landing] = []  # bulk copies in flight, which land in any order
        self.warps = [Warp(self, code, number) for number in range(-(-self.threads // WIDTH))]

    def early(self) -> bool:
        return self.rng.random() < self.hurry

    def barrier(self, address: int) -> MemoryBarrier:
        if address not in self.barriers:
            raise Fault(f"there is no mbarrier at {address:#x}")
        return self.barriers[address]

    def run(self) -> int:
        """Until all warps ended; the number of instructions. Raises `Fault`."""
        while live := [warp for warp in self.warps if not warp.done]:
            ready = [warp for warp in live if warp.waits is None or warp.waits()]
            if self.bulk and (not ready or self.early()):
                self.bulk.pop(self.rng.randrange(len(self.bulk)))()
            elif ready:
                self._turn(self.rng.choice(ready))
            else:
                lines = {warp.number: self.line(warp) for warp in live}
                raise Fault(f"deadlock: the warps of block {self.place} wait for each other at {lines}")
        return sum(warp.executed for warp in self.warps)

    def _turn(self, warp: Warp) -> None:
        warp.waits = None
        try:
            warp.turn(self.rng.choice(TURNS))
        except Fault as fault:
            where = f"warp {warp.number} of block {self.place}"
            raise type(fault)(f"{fault}; {where} of {self.code.kernel.name}, at {self.line(warp)!r}") from fault

    def line(self, warp: Warp) -> str:
        return self.code.kernel.instructions[warp.last].text[:160]

"""One warp: its registers, where its lanes are, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptx.copies import Groups
from ptx.lanes import LANE, WIDTH, Lanes, Mask, Operands, poison
from ptx.memory import Fault
from ptx.parser import Instruction, Kernel
from ptx.table import Action, find

if TYPE_CHECKING:
    from ptx.block import Block


_POISON = poison("f32")
NONE = np.zeros(WIDTH, np.bool_)
STRAY = 0.03  # how probably some lanes stay behind at the beginning of a turn


class Code:
    """A kernel's instructions as actions, each made when first reached; `symbols` are addresses of shared arrays."""

    def __init__(self, kernel: Kernel, symbols: Mapping[str, int]) -> None:
        self.kernel, self.operands = kernel, Operands(kernel, symbols)
        self.actions: list[Action] = [self._first(place) for place in range(len(kernel.instructions))]
        self.together: list[bool | None] = [None] * len(self.actions)  # None: not made yet

    def _first(self, place: int) -> Action:
        def act(warp: Warp, mask: Mask) -> None:
            self.is_together(place)
            self.actions[place](warp, mask)

        return act

    def is_together(self, place: int) -> bool:
        """Whether all lanes must come there together."""
        together = self.together[place]
        if together is None:
            instruction = self.kernel.instructions[place]
            action, together = find(self.operands, instruction)
            self.actions[place] = self._guarded(action, instruction) if instruction.guard else action
            self.together[place] = together
        return together

    def _guarded(self, action: Action, instruction: Instruction) -> Action:
        read = self.operands.condition("!" * instruction.negated + instruction.guard)

        def act(warp: Warp, mask: Mask) -> None:
            chosen = read(warp) if mask is None else read(warp) & mask
            if chosen.all():
                action(warp, None)
            elif chosen.any():
                action(warp, chosen)

        return act


class Warp:
    """Lanes that are apart go on in the order of the text, and meet again where all of them must be together."""

    def __init__(self, block: Block, code: Code, number: int) -> None:
        self.block, self.code, self.number = block, code, number
        self.registers = list(code.operands.poison)
        self.copies, self.products = Groups(), Groups()
        self.in_flight: dict[int, Lanes] = {}  # true values of accumulators of products in flight, by slot
        self._lent: dict[int, int] = {}  # by slot: how many groups were committed before the latest product into it
        self.waits: Callable[[], bool] | None = None  # until this holds
        self.executed = 0
        self.last = 0  # the place of the latest instruction
        self._place = 0  # of all lanes, where `_places` is None
        self._places: Lanes | None = None
        self._parked = NONE  # lanes that wait for the others
        self._behind = NONE  # lanes that go on only when all others are parked
        self.alive = LANE + WIDTH * number < block.threads
        self.done = False
        self._every: Mask = None if self.alive.all() else self.alive

    def special(self, name: str) -> Lanes:
        """A special register, as 32-bit lanes. Raises `Fault` for one that is not known."""
        threads = (LANE + WIDTH * self.number).astype(np.uint32)
        x, y, _ = self.block.shape
        special: dict[str, Lanes] = {"%laneid": LANE, "%cluster_ctarank": LANE * 0}
        special |= {"%tid.x": threads % x, "%tid.y": threads // x % y, "%tid.z": threads // (x * y)}
        for axis, letter in enumerate("xyz"):
            special[f"%ntid.{letter}"] = np.full(WIDTH, self.block.shape[axis])
            special[f"%ctaid.{letter}"] = np.full(WIDTH, self.block.place[axis])
            special[f"%nctaid.{letter}"] = np.full(WIDTH, self.block.grid[axis])
        if name not in special:
            raise Fault(f"the emulator does not know the operand {name!r}")
        return special[name].astype(np.uint32)

    def turn(self, limit: int) -> None:
        """Runs up to `limit` instructions, or until it waits or ends."""
        actions, rng = self.code.actions, self.block.rng
        if self._places is None and rng.random() < STRAY:
            self._places = np.full(WIDTH, self._place)
            self._behind = self.alive & np.array([rng.random() < 0.5 for _ in LANE])
        while limit and self.waits is None and not self.done:
            limit -= 1
            self.executed += 1
            if self._places is not None:
                self._apart()
                continue
            self.last = place = self._place
            self._place = place + 1
            actions[place](self, self._every)

    def jump(self, target: int, mask: Mask) -> None:
        """Sends lanes to an instruction."""
        if self._places is None:
            if mask is None or not (self.alive & ~mask).any():
                self._place = target
                return
            self._places = np.full(WIDTH, self._place)
        self._places[... if mask is None else mask] = target

    def leave(self, mask: Mask) -> None:
        """Ends lanes."""
        self._every = self.alive = self.alive & (False if mask is None else ~mask)
        self.done = not self.alive.any()

    def lend(self, slots: Sequence[int]) -> None:
        """Accumulators of a product that is issued now."""
        for slot in slots:
            if slot not in self.in_flight:
                self.in_flight[slot] = self.registers[slot]
                self.registers[slot] = _POISON
            self._lent[slot] = self.products.committed

    def give_back(self, left: int) -> None:
        """Accumulators of all but the `left` youngest groups are registers again."""
        for slot in [slot for slot, group in self._lent.items() if group < self.products.committed - left]:
            self.registers[slot] = self.in_flight.pop(slot)
            del self._lent[slot]

    def _apart(self) -> None:
        """One instruction for those lanes that are at the earliest place and need not wait for others."""
        assert self._places is not None
        ready = self.alive & ~self._parked
        if not ready.any():
            if not self._behind.any():
                raise Fault(f"lanes wait for each other at different places: {sorted(set(self._places[self.alive]))}")
            self._parked = self._behind = NONE
            return
        ahead = ready & ~self._behind
        ready = ahead if ahead.any() else ready
        self.last = place = int(self._places[ready].min())
        mask = ready & (self._places == place)
        if self._must_wait(place, mask):
            self._parked = self._parked | mask
            return
        self._places[mask] += 1
        self.code.actions[place](self, mask)
        places = self._places[self.alive]
        one_group = not (self.alive & self._behind).any() or not (self.alive & ~self._behind).any()
        if places.size and one_group and (places == places[0]).all():
            self._place, self._places = int(places[0]), None
            self._parked = self._behind = NONE

    def _must_wait(self, place: int, mask: Lanes) -> bool:
        """Whether these lanes may do this without the other ones; a wait for memory may need what those behind do."""
        if self.code.is_together(place):
            return bool((mask != self.alive).any())
        return bool(self._behind.any()) and self.code.kernel.instructions[place].opcode.startswith("mbarrier.try_wait")

"""New contents while the clock runs: a timed call that replays an earlier result meets inputs that it has not seen.

At random moments between quads one slot's inputs are drawn anew, or single elements of them are changed, which a
fingerprint of a few elements misses. Every program is then checked in full on that slot, and the digests that its timed
outputs must have become those of the new results. A candidate runs there before and after the change as well, with
scratch, outputs and stack as its calls left them: notes of an earlier call, wherever they are kept, are then out of
date, and who believes them gives other bits than on poison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from evo.dtypes import FLOATS
from evo.fitness.check import Gate
from evo.fitness.layout import Slot, present, refill
from evo.records import Status
from evo.target import Rejected

if TYPE_CHECKING:
    from evo.fitness.clock import Side

FIRST = 4  # the first renewal comes after at most so many quads, so that every complete search has one
# Quads from one renewal to the next, at least and at most. A renewal costs about a sample and a half, a quad is four.
GAPS = (3, 5)
SINGLE = 3  # inputs at most of which a single element is changed in one renewal


class Renewal:
    """For one race: seals all slots at its start. `after_quad` may only be called while no timed call is in flight."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._seal = gate.seal()
        self._left = int(gate.rng.integers(1, FIRST + 1))
        self.done = 0

    def after_quad(self, sides: Sequence[Side]) -> list[Side]:
        """The sides with the digests that hold from now on. Raises `Rejected` when a call was wrong, or when since the
        last renewal something was written outside the outputs."""
        self._left -= 1
        if self._left > 0:
            return list(sides)
        self._left = int(self._gate.rng.integers(GAPS[0], GAPS[1] + 1))
        return self._renew(sides)

    def finish(self, sides: Sequence[Side]) -> None:
        """After the last quad: one renewal there is in every race."""
        if not self.done:
            self._renew(sides)
        self._gate.unbroken(self._seal)

    def _changes(self, slot: Slot) -> list[Callable[[], None]]:
        """One after the other: all inputs at once; or a single element of one input, then of another, and so on, which
        gets the value of another element: a legal one. Integers stay, as they may be indices."""
        gate, machine = self._gate, self._gate.machine
        names = [
            tensor.name
            for tensor in present(gate.operator, gate.case)
            if tensor.role == "in" and gate.case.dtypes[tensor.name] in FLOATS
        ]
        if not names or (self.done and gate.rng.random() < 0.5):  # single elements first: they show more
            law = gate.case.distribution
            return [lambda: refill(machine, gate.operator, gate.case, slot, gate.rng, law)]
        chosen = gate.rng.permutation(names)[:SINGLE]
        return [partial(machine.perturb, slot.buffers[str(name)], int(gate.rng.integers(1 << 62))) for name in chosen]

    def _renew(self, sides: Sequence[Side]) -> list[Side]:
        gate = self._gate
        gate.unbroken(self._seal)
        number = int(gate.rng.integers(len(gate.layout.slots)))
        slot = gate.layout.slots[number]
        for change in self._changes(slot):
            for side in (side for side in sides if side.owner == "candidate"):
                gate.on_leftovers(side.calls[number], side.plan, slot, side.owner)
            change()
        renewed = [_checked(gate, side, number) for side in sides]
        self._seal = gate.seal(self._seal, number)
        self.done += 1
        return renewed


def _checked(gate: Gate, side: Side, number: int) -> Side:
    """The side after a full check on the slot. A library, which launches what it likes, is not run."""
    if not side.plan.launches:
        return side
    slot = gate.layout.slots[number]
    call = side.calls[number]
    try:
        if side.owner != "candidate":
            gate.check(call, side.plan, slot, side.owner)
        elif gate.operator.deterministic:
            left = gate.on_leftovers(call, side.plan, slot, side.owner)
            gate.check(call, side.plan, slot, side.owner)
            if gate.digests(slot)[0] != left:
                raise Rejected(Status.WRONG_RESULT, "the answer depends on what earlier calls left behind")
        else:
            gate.check(call, side.plan, slot, side.owner, clean=False)
            gate.check(call, side.plan, slot, side.owner)
    except Rejected as error:
        if side.owner == "candidate":
            message = f"on inputs that changed while it was timed: {error.message}"
            raise Rejected(error.status, message, detail=error.detail, fatal=error.fatal) from error
        message = f"the {side.owner} fails on inputs that changed while it was timed: {error.message}"
        raise Rejected(Status.EVALUATOR_ERROR, message, detail=error.detail, fatal=error.fatal) from error
    if not side.digests:
        return side
    digests = list(side.digests)
    digests[number] = gate.digests(slot)[0]
    return replace(side, digests=tuple(digests))

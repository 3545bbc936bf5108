"""New contents while the clock runs: a timed call that replays an earlier result meets inputs that it has not seen.

At random moments between quads one slot's inputs are drawn anew, or a single element of them is changed, which a
fingerprint of a few elements misses. Every program is then checked in full on that slot, and the digests that its timed
outputs must have become those of the new results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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

    def _renew(self, sides: Sequence[Side]) -> list[Side]:
        gate = self._gate
        gate.unbroken(self._seal)
        number = int(gate.rng.integers(len(gate.layout.slots)))
        slot = gate.layout.slots[number]
        if gate.rng.random() < 0.5:
            refill(gate.machine, gate.operator, gate.case, slot, gate.rng, gate.case.distribution)
        else:
            change_one(gate, slot)
        renewed = [_checked(gate, side, number) for side in sides]
        self._seal = gate.seal(self._seal, number)
        self.done += 1
        return renewed


def change_one(gate: Gate, slot: Slot) -> None:
    """One element of one input gets the value of another: a legal one. Integers stay, as they may be indices."""
    names = [t.name for t in present(gate.operator, gate.case) if t.role == "in" and gate.case.dtypes[t.name] in FLOATS]
    if names:
        name = names[int(gate.rng.integers(len(names)))]
        gate.machine.perturb(slot.buffers[name], int(gate.rng.integers(1 << 62)))


def _checked(gate: Gate, side: Side, number: int) -> Side:
    """The side after a full check on the slot. A library, which launches what it likes, is not run."""
    if not side.plan.launches:
        return side
    slot = gate.layout.slots[number]
    try:
        gate.check(side.calls[number], side.plan, slot, side.owner)
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

"""Who is being run: a candidate's program, or a baseline's callable, behind one face."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evo.plan import LaunchPlan
from evo.target import Buffer, Call, Machine, Program

NOTHING = LaunchPlan(launches=())  # what a baseline launches is its own affair


@dataclass(frozen=True)
class Player:
    """`owner` is "candidate" or "opponent"; scratch is laid out by owner. Exactly one of `program`, `run` is set."""

    owner: str
    program: Program | None = None
    run: Callable[[Mapping[str, Any], int], Mapping[str, Any] | None] | None = None
    plan: LaunchPlan = field(default=NOTHING)

    @property
    def leaves_bits(self) -> bool:
        """Whether its timed outputs lie in our buffers, where they can be digested."""
        return self.program is not None

    def call(self, machine: Machine, buffers: Mapping[str, Buffer]) -> Call:
        if self.program is not None:
            return machine.bind(self.program, buffers)
        assert self.run is not None
        return machine.adopt(self.run, buffers)


def program_player(owner: str, program: Program) -> Player:
    return Player(owner, program=program, plan=program.plan)


def baseline_player(run: Callable[[Mapping[str, Any], int], Mapping[str, Any] | None]) -> Player:
    return Player("opponent", run=run)

"""What a mutator is: it turns parents into drafts of new candidates.

A third party implements `Mutator` and registers an instance; the built-in ones live beside this file.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from evo.genome import Genome, candidate_id
from evo.records import DeviceFacts, Values


@dataclass(frozen=True, slots=True)
class Parent:
    """A candidate to vary. `scores` holds ln(opponent time / own time) by case; a case that is absent is uncovered."""

    candidate: str  # id
    genome: Genome
    values: Values
    scores: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Context:
    """What a mutator may look at. `parents` has one at least: the first is to be varied, the others are mates.

    `kin` are measured candidates of the first parent's own source, which show what its genes do.
    """

    operator: str
    target: str
    parents: tuple[Parent, ...]
    facts: DeviceFacts
    known: Callable[[str], bool]  # whether a candidate id was proposed before
    legal: Callable[[Genome, Values], bool]  # whether values fit the device and cover a case
    kin: tuple[Parent, ...] = ()

    def is_new(self, genome: Genome, values: Values) -> bool:
        """Whether this candidate is worth an evaluation: not proposed before, and legal."""
        return not self.known(candidate_id(self.operator, self.target, genome, values)) and self.legal(genome, values)


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate as proposed: source text with the suffix that says its language, and gene values (the rest default).

    `note` says in a few words what was done, for the lineage.
    """

    source: str
    suffix: str
    values: Values
    parents: tuple[str, ...] = ()  # candidate ids
    note: str = ""


class Mutator(Protocol):
    """Stateless, shared by all runs of a process; awaited on the event loop, so long work belongs in a thread."""

    @property
    def name(self) -> str:
        """Unique among the registered mutators; stands as the author of its proposals."""
        ...

    async def propose(self, context: Context, rng: random.Random) -> Sequence[Draft]:
        """Drafts from `context.parents`, drawing from `rng` only; none when nothing new comes of the first parent."""
        ...

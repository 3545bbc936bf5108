"""Several populations that evolve apart and exchange members round a ring; one where the budget is small."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from evo.engine.population import Member, Population
from evo.engine.selection import lexicase

EVALUATIONS_PER_ISLAND = 1000  # below two of these one population learns more than two halves
MOST = 4
MIGRATION_EVERY = 200  # members taken in, over all islands


def island_count(evaluations: int) -> int:
    """How many islands a budget of evaluations carries; one where it is unknown (0)."""
    return min(MOST, max(1, evaluations // EVALUATIONS_PER_ISLAND))


class Islands:
    """A ring of populations. Asks take turns; a child comes home to the island that asked for it."""

    def __init__(self, count: int, cases: Sequence[str]) -> None:
        self.populations = [Population(cases) for _ in range(count)]
        self._turn = 0
        self._arrivals = 0

    def turn(self) -> int:
        """The island whose turn it is to ask."""
        self._turn = (self._turn + 1) % len(self.populations)
        return self._turn

    def settle(self, member: Member, island: int | None, rng: random.Random) -> None:
        """Takes a member into an island (None: into all, as seeds are), and migrates when it is time."""
        homes = self.populations if island is None else [self.populations[island % len(self.populations)]]
        for population in homes:
            population.add(member)
        self._arrivals += 1
        if len(self.populations) > 1 and self._arrivals % MIGRATION_EVERY == 0:
            self._migrate(rng)

    def everyone(self) -> list[Member]:
        """Distinct members of all islands."""
        found = {member.candidate.id: member for population in self.populations for member in population.members}
        return list(found.values())

    def discard(self, candidate: str) -> None:
        """Takes a candidate out wherever it is not the last of its species."""
        for population in self.populations:
            population.discard(candidate)

    def _migrate(self, rng: random.Random) -> None:
        """One member of every island, chosen by lexicase, is copied to the next; all leave before any arrives."""
        leaving = [lexicase(population, population.members, rng) for population in self.populations]
        for index, member in enumerate(leaving):
            self.populations[(index + 1) % len(self.populations)].add(member)

    def state(self) -> dict[str, Any]:
        """Members by island in their order, and the counters, JSON-able."""
        ids = [[member.candidate.id for member in population.members] for population in self.populations]
        return {"members": ids, "turn": self._turn, "arrivals": self._arrivals}

    def restore(self, state: Mapping[str, Any], members: Mapping[str, Member]) -> None:
        """Puts back what `state` gave, from members by candidate id."""
        self.populations = [Population(self.populations[0].cases) for _ in state["members"]]
        for population, names in zip(self.populations, state["members"], strict=True):
            for name in names:
                population.add(members[name])
        self._turn, self._arrivals = state["turn"], state["arrivals"]

"""Who becomes a parent: epsilon-lexicase over cases, with a share for every niche."""

from __future__ import annotations

import random
from collections.abc import Sequence

from evo.engine.population import Member, Population
from evo.mutators.deap_ops import select_epsilon_lexicase

NICHE_SHARE = 0.3  # of the selections; spread evenly over the niches
KIN_SHARE = 0.75  # of the mates; from the first parent's own species


def lexicase(population: Population, among: Sequence[Member], rng: random.Random) -> Member:
    """One of `among` (members of `population`, at least one).

    Cases in random order each keep the members that cannot be told from the best one there; a case that a member does
    not cover is its worst.
    """
    if len(among) == 1:
        return among[0]
    table = population.table()
    return among[select_epsilon_lexicase([table[member.candidate.id] for member in among], 1.0, rng)]


def pick_parent(population: Population, eligible: Sequence[Member], rng: random.Random) -> Member:
    """A parent among `eligible` (at least one), with a minimal share for every species in it."""
    if rng.random() < NICHE_SHARE:
        species = rng.choice(list(dict.fromkeys(member.candidate.species for member in eligible)))
        eligible = [member for member in eligible if member.candidate.species == species]
    return lexicase(population, eligible, rng)


def pick_mate(population: Population, parent: Member, rng: random.Random) -> Member | None:
    """Another member, mostly of the parent's species; None when there is no other."""
    others = [member for member in population.members if member.candidate.id != parent.candidate.id]
    kin = [member for member in others if member.candidate.species == parent.candidate.species]
    if kin and rng.random() < KIN_SHARE:
        others = kin
    return lexicase(population, others, rng) if others else None

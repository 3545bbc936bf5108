"""Gene discovery and its opposite, with no model: constants and instructions of a source become genes, and genes that
no longer matter become constants.

At present values the machine code stays what it is, which would be a duplicate; so every draft also changes a value,
and the builder says whether that is code.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

from evo.genome import Gene, Genome
from evo.mutators.base import Context, Draft, Parent
from evo.mutators.lifting import freeze, lift
from evo.mutators.sites import Site, sites_of
from evo.mutators.variation import free_genes, redraw
from evo.records import Value

TRIES = 6
MOST_GENES = 24  # of a genome that gets more; beyond, the space is too large to be searched anyway
AT_ONCE = 3  # sites lifted together
LEAST_KIN = 8  # measured candidates of one source before a gene is judged
INDIFFERENT = 0.005  # of ln ratio: best results closer than this do not tell two values apart


class GeneDiscovery:
    """Lifts a few sites of the first parent's source into genes and changes one of them."""

    name = "gene-discovery"

    async def propose(self, context: Context, rng: random.Random) -> Sequence[Draft]:
        """One draft; none where the source has nothing more to lift."""
        parent = context.parents[0]
        sites = sites_of(parent.genome)
        if not sites or not parent.scores or len(free_genes(parent.genome)) >= MOST_GENES:
            return []
        for _ in range(TRIES):
            lifted = lift(parent.genome, _some(sites, rng))
            if lifted is None:
                continue
            genome, names = lifted
            name = rng.choice(names)
            value = rng.choice(genome.genes[name].choices[1:])
            values = dict(parent.values) | {name: value}
            if context.is_new(genome, values):
                note = f"{self.name}: {', '.join(names)}; {name} = {value}"
                return [Draft(genome.canonical, genome.suffix, values, (parent.candidate,), note)]
        return []


def _some(sites: Sequence[Site], rng: random.Random) -> list[Site]:
    """A few sites; the rare kinds as often as the common ones."""
    kinds: dict[str, list[Site]] = {}
    for site in sites:
        kinds.setdefault(site.kind, []).append(site)
    drawn = [rng.choice(kinds[rng.choice(list(kinds))]) for _ in range(rng.randint(1, AT_ONCE))]
    return list(dict.fromkeys(drawn))


class GeneFreezing:
    """Takes the choice out of genes that measured kin show to be indifferent or decided, and varies what is left."""

    name = "gene-freezing"

    async def propose(self, context: Context, rng: random.Random) -> Sequence[Draft]:
        """One draft; none where no gene is settled."""
        parent = context.parents[0]
        settled = [(name, why) for name, why in settled_genes(parent, context.kin).items()]
        rng.shuffle(settled)
        for name, why in settled:
            genome = freeze(parent.genome, {name: parent.values[name]})
            if genome is None or not free_genes(genome):
                continue
            rate = 1.0 / len(free_genes(genome))
            for _ in range(TRIES):
                values = redraw(genome, parent.values, rate, rng)
                if values != parent.values and context.is_new(genome, values) and self._is_new(context, parent, values):
                    note = f"{self.name}: {name} = {parent.values[name]} is {why}"
                    return [Draft(genome.canonical, genome.suffix, values, (parent.candidate,), note)]
        return []

    def _is_new(self, context: Context, parent: Parent, values: dict[str, Value]) -> bool:
        """Under the parent's own source it would be the same machine code."""
        return context.is_new(parent.genome, values)


def settled_genes(parent: Parent, kin: Sequence[Parent]) -> dict[str, str]:
    """Genes of the parent's genome that need no choice any more, with the reason: `indifferent` (all values seen reach
    the same in every case) or `decided` (all of the better half have the parent's value)."""
    measured = [one for one in kin if one.scores and one.genome.canonical == parent.genome.canonical]
    if len(measured) < LEAST_KIN:
        return {}
    measured.sort(key=lambda one: fmean(one.scores.values()), reverse=True)
    better = measured[: len(measured) // 2]
    found = {}
    for gene in free_genes(parent.genome):
        values = {one.values[gene.name] for one in measured}
        if len(values) < 2:
            continue
        if _spread(gene, measured) < INDIFFERENT:
            found[gene.name] = "indifferent"
        elif all(one.values[gene.name] == parent.values[gene.name] for one in better):
            found[gene.name] = "decided"
    return found


def _spread(gene: Gene, measured: Sequence[Parent]) -> float:
    """The largest difference, over the cases, between the best results that two values of the gene reached."""
    best: dict[str, dict[Value, float]] = {}
    for one in measured:
        for case, score in one.scores.items():
            of_case = best.setdefault(case, {})
            value = one.values[gene.name]
            of_case[value] = max(score, of_case.get(value, score))
    return max((max(reached.values()) - min(reached.values()) for reached in best.values()), default=0.0)


def discovered(genome: Genome) -> tuple[Genome, tuple[str, ...]] | None:
    """The genome with every site lifted; None where there is none, or the header has no room."""
    sites = sites_of(genome)
    return lift(genome, sites) if sites else None

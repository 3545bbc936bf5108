"""Crossover of gene values. The child keeps the first parent's source.

Within a species all genes cross; between species those of equal name whose value the first parent's genome offers too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from evo.mutators.base import Context, Draft, Parent
from evo.mutators.deap_ops import cross_two_point, cross_uniform
from evo.mutators.mutation import UniformMutation
from evo.mutators.variation import first_new, free_genes
from evo.records import Value

Cross = Callable[[Sequence[Value], Sequence[Value], random.Random], list[Value]]


def shared_genes(first: Parent, second: Parent) -> list[str]:
    """Names of the free genes of `first` whose value in `second` is one of `first`'s choices, in file order."""
    return [gene.name for gene in free_genes(first.genome) if second.values.get(gene.name) in gene.choices]


async def _crossed(context: Context, cross: Cross, name: str, rng: random.Random) -> Sequence[Draft]:
    """One draft by `cross` over the shared genes; by mutation where the parents have nothing to exchange."""
    first, second = context.parents[0], context.parents[-1]
    names = shared_genes(first, second)
    mine, theirs = [first.values[gene] for gene in names], [second.values[gene] for gene in names]
    if mine == theirs:  # also when there is one parent only, or no shared gene
        return await UniformMutation().propose(context, rng)

    def vary() -> dict[str, Value]:
        return dict(first.values) | dict(zip(names, cross(mine, theirs, rng), strict=True))

    return first_new(context, vary, name, (second.candidate,), rng)


class UniformCrossover:
    """Takes every gene from either parent with equal chance."""

    name = "uniform-crossover"

    async def propose(self, context: Context, rng: random.Random) -> Sequence[Draft]:
        """One draft from the first and the last parent; none when the first one's space is spent."""
        return await _crossed(context, lambda a, b, r: cross_uniform(a, b, 0.5, r), self.name, rng)


class TwoPointCrossover:
    """Takes one stretch of genes, in file order, from the mate: genes that stand together travel together."""

    name = "two-point-crossover"

    async def propose(self, context: Context, rng: random.Random) -> Sequence[Draft]:
        """One draft from the first and the last parent; none when the first one's space is spent."""

        def cross(a: Sequence[Value], b: Sequence[Value], r: random.Random) -> list[Value]:
            return cross_two_point(a, b, r) if len(a) > 1 else cross_uniform(a, b, 0.5, r)

        return await _crossed(context, cross, self.name, rng)

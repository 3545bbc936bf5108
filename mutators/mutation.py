"""Mutation of gene values: any choice (uniform) or a neighbouring one (creep)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from evo.genome import Gene
from evo.mutators.base import Context, Draft
from evo.mutators.variation import first_new, free_genes, redraw
from evo.records import Value


class UniformMutation:
    """Redraws each gene from its choices, one gene a child on average."""

    name = "uniform-mutation"

    async def propose(self, context: Context, rng: random.Random) -> Sequence[Draft]:
        """One draft from the first parent; none when its space is spent."""
        parent = context.parents[0]
        rate = 1.0 / max(1, len(free_genes(parent.genome)))
        return first_new(context, lambda: redraw(parent.genome, parent.values, rate, rng), self.name, (), rng)


class CreepMutation:
    """Moves one or two ordered genes to a neighbouring choice: the local search among integers.

    A gene whose choices are strings has no neighbours, so a genome that has no other genes gets a uniform mutation.
    """

    name = "creep-mutation"

    async def propose(self, context: Context, rng: random.Random) -> Sequence[Draft]:
        """One draft from the first parent; none when its space is spent."""
        parent = context.parents[0]
        ordered = [gene for gene in free_genes(parent.genome) if gene.ordered]
        if not ordered:
            return await UniformMutation().propose(context, rng)

        def vary() -> dict[str, Value]:
            values = dict(parent.values)
            for gene in rng.sample(ordered, min(len(ordered), rng.choice((1, 1, 2)))):
                values[gene.name] = neighbour(gene, values[gene.name], rng)
            return values

        return first_new(context, vary, self.name, (), rng)


def neighbour(gene: Gene, value: Value, rng: random.Random) -> Value:
    """The next smaller or larger choice of an ordered gene with two choices or more."""
    choices = sorted(choice for choice in gene.choices if isinstance(choice, int))
    at = choices.index(int(value))
    return choices[rng.choice([index for index in (at - 1, at + 1) if 0 <= index < len(choices)])]

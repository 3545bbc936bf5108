"""From a variation to a candidate that is worth measuring: retries with a growing rate, then a scan of the space."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from evo.genome import Gene, Genome
from evo.mutators.base import Context, Draft
from evo.mutators.deap_ops import mutate_indices
from evo.records import Value, Values

TRIES = 12  # variations drawn before the space is scanned
SCAN = 4096  # points looked at in a scan: all of a small space, a sample of a large one


def free_genes(genome: Genome) -> list[Gene]:
    """The genes that have a choice."""
    return [gene for gene in genome.genes.values() if len(gene.choices) > 1]


def redraw(genome: Genome, values: Values, rate: float, rng: random.Random) -> dict[str, Value]:
    """`values` with every free gene redrawn from its choices at probability `rate`."""
    genes = free_genes(genome)
    indices = [gene.index(values[gene.name]) for gene in genes]
    drawn = mutate_indices(indices, [len(gene.choices) for gene in genes], rate, rng)
    return dict(values) | {gene.name: gene.choices[index] for gene, index in zip(genes, drawn, strict=True)}


def scan(context: Context, genome: Genome, rng: random.Random) -> dict[str, Value] | None:
    """The first new point of the genome's space in a random order; None when there is none among `SCAN` points."""
    genes = free_genes(genome)
    total = math.prod(len(gene.choices) for gene in genes)
    index, stride = rng.randrange(total), 1 + rng.randrange(total)
    while math.gcd(stride, total) != 1:  # so that the walk visits every point once
        stride = 1 + rng.randrange(total)
    for _ in range(min(total, SCAN)):
        values, rest = genome.defaults(), index
        for gene in genes:
            rest, choice = divmod(rest, len(gene.choices))
            values[gene.name] = gene.choices[choice]
        if context.is_new(genome, values):
            return values
        index = (index + stride) % total
    return None


def first_new(
    context: Context, vary: Callable[[], dict[str, Value]], what: str, mates: tuple[str, ...], rng: random.Random
) -> list[Draft]:
    """One draft: the first new child of `vary`, mutated the more the longer that takes; none when the space is spent.

    Args:
        vary: draws gene values for the first parent's genome.
        what: the name of the variation, for the note.
        mates: ids of the other parents that `vary` draws from.
    """
    parent = context.parents[0]
    genome = parent.genome
    for attempt in range(TRIES):
        values, note = vary(), what
        if attempt:
            values, note = redraw(genome, values, attempt / (TRIES - 1), rng), f"{what}, then redrawn"
        if values != parent.values and context.is_new(genome, values):
            return [Draft(genome.canonical, genome.suffix, values, (parent.candidate, *mates), note)]
    found = scan(context, genome, rng)
    if found is None:
        return []
    return [Draft(genome.canonical, genome.suffix, found, (parent.candidate,), "scan of what is left")]

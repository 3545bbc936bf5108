"""First candidates that lessons suggest: a seed with the gene values that were faster elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evo.engine.problem import Problem
from evo.genome import Genome
from evo.lesson import Kind, Lesson, Standing
from evo.records import Candidate, Value

BELIEVED = frozenset({Standing.SUPPORTED, Standing.TENTATIVE})


def advised(problem: Problem, seeds: Sequence[Genome], lessons: Iterable[Lesson]) -> list[Candidate]:
    """One candidate a seed at most: all believed gains that fit it together, the nearest and largest first."""
    gains = [each for each in lessons if each.kind is Kind.EFFECT and each.standing in BELIEVED and each.direction > 0]
    found = []
    for genome in seeds:
        values = genome.defaults()
        for name, value in _wishes(problem, genome, gains):
            changed = {**values, name: value}
            if problem.legal(genome, changed):
                values = changed
        if values != genome.defaults():
            found.append(problem.candidate(genome, values))
    return found


def _wishes(problem: Problem, genome: Genome, gains: Sequence[Lesson]) -> list[tuple[str, Value]]:
    """At most one value a gene, from the nearest lesson that names a choice of it."""

    def nearness(lesson: Lesson) -> tuple[bool, bool, bool, float]:
        scope = lesson.scope
        mine = scope.operator == problem.operator.name
        here = scope.target == problem.target
        return mine, here, scope.species == genome.species, lesson.effect or 0.0

    wishes: dict[str, Value] = {}
    for lesson in sorted(gains, key=nearness, reverse=True):
        for name, value in lesson.genes.items():
            if name in genome.genes and value in genome.genes[name].choices:
                wishes.setdefault(name, value)
    return list(wishes.items())

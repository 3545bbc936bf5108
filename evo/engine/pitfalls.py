"""Combinations of gene values that failed again and again: the search passes over most of them."""

from __future__ import annotations

from collections.abc import Iterable

from evo.genome import Genome, candidate_id
from evo.lesson import Kind, Lesson, Standing
from evo.records import Value, Values

EXPLORED = 0.1  # share of the candidates with a pitfall that are proposed all the same: a lesson may be out of date


class Pitfalls:
    """Those of one operator and target. Which candidates are proposed all the same depends on their identity alone, so
    that a run can be repeated."""

    def __init__(self, operator: str = "", target: str = "", lessons: Iterable[Lesson] = ()) -> None:
        self.passed_over = 0  # draws
        self._operator, self._target = operator, target
        self._known: list[tuple[str, frozenset[tuple[str, Value]]]] = [
            (lesson.scope.species, frozenset(lesson.genes.items()))
            for lesson in lessons
            if lesson.kind is Kind.PITFALL and lesson.standing is Standing.SUPPORTED and lesson.genes
        ]

    def __len__(self) -> int:
        return len(self._known)

    def avoids(self, genome: Genome, values: Values) -> bool:
        """Whether these values are better left alone; counts it."""
        items = values.items()
        if not any(genes <= items for species, genes in self._known if species in ("", genome.species)):
            return False
        name = candidate_id(self._operator, self._target, genome, values)
        if int(name[:8], 16) < EXPLORED * (1 << 32):
            return False
        self.passed_over += 1
        return True

"""What is searched: an operator's cases on one device."""

from __future__ import annotations

from dataclasses import dataclass

from evo.genome import Genome, make_candidate, objection, uncovered
from evo.operator import Case, Operator
from evo.records import Candidate, DeviceFacts, Values


@dataclass(frozen=True, slots=True)
class Problem:
    """`cases` are those that count: searched, reported and measured again in the end."""

    operator: Operator
    target: str
    cases: tuple[Case, ...]
    facts: DeviceFacts

    @property
    def case_names(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases)

    def legal(self, genome: Genome, values: Values) -> bool:
        """Whether the values fit the device and at least one case is covered."""
        if objection(genome, values, self.facts):
            return False
        return any(not uncovered(genome, self.operator, case, values, self.facts) for case in self.cases)

    def candidate(self, genome: Genome, values: Values) -> Candidate:
        """The candidate of a genome and gene values; genes that are not named take their defaults.

        Raises `GenomeError` for an unknown gene or an illegal value.
        """
        return make_candidate(self.operator.name, self.target, genome, values)

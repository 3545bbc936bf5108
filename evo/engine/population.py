"""Members of a population, in niches by species."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import truediv

from evo.genome import Genome
from evo.records import Candidate, Evaluation, Status, Timing

WIDE = 0.5  # half-width of a log ratio that has no finite interval
NARROW = 1e-4  # no clock tells closer ratios apart

Row = tuple[float, ...]  # one number for each case


@dataclass(frozen=True, slots=True)
class Member:
    """A candidate with what was measured: per covered case the ratio to the yardstick, and the half-width of the
    interval of its logarithm. A seed that waits for its evaluation, or failed it, covers no case."""

    candidate: Candidate
    genome: Genome
    status: Status = Status.UNCOVERED
    ratios: Mapping[str, float] = field(default_factory=dict)
    epsilon: Mapping[str, float] = field(default_factory=dict)
    timings: Mapping[str, Timing] = field(default_factory=dict)

    @classmethod
    def of(cls, candidate: Candidate, genome: Genome, evaluation: Evaluation) -> Member:
        """The member that an evaluation makes; without ratios unless the whole evaluation is ok."""
        timings: dict[str, Timing] = {}
        if evaluation.status is Status.OK:
            for result in evaluation.cases:
                timing = result.timing
                if result.status is Status.OK and timing and 0 < timing.ratio < math.inf:
                    timings[result.case] = timing
        return cls(
            candidate,
            genome,
            evaluation.status,
            {case: timing.ratio for case, timing in timings.items()},
            {case: half_width(timing) for case, timing in timings.items()},
            {case: _lean(timing) for case, timing in timings.items()},
        )

    @property
    def scores(self) -> dict[str, float]:
        """ln ratio by covered case."""
        return {case: math.log(ratio) for case, ratio in self.ratios.items()}


def half_width(timing: Timing) -> float:
    """Half the width of the interval of the log ratio."""
    if 0 < timing.low <= timing.high < math.inf:
        return (math.log(timing.high) - math.log(timing.low)) / 2
    return WIDE


def _lean(timing: Timing) -> Timing:
    """The timing without its raw samples, which lie in the archive and would fill the memory here."""
    return replace(timing, samples=(), clocks={})


class Population:
    """At most `size` members. Every species keeps `floor` of its members whatever the others do, as far as they fit."""

    def __init__(self, cases: Sequence[str], *, size: int = 64, floor: int = 4) -> None:
        self.cases = tuple(cases)
        self.size = size
        self.floor = floor
        self._members: dict[str, Member] = {}  # by candidate id, oldest first
        self._scores: dict[str, Row] = {}  # one ln ratio for each case; -inf where not covered
        self._widths: dict[str, Row] = {}  # its half-width; inf where not covered
        self._table: dict[str, Row] | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, candidate: str) -> bool:
        return candidate in self._members

    @property
    def members(self) -> list[Member]:
        """Oldest first."""
        return list(self._members.values())

    def niches(self) -> dict[str, list[Member]]:
        """Members by species, in order of arrival."""
        niches: dict[str, list[Member]] = {}
        for member in self._members.values():
            niches.setdefault(member.candidate.species, []).append(member)
        return niches

    def add(self, member: Member) -> None:
        """Takes a member in, in place of an earlier one of the same id; drops the one that is needed least."""
        key, scores = member.candidate.id, member.scores
        self._members[key] = member
        self._scores[key] = tuple(scores.get(case, -math.inf) for case in self.cases)
        self._widths[key] = tuple(member.epsilon.get(case, math.inf) for case in self.cases)
        self._table = None
        while len(self._members) > self.size:
            self._remove(self._least_needed())

    def discard(self, candidate: str) -> None:
        """Takes a member out, unless it is the last of its species."""
        member = self._members.get(candidate)
        if member and len(self.niches()[member.candidate.species]) > 1:
            self._remove(candidate)

    def _remove(self, candidate: str) -> None:
        del self._members[candidate], self._scores[candidate], self._widths[candidate]
        self._table = None

    def table(self) -> dict[str, Row]:
        """By candidate id one score for each case: ln ratio in units of the case's epsilon; -inf where not covered.

        A case's epsilon is the median half-width of the members that cover it, so scores less than 1 apart cannot be
        told apart.
        """
        if self._table is None:
            epsilons = [_median_finite(column) for column in zip(*self._widths.values(), strict=True)]
            self._table = {key: tuple(map(truediv, row, epsilons)) for key, row in self._scores.items()}
        return self._table

    def _least_needed(self) -> str:
        """The id of the member that is furthest behind even on its best case (of equals the oldest), among species
        above their floor. The best member of a case is never behind there, so specialists stay."""
        table, niches = self.table(), self.niches()
        floor = min(self.floor, self.size // len(niches))
        leaders: list[float] = [max(column) for column in zip(*table.values(), strict=True)]
        leaders = [lead if lead > -math.inf else 0.0 for lead in leaders]  # -inf - -inf is no number
        spare = [key for key, member in self._members.items() if len(niches[member.candidate.species]) > floor]

        def standing(key: str) -> float:
            return max(score - lead for score, lead in zip(table[key], leaders, strict=True))

        return min(spare or list(self._members), key=standing)


def _median_finite(widths: Sequence[float]) -> float:
    """The median of those that are finite, at least `NARROW`; 1 where none is."""
    finite = sorted(width for width in widths if width < math.inf)
    return max(finite[len(finite) // 2], NARROW) if finite else 1.0

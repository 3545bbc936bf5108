"""The result of a run: the best candidate of each case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo.engine.population import Member
from evo.engine.result import Best
from evo.records import Candidate

FINALISTS = 6  # distinct candidates that are measured again, and more while a case would lose more than `LOSS`
LOSS = 0.01


@dataclass(frozen=True, slots=True)
class _Entry:
    member: Member
    mark: float  # the ratio at the last improvement


class Portfolio:
    """Best member per case by ratio."""

    def __init__(self, cases: Sequence[str]) -> None:
        self.cases = tuple(cases)
        self._entries: dict[str, _Entry] = {}
        self._struck: set[str] = set()

    def offer(self, member: Member) -> bool:
        """Takes the cases in which `member` leads; whether one of them is an improvement.

        A higher ratio may be luck, so it is an improvement only where its whole interval lies above the ratio at the
        last improvement; many steps that are each within the noise add up to one.
        """
        improved = False
        if member.candidate.id in self._struck:
            return False
        for case, ratio in member.ratios.items():
            entry = self._entries.get(case)
            if case not in self.cases or (entry and ratio <= entry.member.ratios[case]):
                continue
            above = entry is None or ratio * math.exp(-member.epsilon[case]) > entry.mark
            self._entries[case] = _Entry(member, ratio if entry is None or above else entry.mark)
            improved = improved or above
        return improved

    def strike(self, candidate: str, others: Sequence[Member]) -> None:
        """Takes out a candidate that failed the finals; the best of `others` follows it in its cases."""
        self._struck.add(candidate)
        self._entries = {case: e for case, e in self._entries.items() if e.member.candidate.id != candidate}
        for member in others:
            self.offer(member)

    def members(self) -> dict[str, Member]:
        """The leaders by case, cases in their order."""
        return {case: self._entries[case].member for case in self.cases if case in self._entries}

    def rivals(self) -> dict[str, float]:
        """The best ratio by case."""
        return {case: member.ratios[case] for case, member in self.members().items()}

    def best(self) -> dict[str, Best]:
        """The leaders with their intervals, by case."""
        return {case: _best(member, case) for case, member in self.members().items()}

    def finalists(self, limit: int = FINALISTS) -> dict[str, Candidate]:
        """By case the candidate to measure again, about `limit` distinct ones.

        Where there are more leaders than that, those are kept that together hold up the product of ratios best, one
        after another; a case whose leader is left out goes to the best of the kept ones that covers it, unless it would
        lose more than `LOSS` by that: then its leader is kept too.
        """
        leaders = self.members()
        pool = {member.candidate.id: member for member in leaders.values()}
        kept: list[Member] = []
        while pool and len(kept) < limit:
            best = max(pool, key=lambda key: _worth([*kept, pool[key]], leaders))
            kept.append(pool.pop(best))
        for case, leader in leaders.items():
            held = max((member.ratios[case] for member in kept if case in member.ratios), default=0.0)
            if held < (1 - LOSS) * leader.ratios[case]:
                kept.append(leader)
        finalists: dict[str, Candidate] = {}
        for case in leaders:
            covering = [member for member in kept if case in member.ratios]
            if covering:
                finalists[case] = max(covering, key=lambda member: member.ratios[case]).candidate
        return finalists

    def state(self) -> dict[str, tuple[str, float]]:
        """By case the leader's id and the mark, for `restore`."""
        return {case: (entry.member.candidate.id, entry.mark) for case, entry in self._entries.items()}

    def restore(self, state: Mapping[str, tuple[str, float]], members: Mapping[str, Member]) -> None:
        """Puts back what `state` gave, from members by candidate id."""
        self._entries = {case: _Entry(members[candidate], mark) for case, (candidate, mark) in state.items()}


def _worth(kept: Sequence[Member], leaders: Mapping[str, Member]) -> tuple[int, float]:
    """Cases covered, and the sum of the best log ratios over them."""
    best = [max((m.ratios[case] for m in kept if case in m.ratios), default=0.0) for case in leaders]
    covered = [math.log(ratio) for ratio in best if ratio > 0]
    return len(covered), sum(covered)


def _best(member: Member, case: str) -> Best:
    timing = member.timings[case]
    candidate = member.candidate
    return Best(timing.ratio, timing.low, timing.high, timing.time_us, candidate.id, candidate.species)

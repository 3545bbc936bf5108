"""What to ask for next: which parents, what kind of change, in which direction. No random numbers: every elite and
every seed gets its turn, those that were asked about least first."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo.app.swarm.asked import AskKind, CaseView
from evo.archive.messages import Message
from evo.records import Candidate, Diagnosis

CROSSOVER_EVERY = 4  # every fourth question is for a child of two
REPAIRS = 2  # tries that a failed candidate is worth


@dataclass(frozen=True, slots=True)
class Stock:
    """A candidate that may become a parent, with what is known of it by case."""

    candidate: Candidate
    cases: Mapping[str, CaseView]
    failed: Diagnosis | None = None  # it was told, evaluated, and found wanting

    @property
    def ratios(self) -> dict[str, float]:
        return {name: view.ratio for name, view in self.cases.items() if view.ratio > 0}


@dataclass(frozen=True, slots=True)
class Choice:
    kind: AskKind
    parents: tuple[Stock, ...]
    direction: str


def choose(stock: Sequence[Stock], failed: Sequence[Stock], said: Sequence[Message]) -> Choice:
    """The next question.

    Args:
        stock: candidates that are right or not yet measured, best first; one at least.
        failed: told candidates that failed, newest first.
        said: the run's messages, oldest first.
    """
    asks = [message for message in said if message.kind == "ask"]
    asked = Counter((message.data["kind"], parent) for message in asks for parent in message.data["parents"][:1])
    busy = _leased(said)
    for one in failed:
        key = ("repair", one.candidate.id)
        if asked[key] < REPAIRS and key not in busy and one.failed:
            return Choice("repair", (one,), _repairing(one.failed))
    if len(stock) > 1 and len(asks) % CROSSOVER_EVERY == CROSSOVER_EVERY - 1:
        first = _least_asked(stock, "crossover", asked, busy)
        return Choice("crossover", (first, _mate(first, stock)), _crossing(first, _mate(first, stock)))
    parent = _least_asked(stock, "mutation", asked, busy)
    return Choice("mutation", (parent,), improving(parent))


def _leased(said: Sequence[Message]) -> set[tuple[str, str]]:
    """(kind, first parent) of the questions that somebody works on now."""
    told = {message.data.get("ask", "") for message in said if message.kind == "tell"}
    now = time.time()
    return {
        (message.data["kind"], parent)
        for message in said
        if message.kind == "ask" and message.data["lease_until"] > now and message.id not in told
        for parent in message.data["parents"][:1]
    }


def _least_asked(
    stock: Sequence[Stock], kind: AskKind, asked: Mapping[tuple[str, str], int], busy: set[tuple[str, str]]
) -> Stock:
    """Of those that nobody works on, the one with the fewest questions; of equals the best."""
    free = [one for one in stock if (kind, one.candidate.id) not in busy] or list(stock)
    return min(free, key=lambda one: asked.get((kind, one.candidate.id), 0))


def _mate(first: Stock, stock: Sequence[Stock]) -> Stock:
    """The other one that is most ahead of `first` in some case; where nothing is measured, the first other one."""
    others = [one for one in stock if one is not first]
    mine = first.ratios

    def lead(other: Stock) -> float:
        return max((ratio / mine.get(case, 1e-9) for case, ratio in other.ratios.items()), default=0.0)

    return max(others, key=lead)


def improving(parent: Stock) -> str:
    """Where there is most to gain."""
    timed = {name: view for name, view in parent.cases.items() if view.time_us > 0}
    if not timed:
        return "It was not measured yet: improve what limits it by your own estimate, and say what you expect."
    share = {name: view.light_share for name, view in timed.items() if view.light_share > 0}
    if share:
        name = min(share, key=lambda case: share[case])
        where = f"it runs at {share[name]:.0%} of the speed of light there"
    else:
        name = min(timed, key=lambda case: timed[case].ratio)
        where = f"it is at {timed[name].ratio:.3f} times the yardstick's speed there"
    open_cases = [case for case, view in parent.cases.items() if view.status == "uncovered"]
    more = f" It does not cover {', '.join(open_cases[:4])}." if open_cases else ""
    return f"Most is to be gained in case {name}: {where}. Change the structure, not only gene values.{more}"


def _crossing(first: Stock, second: Stock) -> str:
    better = [case for case, ratio in second.ratios.items() if ratio > first.ratios.get(case, 0.0)]
    good = [case for case, ratio in first.ratios.items() if ratio > second.ratios.get(case, 0.0)]
    if not (better or good):
        return "Make one child that has what you find best in each of the two parents."
    return (
        f"Make one child of two parents. The first is better in {', '.join(good) or 'no case'}, the second in "
        f"{', '.join(better) or 'no case'}: take from each what makes it so."
    )


def _repairing(why: Diagnosis) -> str:
    where = f" in case {why.case}" if why.case else ""
    return f"It was rejected at stage {why.stage}{where}. Repair what the diagnosis names, and keep the idea."

"""Which arm (a mutator, a model) comes next: budget goes where the portfolio gained most for it lately."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

DISCOUNT = 0.99  # of all that was seen, with every verdict: what paid once need not pay now
FLOOR = 0.05  # of the budget that every arm keeps, as far as half of it goes round
NEW_CASE = 0.1  # the gain of covering a case that nothing covered, in ln ratio
PRIOR = 10.0  # picks that an arm's weight counts for


@dataclass(slots=True)
class Arm:
    """Discounted sums. `gain` is that of the portfolio in ln ratio over the cases, `cost_s` what was spent."""

    weight: float
    picks: float = 0.0
    gain: float = 0.0
    cost_s: float = 0.0


class Bandit:
    """Few arms. An arm's share of the budget goes with its gain per cost; how often it is picked also with how little
    a pick of it costs. Before anything is known shares go with the weights, which stay a prior of a few picks."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        total = sum(weights.values())
        self.arms = {name: Arm(weight * len(weights) / total) for name, weight in weights.items()}

    def choose(self, available: Sequence[str], rng: random.Random) -> str:
        """One of the arms that are available (one at least)."""
        shares, mean = self.shares(), self._mean().cost_s
        chances = [shares[name] / self._pick_cost(self.arms[name], mean) for name in available]
        return rng.choices(available, chances)[0]

    def pick(self, name: str) -> None:
        """The arm gets to work on one proposal."""
        self.arms[name].picks += 1.0

    def credit(self, name: str, gain: float, cost_s: float) -> None:
        """What a proposal of the arm brought and cost; its parts may come one after another."""
        for arm in self.arms.values():
            arm.picks *= DISCOUNT
            arm.gain *= DISCOUNT
            arm.cost_s *= DISCOUNT
        if name in self.arms:
            self.arms[name].gain += max(0.0, gain)
            self.arms[name].cost_s += max(0.0, cost_s)

    def shares(self) -> dict[str, float]:
        """The share of the budget that each arm should have."""
        mean = self._mean()
        rates = {name: self._rate(arm, mean) for name, arm in self.arms.items()}
        floor = min(FLOOR, 0.5 / len(self.arms))
        total = sum(rates.values())
        return {name: floor + (1.0 - floor * len(rates)) * rate / total for name, rate in rates.items()}

    def state(self) -> dict[str, Any]:
        return {name: asdict(arm) for name, arm in self.arms.items()}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Puts back what `state` gave; arms that were not there keep what they start with."""
        self.arms.update({name: Arm(**arm) for name, arm in state.items() if name in self.arms})

    def _mean(self) -> Arm:
        """A pick of the average arm; 1 where nothing is known, so that weights alone decide."""
        picks = sum(arm.picks for arm in self.arms.values())
        gain, cost_s = (sum(getattr(arm, part) for arm in self.arms.values()) for part in ("gain", "cost_s"))
        return Arm(1.0, 1.0, gain / picks if picks and gain else 1.0, cost_s / picks if picks and cost_s else 1.0)

    @staticmethod
    def _rate(arm: Arm, mean: Arm) -> float:
        return (arm.gain + PRIOR * mean.gain * arm.weight) / (arm.cost_s + PRIOR * mean.cost_s)

    @staticmethod
    def _pick_cost(arm: Arm, mean_s: float) -> float:
        return (arm.cost_s + PRIOR * mean_s) / (arm.picks + PRIOR)


def portfolio_gain(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """What an improvement brought: ln of the best ratios, over the cases that were covered before; a case that was not
    counts as `NEW_CASE`."""
    known = sum(math.log(ratio / before[case]) for case, ratio in after.items() if case in before)
    return known + NEW_CASE * len(after.keys() - before.keys())

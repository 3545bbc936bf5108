"""The interval that racing and results rest on."""

from __future__ import annotations

import math
import random

import pytest

from evo.fitness.statistics import LEVEL, geometric_mean, mixture_width, ratio_interval


def pairs(rng: random.Random, ratio: float, spread: float, count: int) -> list[tuple[float, float]]:
    """(candidate_us, opponent_us) with opponent / candidate = ratio up to log-normal noise."""
    return [(100.0, 100.0 * ratio * math.exp(rng.gauss(0.0, spread))) for _ in range(count)]


def test_ratio_is_opponent_over_candidate() -> None:
    interval = ratio_interval([(50.0, 100.0)] * 10)
    assert interval.ratio == pytest.approx(2.0)
    assert interval.low == pytest.approx(2.0)
    assert interval.high == pytest.approx(2.0)


def test_few_pairs_bound_nothing() -> None:
    interval = ratio_interval([(50.0, 100.0)] * 3)
    assert interval.low == 0.0
    assert interval.high == math.inf


def test_interval_holds_at_every_look_at_once() -> None:
    """Watching 60 pairs come in and stopping at the worst moment must miss the truth in at most 1 - LEVEL of runs."""
    rng = random.Random(20)
    runs, missed = 400, 0
    for _ in range(runs):
        seen = pairs(rng, 1.03, 0.01, 60)
        intervals = [ratio_interval(seen[:count]) for count in range(8, 61)]
        missed += any(not i.low <= 1.03 <= i.high for i in intervals)
    assert missed / runs <= 1 - LEVEL + 0.01


def test_an_ordinary_interval_would_have_lied() -> None:
    """The same watch with the fixed-size 99 % interval misses far more often: the reason for the sequence."""
    rng = random.Random(21)
    runs, missed = 300, 0
    for _ in range(runs):
        logs = [math.log(b / a) for a, b in pairs(rng, 1.0, 0.01, 60)]
        missed += any(abs(sum(logs[:n]) / n) > 2.576 * 0.01 / math.sqrt(n) for n in range(8, 61))
    assert missed / runs > 0.03


def test_width_shrinks_like_a_root() -> None:
    assert mixture_width(400) < mixture_width(100) / 1.8
    assert mixture_width(24) * math.sqrt(24) == pytest.approx(3.5, abs=0.3)


def test_geometric_mean_of_a_gain_and_its_inverse_is_one() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)

"""The interval that racing and results rest on."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from evo.fitness.statistics import (
    LEVEL,
    SHARPEST_AT,
    geometric_mean,
    mixture_width,
    ratio_interval,
    sessions_interval,
)
from evo.student import t_quantile


def pairs(rng: random.Random, ratio: float, spread: float, count: int) -> list[tuple[float, float]]:
    """(candidate_us, opponent_us) with opponent / candidate = ratio up to log-normal noise."""
    return [(100.0, 100.0 * ratio * math.exp(rng.gauss(0.0, spread))) for _ in range(count)]


def test_ratio_is_opponent_over_candidate() -> None:
    interval = ratio_interval([(50.0, 100.0)] * 10)
    assert interval.ratio == pytest.approx(2.0)
    assert interval.low == pytest.approx(2.0)
    assert interval.high == pytest.approx(2.0)


def test_few_pairs_bound_nothing() -> None:
    interval = ratio_interval([(50.0, 100.0)] * 6)
    assert interval.low == 0.0
    assert interval.high == math.inf
    assert ratio_interval([(50.0, 100.0)] * 8).high < math.inf


def test_interval_holds_at_every_look_at_once() -> None:
    """Watching 60 pairs come in and stopping at the worst moment must miss the truth in at most 1 - LEVEL of runs."""
    rng = random.Random(20)
    runs, missed = 400, 0
    for _ in range(runs):
        seen = pairs(rng, 1.03, 0.01, 60)
        intervals = [ratio_interval(seen[:count]) for count in range(8, 61, 2)]
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
    assert mixture_width(SHARPEST_AT) * math.sqrt(SHARPEST_AT) == pytest.approx(3.57, abs=0.05)


def test_geometric_mean_of_a_gain_and_its_inverse_is_one() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)


# --- noise that is not what the theory wants

Noise = Callable[[np.random.Generator, int], np.ndarray]


def heavy(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.standard_t(3, count)


def spikes(rng: np.random.Generator, count: int) -> np.ndarray:
    """One pair in twenty is disturbed twentyfold, on either side."""
    return rng.normal(size=count) * np.where(rng.random(count) < 0.05, 20.0, 1.0)


def by_quad(rng: np.random.Generator, count: int) -> np.ndarray:
    """Half of the noise is common to the two pairs of a quad."""
    return math.sqrt(0.5) * (rng.normal(size=count) + np.repeat(rng.normal(size=count // 2), 2))


def drifting(rng: np.random.Generator, count: int) -> np.ndarray:
    """Every pair remembers 0.3 of the one before. Pairs recorded on an H200 remember nothing: -0.04 in the median."""
    noise = rng.normal(size=count)
    for i in range(1, count):
        noise[i] = 0.3 * noise[i - 1] + math.sqrt(1 - 0.09) * noise[i]
    return noise


def watched(noise: Noise, runs: int) -> tuple[float, float]:
    """Share of races of 40 pairs that miss the truth at any look, and of those that call an equal rival better."""
    rng = np.random.default_rng(7)
    missed = behind = 0
    for _ in range(runs):
        samples = [(100.0, 100.0 * math.exp(0.004 * each)) for each in noise(rng, 40)]
        seen = [ratio_interval(samples[:count]) for count in range(8, 41, 2)]
        missed += any(not i.low <= 1.0 <= i.high for i in seen)
        behind += any(i.high < 1.0 for i in seen)
    return missed / runs, behind / runs


@pytest.mark.parametrize(("noise", "most"), [(heavy, 0.01), (spikes, 0.01), (by_quad, 0.01), (drifting, 0.03)])
def test_races_are_honest_under_odd_noise(noise: Noise, most: float) -> None:
    """Three standard errors above the claim at most; drifting noise is known to be worse, and by how much."""
    runs = 400
    missed, behind = watched(noise, runs)
    assert missed <= most + 3 * math.sqrt(most / runs)
    assert behind <= most / 2 + 3 * math.sqrt(most / 2 / runs)


def test_a_twin_is_dropped_as_behind_in_one_race_of_two_hundred_at_most() -> None:
    missed, behind = watched(lambda rng, count: rng.normal(size=count), 800)
    assert missed <= 0.01 + 3 * math.sqrt(0.01 / 800)
    assert behind <= 0.005 + 3 * math.sqrt(0.005 / 800)


# --- results: fixed samples, several processes


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [(0.995, 1, 63.657), (0.995, 2, 9.925), (0.995, 4, 4.604), (0.975, 7, 2.365), (0.995, 39, 2.708), (0.5, 3, 0.0)],
)
def test_quantiles_of_students_t(probability: float, freedom: int, quantile: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(quantile, abs=6e-4)


def sessions(rng: np.random.Generator, count: int, between: float, within: float) -> list[list[tuple[float, float]]]:
    shifts = between * rng.normal(size=count)
    return [[(100.0, 102.0 * math.exp(shift + within * e)) for e in rng.normal(size=16)] for shift in shifts]


@pytest.mark.parametrize(("count", "between"), [(3, 0.004), (5, 0.004), (5, 0.0)])
def test_sessions_interval_covers_what_differs_between_processes(count: int, between: float) -> None:
    rng = np.random.default_rng(11)
    runs, missed, naive = 1000, 0, 0
    for _ in range(runs):
        found = sessions(rng, count, between, 0.004)
        interval = sessions_interval(found)
        missed += not interval.low <= 1.02 <= interval.high
        together = sessions_interval([[pair for session in found for pair in session]])
        naive += not together.low <= 1.02 <= together.high
    assert missed / runs <= 1 - LEVEL + 3 * math.sqrt((1 - LEVEL) / runs)
    assert naive / runs > 0.1 or not between, "one process' interval would have lied"


def test_equal_sessions_are_as_wide_as_their_scatter_says() -> None:
    session = [(100.0, 101.0), (100.0, 103.0), (100.0, 102.0), (100.0, 102.5)] * 4
    interval = sessions_interval([session] * 4)
    logs = [math.log(b / a) for a, b in session]
    error = math.sqrt(statistics.variance(logs) / len(logs) / 4)
    assert interval.half_width >= t_quantile(0.995, 60) * error * (1 - 1e-9)
    assert interval.ratio == pytest.approx(math.exp(statistics.fmean(logs)))


def test_too_few_pairs_or_sessions_bound_little() -> None:
    assert sessions_interval([[(1.0, 2.0)]]).high == math.inf
    three, two = ([[(100.0, 101.0 + k), (100.0, 101.5 + k)] * 4 for k in range(n)] for n in (3, 2))
    assert sessions_interval(two).half_width > 3 * sessions_interval(three).half_width
    with pytest.raises(ValueError, match="no pairs"):
        sessions_interval([])

"""Intervals for the mean log ratio of paired times: two kinds, for two ways of stopping.

Racing looks after every quad and stops when it has seen enough, so an ordinary confidence interval would lie:
`ratio_interval` is a confidence *sequence*, which holds at all sample sizes at once (asymptotic version with a Gaussian
mixture; Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit theory and asymptotic confidence
sequences", 2021). Results come from samples whose size was fixed beforehand, of one process or of several:
`sessions_interval`, Student's t.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evo.student import t_quantile

LEVEL = 0.99
SHARPEST_AT = 12  # quads; where the sequence is tightest
LEAST_QUADS = 4  # below it a standard deviation is a guess, and racing decides nothing

Pairs = Sequence[tuple[float, float]]  # (candidate_us, opponent_us), the two of a quad side by side


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with its bounds; all three are exponentials of means of log ratios."""

    ratio: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's width on the log scale (about the relative half-width)."""
        return (math.log(self.high) - math.log(self.low)) / 2 if self.low > 0 else math.inf


def mixture_width(count: int, *, level: float = LEVEL) -> float:
    """Half-width of the sequence after `count` independent values, in standard deviations of one value."""
    alpha = 1 - level
    spread = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha)) + 1) / SHARPEST_AT
    grown = count * spread + 1
    return math.sqrt(2 * grown / (count * count * spread) * math.log(math.sqrt(grown) / alpha))


def ratio_interval(samples: Pairs, *, level: float = LEVEL) -> Interval:
    """Opponent over candidate, at every look; unbounded below `LEAST_QUADS` quads.

    A quad is one value, since its two pairs share what disturbs it. The standard deviation is estimated from the same
    few values, so it is widened as Student's t is wider than a normal; and by what neighbouring quads have in common.
    """
    logs = _logs(samples)
    quads = _quads(logs)
    count, mean = len(quads), statistics.fmean(logs)
    if count < LEAST_QUADS:
        return Interval(math.exp(mean), 0.0, math.inf)
    tails = t_quantile((1 + level) / 2, count - 1) / statistics.NormalDist().inv_cdf((1 + level) / 2)
    half = statistics.stdev(quads) * tails * _shared(quads) * mixture_width(count, level=level)
    return _around(mean, half)


def sessions_interval(sessions: Sequence[Pairs], *, level: float = LEVEL) -> Interval:
    """Opponent over candidate from samples of fixed size, one a fresh process; equal weight for every process.

    Processes differ by addresses, heat and neighbours, so with several the interval is Student's t over their means; it
    is never narrower than what the scatter within them says alone. One session gives the latter, which speaks for that
    process only. Two give a very wide interval: take at least three. Unbounded where there are too few pairs to tell.
    """
    logs = [_logs(session) for session in sessions if session]
    if not logs:
        raise ValueError("no pairs at all")
    means = [statistics.fmean(each) for each in logs]
    mean = statistics.fmean(means)
    quads = [_quads(each) for each in logs]
    within = _within(logs, level)
    if sum(len(each) - 1 for each in quads) >= LEAST_QUADS - 1:
        within = max(within, _within(quads, level))
    if len(means) == 1:
        return _around(mean, within)
    return _around(mean, max(within, student_half(means, level)))


def student_half(values: Sequence[float], level: float = LEVEL) -> float:
    """Half-width of Student's t interval for the mean of independent values; infinite below two."""
    if len(values) < 2:
        return math.inf
    return t_quantile((1 + level) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def geometric_mean(ratios: Sequence[float]) -> float:
    """Raises `statistics.StatisticsError` when empty or not positive."""
    return statistics.geometric_mean(ratios)


def _logs(samples: Pairs) -> list[float]:
    return [math.log(opponent / candidate) for candidate, opponent in samples]


def _quads(logs: Sequence[float]) -> list[float]:
    """Means of two pairs; an odd last pair stands alone."""
    return [statistics.fmean(logs[i : i + 2]) for i in range(0, len(logs), 2)]


def _shared(values: Sequence[float]) -> float:
    """By how much a positive correlation of neighbours widens the mean's deviation; at least 1. Its estimate from a
    short series is too low by about one over its length."""
    centred = [value - statistics.fmean(values) for value in values]
    square = math.fsum(value * value for value in centred)
    if square == 0:
        return 1.0
    lagged = math.fsum(a * b for a, b in zip(centred, centred[1:], strict=False)) / square
    return math.sqrt(1 + 2 * max(0.0, lagged + 1 / len(values)))


def _within(sessions: Sequence[Sequence[float]], level: float) -> float:
    """Half-width for the mean of the sessions' means, from the scatter within them; infinite where there is none to
    see."""
    freedom = sum(len(session) - 1 for session in sessions)
    if freedom < 1:
        return math.inf
    pooled = math.fsum(statistics.variance(s) * (len(s) - 1) for s in sessions if len(s) > 1) / freedom
    error = math.sqrt(pooled * math.fsum(1 / len(session) for session in sessions)) / len(sessions)
    return t_quantile((1 + level) / 2, freedom) * error


def _around(mean: float, half: float) -> Interval:
    low, high = (0.0, math.inf) if math.isinf(half) else (math.exp(mean - half), math.exp(mean + half))
    return Interval(math.exp(mean), low, high)

"""Intervals for the mean log ratio of paired times.

Racing stops when it has seen enough, so an ordinary confidence interval would lie. The interval used everywhere is a
confidence *sequence*: it holds at all sample sizes at once (asymptotic version with a Gaussian mixture; Waudby-Smith,
Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences", 2021).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.99
SHARPEST_AT = 24  # pairs; where the sequence is tightest


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


def mixture_width(pairs: int, *, level: float = LEVEL) -> float:
    """Half-width of the sequence after `pairs` samples, in standard deviations of one sample."""
    alpha = 1 - level
    spread = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha)) + 1) / SHARPEST_AT
    grown = pairs * spread + 1
    return math.sqrt(2 * grown / (pairs * pairs * spread) * math.log(math.sqrt(grown) / alpha))


def ratio_interval(samples: Sequence[tuple[float, float]], *, level: float = LEVEL) -> Interval:
    """Opponent over candidate from (candidate_us, opponent_us) pairs; unbounded below two pairs.

    The standard deviation is inflated by sqrt((n - 1) / (n - 3)), the spread of Student's t, since it is estimated
    from the same few pairs.
    """
    logs = [math.log(opponent / candidate) for candidate, opponent in samples]
    count = len(logs)
    mean = statistics.fmean(logs)
    if count < 4:
        return Interval(math.exp(mean), 0.0, math.inf)
    deviation = statistics.stdev(logs) * math.sqrt((count - 1) / (count - 3))
    half = deviation * mixture_width(count, level=level)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def geometric_mean(ratios: Sequence[float]) -> float:
    """Raises `statistics.StatisticsError` when empty or not positive."""
    return statistics.geometric_mean(ratios)

"""DEAP's operators, typed, on plain lists, and drawing from the caller's generator.

DEAP draws from Python's global generator. Every function here lends it the caller's state and puts the global state
back, so that runs are reproducible and nobody else's random numbers change. Not for use from several threads at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from deap import tools

T = TypeVar("T")


@contextmanager
def lent(rng: random.Random) -> Iterator[None]:
    """Runs the body with the global generator in `rng`'s state; `rng` moves on, the global state is restored."""
    saved = random.getstate()
    random.setstate(rng.getstate())
    try:
        yield
    finally:
        rng.setstate(random.getstate())
        random.setstate(saved)


def cross_uniform(first: Sequence[T], second: Sequence[T], rate: float, rng: random.Random) -> list[T]:
    """`first` with every position taken from `second` at probability `rate` (equal lengths)."""
    child, other = list(first), list(second)
    with lent(rng):
        tools.cxUniform(child, other, rate)
    return child


def cross_two_point(first: Sequence[T], second: Sequence[T], rng: random.Random) -> list[T]:
    """`first` with one stretch taken from `second` (equal lengths of two or more)."""
    child, other = list(first), list(second)
    with lent(rng):
        tools.cxTwoPoint(child, other)
    return child


def mutate_indices(indices: Sequence[int], sizes: Sequence[int], rate: float, rng: random.Random) -> list[int]:
    """Every index redrawn from `range(size)` at probability `rate`."""
    child = list(indices)
    with lent(rng):
        tools.mutUniformInt(child, low=[0] * len(child), up=[size - 1 for size in sizes], indpb=rate)
    return child


class _Fitness:
    """The part of `deap.base.Fitness` that selection reads."""

    __slots__ = ("values", "weights")

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values
        self.weights = (1.0,) * len(values)  # positive: larger is better


class _Individual:
    __slots__ = ("fitness", "index")

    def __init__(self, index: int, values: Sequence[float]) -> None:
        self.index = index
        self.fitness = _Fitness(values)


def select_epsilon_lexicase(scores: Sequence[Sequence[float]], epsilon: float, rng: random.Random) -> int:
    """The row that wins an epsilon-lexicase tournament (larger is better; -inf is allowed), as its index.

    La Cava, Spector, Danai: Epsilon-lexicase selection for regression, GECCO 2016.
    """
    individuals = [_Individual(index, values) for index, values in enumerate(scores)]
    with lent(rng):
        winner: _Individual = tools.selEpsilonLexicase(individuals, 1, epsilon)[0]
    return winner.index

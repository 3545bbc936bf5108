"""The clock: a candidate against the yardstick in interleaved pairs, every timed output checked.

Quads ABBA or BAAB at random cancel slow drift. Before each timed block the outputs that it must write are poisoned;
after it their digests must equal those of the outputs that were fully checked for the same inputs. Samples are kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evo import ids
from evo.fitness.check import Gate
from evo.fitness.statistics import LEVEL, Interval, ratio_interval
from evo.operator import Case, Operator
from evo.plan import LaunchPlan
from evo.records import Status, Timing
from evo.target import Call, Machine, Rejected, Stopwatch

RESOLVED = {"rotation": 0.004, "warm": 0.01}  # relative half-width at which search has seen enough, by protocol
UNSTABLE = 0.25  # relative half-width that no verdict may rest on


@dataclass(frozen=True)
class Side:
    """One of the two that are timed: its calls, one a lane, and the digests of its fully checked outputs, one a slot.

    A baseline's outputs may live in its own library's memory: it is checked in full, but has no digests.
    """

    owner: str
    plan: LaunchPlan
    calls: Sequence[Call]
    digests: Sequence[tuple[int, ...]] = ()


@dataclass(frozen=True)
class Rules:
    """When to stop. `rival`: the incumbent's ratio; 0 none. `fixed`: exactly `pairs_max` pairs."""

    pairs_min: int = 8
    pairs_max: int = 60
    rival: float = 0.0
    fixed: bool = False

    def verdict(self, pairs: int, interval: Interval, resolved: float) -> str:
        """ "" to go on, else how it stopped."""
        if self.fixed:
            return "fixed" if pairs >= self.pairs_max else ""
        if self.rival and interval.high < self.rival:
            return "behind"
        if pairs < self.pairs_min:
            return ""
        if interval.half_width < resolved:
            return "resolved"
        return "budget" if pairs >= self.pairs_max else ""


def race(
    gate: Gate, candidate: Side, opponent: Side, name: str, rules: Rules, alive: Callable[[], None] = lambda: None
) -> Timing:
    """Times both sides on the gate's slots. Raises `Rejected` on a changed output or an incredible time.

    `alive` is called between samples.
    """
    machine, light_us = gate.machine, light(gate.machine, gate.operator, gate.case)
    clocks = {f"{key}_before": value for key, value in machine.clocks().items()}
    watches = [machine.stopwatch(side.calls, light_us) for side in (candidate, opponent)]
    samples: list[tuple[float, float]] = []
    stopped = ""
    seal = gate.seal()
    try:
        while not stopped:
            samples += _quad(gate, (candidate, opponent), watches, alive)
            stopped = rules.verdict(len(samples), ratio_interval(samples), RESOLVED[watches[0].protocol])
    finally:
        for watch in watches:
            watch.close()
    gate.unbroken(seal)
    clocks |= {f"{key}_after": value for key, value in machine.clocks().items()}
    timing = summarise(samples, stopped, watches[0].protocol, name, light_us, clocks)
    timing = replace(timing, method="/".join(watch.method for watch in watches))
    _believe(timing, gate.machine, gate.operator, gate.case)
    return timing


def _quad(
    gate: Gate, sides: tuple[Side, Side], watches: Sequence[Stopwatch], alive: Callable[[], None]
) -> list[tuple[float, float]]:
    """Two pairs from one ABBA or BAAB sequence."""
    order = (0, 1, 1, 0) if gate.rng.random() < 0.5 else (1, 0, 0, 1)
    times: tuple[list[float], list[float]] = ([], [])
    for which in order:
        alive()
        times[which].append(_sample(gate, sides[which], watches[which]))
    return list(zip(*times, strict=True))


def _sample(gate: Gate, side: Side, watch: Stopwatch) -> float:
    lanes = gate.layout.lanes
    scratch = gate.layout.scratch.get(side.owner, {})
    for number, lane in enumerate(lanes):
        gate.prepare(lane, scratch if number == 0 else {}, side.plan)
    elapsed = watch.sample()
    for item in side.plan.scratch:
        if item.zero == "kept" and not gate.machine.is_zero(scratch[item.name]):
            raise Rejected(Status.WRONG_RESULT, f"timed calls of the {side.owner} left scratch {item.name!r} not zero")
    if side.digests:
        for number, found in enumerate(gate.digests(*lanes)):
            if found != side.digests[number % len(side.digests)]:
                raise Rejected(
                    Status.NONDETERMINISTIC if side.owner == "candidate" else Status.EVALUATOR_ERROR,
                    f"a timed call of the {side.owner} wrote other bits than its checked call on the same inputs",
                )
    return elapsed


def summarise(
    samples: Sequence[tuple[float, float]],
    stopped: str,
    protocol: str,
    opponent: str,
    light_us: float,
    clocks: Mapping[str, float],
) -> Timing:
    interval = ratio_interval(samples)
    return Timing(
        protocol=protocol,
        opponent=opponent,
        time_us=statistics.median(candidate for candidate, _ in samples),
        opponent_us=statistics.median(other for _, other in samples),
        ratio=interval.ratio,
        low=interval.low,
        high=interval.high,
        level=LEVEL,
        pairs=len(samples),
        stopped=stopped,  # type: ignore[arg-type]  # `Rules.verdict` returns only the literals
        samples=tuple(samples),
        clocks=clocks,
        light_us=light_us,
    )


def light(machine: Machine, operator: Operator, case: Case) -> float:
    """Roofline, microseconds: compulsory bytes at the device's measured copy rate for that size, or peak arithmetic."""
    cost, facts = operator.cost(case), machine.facts
    moved = cost.bytes_read + cost.bytes_written
    arithmetic = cost.flops / facts.peak_flops if facts.peak_flops else 0.0
    return max(moved / machine.copy_rate(moved), arithmetic) * 1e6


def floor(machine: Machine, operator: Operator, case: Case) -> float:
    """No honest time is below this, in microseconds; 0 where the device's peaks are unknown.

    Reads are cold; writes may stay in the cache. The *peak* rates of the data sheet, not the measured ones.
    """
    cost, facts = operator.cost(case), machine.facts
    if not facts.peak_bytes_per_s:
        return 0.0
    moved = cost.bytes_read + max(0, cost.bytes_written - facts.l2_bytes)
    arithmetic = cost.flops / facts.peak_flops if facts.peak_flops else 0.0
    return max(moved / facts.peak_bytes_per_s, arithmetic) * 1e6


def _believe(timing: Timing, machine: Machine, operator: Operator, case: Case) -> None:
    least = floor(machine, operator, case)
    if timing.time_us < least:
        raise Rejected(
            Status.IMPLAUSIBLE,
            f"{timing.time_us:.2f} us is faster than the device can read the inputs ({least:.2f} us at peak)",
        )
    width = Interval(timing.ratio, timing.low, timing.high).half_width
    if width > UNSTABLE and timing.stopped != "behind":  # behind for certain, however roughly
        raise Rejected(
            Status.UNSTABLE_TIMING,
            f"after {timing.pairs} pairs the ratio is known only to +-{width:.0%}; is something else using the device?",
        )


def seeded(seed: int, *parts: str) -> np.random.Generator:
    """A generator from a task's secret seed and names, so that cases do not share contents."""
    return np.random.default_rng([seed, int(ids.digest(parts), 16)])

"""The clock: a candidate against the yardstick in interleaved pairs, every timed output checked.

Quads ABBA or BAAB at random cancel slow drift. Before each timed block the outputs that it must write are poisoned;
after it their digests must equal those of the outputs that were fully checked for the same inputs. Samples are kept.
A quad during which the processor's clock moved is void, and another one takes its place.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evo import ids
from evo.fitness.check import Gate
from evo.fitness.protocols import promises
from evo.fitness.renewal import Renewal
from evo.fitness.statistics import LEVEL, Interval, ratio_interval, sessions_interval
from evo.fitness.steadiness import Steadiness, settle
from evo.operator import Case, Operator
from evo.plan import LaunchPlan
from evo.records import Status, Timing
from evo.target import Call, Machine, Rejected, Stopwatch

UNSTABLE = 0.25  # relative half-width that no verdict may rest on
# What a multiprocessor can take from the L2 at most: 64 bytes a clock (the vendor's A100 whitepaper gives all 108
# together 5120), at 3 GHz, beyond any chip's clock. Loose by about three, so that no honest time lies below.
L2_BYTES_PER_S_AND_SM = 64 * 3e9


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
    """When to stop. `rival`: the incumbent's ratio; 0 none. `fixed`: exactly `pairs_max` pairs. `seconds_max`: no more
    than `pairs_min` pairs later than that; 0 no limit."""

    pairs_min: int = 8
    pairs_max: int = 60
    rival: float = 0.0
    fixed: bool = False
    seconds_max: float = 0.0

    def verdict(self, pairs: int, interval: Interval, resolved: float, seconds: float = 0.0) -> str:
        """ "" to go on, else how it stopped."""
        if self.fixed:
            return "fixed" if pairs >= self.pairs_max else ""
        if pairs < self.pairs_min:
            return ""
        if self.rival and interval.high < self.rival:
            return "behind"
        if interval.half_width < resolved:
            return "resolved"
        return "budget" if pairs >= self.pairs_max or 0 < self.seconds_max < seconds else ""


def race(
    gate: Gate, candidate: Side, opponent: Side, name: str, rules: Rules, alive: Callable[[], None] = lambda: None,
    *, protocol: str = "", warm_up_s: float = 0.0,
) -> Timing:  # fmt: skip
    """Times both sides on the gate's slots. Raises `Rejected` on a changed output, an incredible time, or a clock that
    does not hold still.

    `alive` is called between samples; the first `warm_up_s` seconds of samples are dropped.
    """
    machine, light_us = gate.machine, light(gate.machine, gate.operator, gate.case)
    clocks = {f"{key}_before": value for key, value in machine.clocks().items()}
    watches = [machine.stopwatch(side.calls, light_us, protocol) for side in (candidate, opponent)]
    promise = promises(watches[0].protocol)
    rules = replace(rules, pairs_max=min(rules.pairs_max, promise.pairs_max))
    samples: list[tuple[float, float]] = []
    stopped = ""
    steadiness = Steadiness(judged=promise.steady)
    renewal = Renewal(gate)
    sides = [candidate, opponent]
    try:
        settle(machine, lambda: [_sample(gate, *each) for each in zip(sides, watches, strict=True)], warm_up_s)
        started = time.monotonic()
        while not stopped:
            quad = _quad(gate, sides, watches, alive, steadiness.rest)
            sides = renewal.after_quad(sides)
            if steadiness.counts(*quad.mhz):
                samples += quad.pairs
                seconds = time.monotonic() - started
                stopped = rules.verdict(len(samples), ratio_interval(samples), promise.resolved, seconds)
        clocks |= steadiness.readings() | _readings(watches)
    finally:
        for watch in watches:
            watch.close()
    renewal.finish(sides)
    clocks |= {f"{key}_after": value for key, value in machine.clocks().items()}
    shown_us = light_us if promise.cold or machine.facts.target == "cpu" else 0.0  # a hot cache is faster than light
    timing = summarise(samples, stopped, watches[0].protocol, name, shown_us, clocks)
    timing = replace(timing, method="/".join(watch.method for watch in watches))
    _believe(timing, gate.machine, gate.operator, gate.case)
    return timing


@dataclass(frozen=True)
class Quad:
    """Two pairs from one ABBA or BAAB sequence, and by side the processor's MHz after each of its samples."""

    pairs: list[tuple[float, float]]
    mhz: tuple[list[float], list[float]]


def _quad(
    gate: Gate, sides: Sequence[Side], watches: Sequence[Stopwatch], alive: Callable[[], None], rest: float
) -> Quad:
    order = (0, 1, 1, 0) if gate.rng.random() < 0.5 else (1, 0, 0, 1)
    times: tuple[list[float], list[float]] = ([], [])
    mhz: tuple[list[float], list[float]] = ([], [])
    for which in order:
        alive()
        began = time.perf_counter()
        elapsed, tempo = _sample(gate, sides[which], watches[which])
        time.sleep(rest * (time.perf_counter() - began))
        times[which].append(elapsed)
        mhz[which].append(tempo)
    return Quad(list(zip(*times, strict=True)), mhz)


def _readings(watches: Sequence[Stopwatch]) -> dict[str, float]:
    """What the stopwatches saw beside the time, by side."""
    sides = zip(("candidate", "opponent"), watches, strict=True)
    return {f"{side}_{name}": value for side, watch in sides for name, value in watch.readings.items()}


def _sample(gate: Gate, side: Side, watch: Stopwatch) -> tuple[float, float]:
    """Microseconds a call, and the processor's MHz right after. The outputs are checked."""
    gate.prepare_lanes(side.plan, side.owner)
    elapsed = watch.sample()
    tempo = gate.machine.tempo()
    if dirty := gate.left_dirty(side.plan, *gate.layout.scratches(side.owner)):
        raise Rejected(Status.WRONG_RESULT, f"timed calls of the {side.owner} left scratch {dirty!r} not zero")
    if side.digests:
        for number, found in enumerate(gate.digests(*gate.layout.lanes)):
            if found != side.digests[number % len(side.digests)]:
                raise Rejected(
                    Status.NONDETERMINISTIC if side.owner == "candidate" else Status.EVALUATOR_ERROR,
                    f"a timed call of the {side.owner} wrote other bits than its checked call on the same inputs",
                )
    return elapsed, tempo


def summarise(
    samples: Sequence[tuple[float, float]],
    stopped: str,
    protocol: str,
    opponent: str,
    light_us: float,
    clocks: Mapping[str, float],
) -> Timing:
    """The interval is anytime-valid, since racing stops by looking; that of a sample of fixed size is Student's."""
    interval = sessions_interval([samples]) if stopped == "fixed" else ratio_interval(samples)
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


def floor(machine: Machine, operator: Operator, case: Case, protocol: str) -> float:
    """No honest time is below this, in microseconds; 0 where the device's peaks are unknown.

    The *peak* rates of the data sheet, not the measured ones. Writes may stay in the L2; reads come from memory where
    the protocol makes them cold, else from memory only as far as they do not fit the L2, and through its ports.
    """
    cost, facts = operator.cost(case), machine.facts
    if not facts.peak_bytes_per_s:
        return 0.0
    beyond = max(0, cost.bytes_written - facts.l2_bytes)
    arithmetic = cost.flops / facts.peak_flops if facts.peak_flops else 0.0
    if promises(protocol).cold:
        return max((cost.bytes_read + beyond) / facts.peak_bytes_per_s, arithmetic) * 1e6
    beyond += max(0, cost.bytes_read - facts.l2_bytes)
    ports = max(cost.bytes_read, cost.bytes_written) / (facts.sms * L2_BYTES_PER_S_AND_SM)
    return max(beyond / facts.peak_bytes_per_s, ports, arithmetic) * 1e6


def _believe(timing: Timing, machine: Machine, operator: Operator, case: Case) -> None:
    least = floor(machine, operator, case, timing.protocol)
    if timing.time_us < least:
        raise Rejected(
            Status.IMPLAUSIBLE,
            f"{timing.time_us:.2f} us is faster than the device can move the data under {timing.protocol!r} "
            f"({least:.2f} us at peak)",
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

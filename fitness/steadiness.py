"""Did the processor's clock hold still? A quad during which it moved measures the clock, not the kernels.

A short trusted kernel counts cycles against the device's timer right after every sample. Within a quad the two looks
after one side's samples are compared with each other, never one side with the other: a candidate that makes the chip
lower its clock does so in both of its own samples, is not excused from it, and shows it in `candidate_sm_mhz`.

A clock that goes to and fro by a step or two (15 MHz each on an H200, 0.76 %) under load is steady: what that does to
the ratios is random, scatters them, and so is in their interval. Void is a quad in which the clock went elsewhere.

A chip at its power limit goes elsewhere again and again. So after a void quad both sides rest after every sample,
longer after every further one: on the average it then draws what it can sustain at its full clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from evo.records import Status
from evo.target import Machine, Rejected

DRIFT = 0.02  # of the clock, between two samples of one side: beyond it the quad is void, and another takes its place
VOID_SHARE = 0.5  # of all quads; with more the timing is unstable
REST_FIRST, REST_MOST = 0.5, 4.0  # of a sample's own time: the rest after the first void quad, and the longest
VOID_LEAST = 8  # so many void quads before a share means anything: at a power limit three come in a row
SETTLED = 0.0025  # two looks that differ by less agree
WARM_UP_S, SETTLE_S = 0.3, 2.0  # a process' first timing warms up at least, and any settles at most, so long


class Steadiness:
    """Of one race. With `judged` false nothing is void; the clocks are recorded all the same."""

    def __init__(self, *, judged: bool) -> None:
        self._judged = judged
        self._seen: tuple[list[float], list[float]] = ([], [])
        self._quads = 0
        self._void: list[tuple[float, float]] = []  # the looks that differed

    def counts(self, candidate: Sequence[float], opponent: Sequence[float]) -> bool:
        """Whether a quad counts, by the MHz after the two samples of each side (zeros: unknown).

        Raises `Rejected(UNSTABLE_TIMING)` when too many do not.
        """
        self._quads += 1
        for seen, looks in zip(self._seen, (candidate, opponent), strict=True):
            seen.extend(looks)
        moved = [(min(looks), max(looks)) for looks in (candidate, opponent) if max(looks) > min(looks) * (1 + DRIFT)]
        if not (self._judged and moved):
            return True
        self._void.append(max(moved, key=lambda pair: pair[1] / pair[0]))
        if len(self._void) >= VOID_LEAST and len(self._void) > VOID_SHARE * self._quads:
            low, high = max(self._void, key=lambda pair: pair[1] / pair[0])
            raise Rejected(
                Status.UNSTABLE_TIMING,
                f"the clock moved by more than {DRIFT:.0%} in {len(self._void)} of {self._quads} quads, from {low:.0f} "
                f"to {high:.0f} MHz within one; is the device shared, throttled, or changing its clocks?",
            )
        return False

    @property
    def rest(self) -> float:
        """How long to rest after a sample, in times of what the sample took."""
        return min(REST_MOST, REST_FIRST * 2 ** (len(self._void) - 1)) if self._void else 0.0

    def readings(self) -> dict[str, float]:
        """For `Timing.clocks`; empty where the device has no such clock."""
        seen = [*self._seen[0], *self._seen[1]]
        if not any(seen):
            return {}
        return {
            "tempo_mhz_min": min(seen), "tempo_mhz_median": statistics.median(seen), "tempo_mhz_max": max(seen),
            "candidate_sm_mhz": statistics.median(self._seen[0]), "opponent_sm_mhz": statistics.median(self._seen[1]),
            "quads_void": float(len(self._void)), "rest": self.rest,
        }  # fmt: skip


def settle(machine: Machine, sample: Callable[[], object], least_s: float) -> None:
    """Samples, untimed, until two looks at the clock agree: at least `least_s`, at most `SETTLE_S` seconds."""
    start, before = time.perf_counter(), machine.tempo()
    while before:
        sample()
        now, spent = machine.tempo(), time.perf_counter() - start
        if spent > SETTLE_S or (spent >= least_s and abs(now / before - 1) < SETTLED):
            return
        before = now

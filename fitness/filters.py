"""Is an operator's gate worth anything? Its small cases, tolerances and float64 reference are tried on the host.

Null kernels must fail, inputs must matter, the truth must be finite and must pass. The law that decides on a case is
the one that is timed: every candidate must be right under it. Under the other laws a null kernel may be right by
nature (a constant row's norm is its weight), so that there it is an `exception`, not a fault.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from evo.dtypes import FLOATS, numpy_dtype
from evo.fitness.compare import deviation
from evo.fitness.cpu.contents import fill
from evo.genome import buffer_shapes
from evo.operator import Case, Fill, Operator, Tolerance
from evo.records import Deviation

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Filter = Literal["null kernels", "sensitivity", "scalars", "finite truth", "rounded truth"]
Outcome = Literal["ok", "exception", "warning", "problem"]

SEED = 20  # fixed: the same operator gets the same answer
LARGE = 1 << 18  # elements of a case beyond which only the deciding law is tried
ORDER_FREE = 1e-6  # tolerances: an effect below is the reference's own rounding
SCALAR_CASES = 12  # smallest cases in which a scalar's effect is looked for
ELEMENTS = 4  # single elements that are changed, one after the other
REDRAWN, REORDERED = " redrawn", " in another order"
# Significant bits, the hidden one included. Exponents are unbounded here, which flatters what is rounded to them.
BITS = {"fp64": 53, "fp32": 24, "fp16": 11, "bf16": 8}
LOWER = {"fp32": 24, "tf32 or fp16": 11, "bf16": 8, "fp8 (e4m3)": 4}


@dataclass(frozen=True, slots=True)
class Small:
    """A case that the reference can compute, the law that decides on it, and the timed cases that it stands for."""

    case: Case
    law: str
    timed: tuple[Case, ...] = ()

    def limits(self, operator: Operator, output: str) -> tuple[Tolerance, ...]:
        """Its own tolerance, and those of the timed cases."""
        return tuple(dict.fromkeys(operator.output_tolerance(case, output) for case in (self.case, *self.timed)))


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing that was tried. `margin` is in tolerances: a null kernel or a change must be above 1, the rounded truth
    at most 1; for `finite truth` it counts the elements that are not."""

    filter: Filter
    subject: str  # "zeros as y", "x redrawn"
    case: str
    law: str
    margin: float
    outcome: Outcome

    def __str__(self) -> str:
        size = f"{self.margin:.0f} not finite" if self.filter == "finite truth" else f"{self.margin:.3g} tolerances"
        return f"{self.subject} on {self.case} under {self.law!r}: {size}"


@dataclass(frozen=True, slots=True)
class Examination:
    """What was tried; `left` cases had no time for the sensitivity filter."""

    probes: tuple[Probe, ...]
    cases: int
    left: int


def small_cases(operator: Operator, cases: Iterable[Case]) -> list[Small]:
    """The checks among `cases` and the neighbours of the others, smallest first."""
    found: dict[str, Small] = {}
    for case in cases:
        for near in (case,) if case.group == "check" else operator.neighbours(case):
            known = found.get(near.name, Small(near, case.distribution))
            timed = known.timed if case.group == "check" else (*known.timed, case)
            found[near.name] = replace(known, timed=timed)
    return sorted(found.values(), key=lambda small: _elements(operator, small.case))


def examine(operator: Operator, cases: Iterable[Case], limit_s: float = 20.0) -> Examination:
    """Every filter on every small case; the sensitivity filter, which asks the reference often, for `limit_s` at most.

    Raises whatever the operator's own functions raise.
    """
    every, probes = small_cases(operator, cases), []
    for small in every:
        large = _elements(operator, small.case) > LARGE
        for law in (small.law,) if large else operator.distributions:
            probes += truth_probes(operator, small, law) + null_probes(operator, small, law)
    probes += scalar_probes(operator, every)
    sensed, left = all_sensitivity_probes(operator, every, limit_s)
    return Examination((*probes, *sensed), len(every), left)


def all_sensitivity_probes(operator: Operator, every: Sequence[Small], limit_s: float) -> tuple[list[Probe], int]:
    """`sensitivity_probes` of the cases, smallest first, and for how many there was no time. Problems are those whose
    input moves nothing in any small case of some timed one, under any law."""
    end, sensed = time.monotonic() + limit_s, []
    for small in every:
        if time.monotonic() < end:
            sensed.append((small, sensitivity_probes(operator, small)))
    unseen = {timed.name for small in every[len(sensed) :] for timed in small.timed}
    return list(_escalated(operator, sensed, unseen)), len(every) - len(sensed)


def weakest_null(operator: Operator, cases: Iterable[Case], most: int = 2) -> Probe | None:
    """The null kernel that passes by the widest margin, None when all fail: on the smallest cases of every
    combination of dtypes and tensors, at most `most` each. A second's work at most."""
    taken: dict[tuple[Any, ...], int] = {}
    passing = []
    for small in small_cases(operator, cases):
        kind = (*sorted(small.case.dtypes.items()), *sorted(small.case.present))
        taken[kind] = taken.get(kind, 0) + 1
        if taken[kind] <= most and _elements(operator, small.case) <= LARGE:
            passing += [p for p in null_probes(operator, small, small.law) if p.outcome == "problem"]
    return min(passing, key=lambda probe: probe.margin, default=None)


def null_probes(operator: Operator, small: Small, law: str) -> list[Probe]:
    """Outputs that a kernel can give without doing the work, one output at a time, in the output's dtype."""
    case, rng = small.case, _rng(small.case, law, "null")
    inputs, stale = (host_inputs(operator, case, law, _rng(case, law, what)) for what in ("inputs", "stale"))
    truth, old = operator.reference(inputs, case), operator.reference(stale, case)
    probes = []
    for name, array in truth.items():
        limits, dtype = small.limits(operator, name), case.dtypes[name]
        nulls = [*_nulls(name, array, old[name], inputs)]
        if dtype in FLOATS:
            nulls += _blemishes(name, array, limits, rng)
            nulls += _rounded(name, array, _precision(case, inputs, dtype))
        for kernel, guess in nulls:
            margin = _least(_store(guess, dtype), array, limits)
            passed: Outcome = "problem" if law == small.law else "exception"
            probes.append(Probe("null kernels", kernel, case.name, law, margin, "ok" if margin > 1 else passed))
    return probes


def truth_probes(operator: Operator, small: Small, law: str) -> list[Probe]:
    """The truth is finite where all inputs are, and passes once rounded to the output's dtype."""
    case = small.case
    inputs = host_inputs(operator, case, law, _rng(case, law, "inputs"))
    tame = all(np.isfinite(array.astype(np.float64)).all() for array in inputs.values())
    probes = []
    for name, array in operator.reference(inputs, case).items():
        odd = float(np.count_nonzero(~np.isfinite(array))) if tame else 0.0
        probes.append(Probe("finite truth", name, case.name, law, odd, "problem" if odd else "ok"))
        margin = _least(_store(array, case.dtypes[name]), array, [operator.output_tolerance(case, name)])
        outcome: Outcome = "ok" if margin <= 1 else "problem"
        probes.append(Probe("rounded truth", name, case.name, law, margin, outcome))
    return probes


def sensitivity_probes(operator: Operator, small: Small) -> list[Probe]:
    """Changes of one input under the deciding law, each of which must move some output by more than the tolerance.

    Drawn anew, in another order along its last axis (unless the order does not matter at all), and changed in the one
    element of least effect of a few: else a kernel that ignores the input, its order, or some elements may pass. That
    is a warning, since under some laws and in long sums it may be so by nature. Inputs that are the same in every draw
    are left out.
    """
    case, law = small.case, small.law
    inputs, fresh, effect = _sensed(operator, small, law)
    probes = []
    for name, array in inputs.items():
        if np.array_equal(array, fresh[name]):
            continue
        for subject, change in _changes(name, array, fresh[name], _rng(case, law, name)):
            try:
                margin = min(effect(name, changed) for changed in change())
            except Exception:  # a structured input (an index, say) may make no sense once an element is changed
                if subject == f"{name}{REDRAWN}":
                    raise
                continue
            fine = margin > 1 or (subject.endswith(REORDERED) and margin < ORDER_FREE)
            probes.append(Probe("sensitivity", subject, case.name, law, margin, "ok" if fine else "warning"))
    return probes


def _sensed(operator: Operator, small: Small, law: str) -> tuple[Arrays, Arrays, Callable[[str, Array], float]]:
    """Inputs, others, and the effect in tolerances of putting another array in the place of one of the first."""
    case = small.case
    inputs, fresh = (host_inputs(operator, case, law, _rng(case, law, what)) for what in ("inputs", "stale"))
    truth = operator.reference(inputs, case)

    def effect(name: str, changed: Array) -> float:
        other = operator.reference({**inputs, name: changed}, case)
        return max(_least(other[out], truth[out], small.limits(operator, out)) for out in truth)

    return inputs, fresh, effect


def _escalated(
    operator: Operator, sensed: Sequence[tuple[Small, list[Probe]]], unseen: Container[str]
) -> Iterator[Probe]:
    best: dict[tuple[str, str], float] = {}
    for small, probes in sensed:
        for key, probe in ((timed.name, probe) for timed in small.timed for probe in probes):
            best[key, probe.subject] = max(probe.margin, best.get((key, probe.subject), 0.0))
    for small, probes in sensed:
        for probe in probes:
            blind = any(best[timed.name, probe.subject] <= 1 for timed in small.timed if timed.name not in unseen)
            if blind and probe.subject.endswith(REDRAWN) and not _seen(operator, small, probe):
                yield replace(probe, outcome="problem")
            else:
                yield probe


def _seen(operator: Operator, small: Small, probe: Probe) -> bool:
    """Whether the input that the probe drew anew matters under any other law."""
    name = probe.subject.removesuffix(REDRAWN)
    for law in operator.distributions:
        _, fresh, effect = _sensed(operator, small, law)
        if effect(name, fresh[name]) > 1:
            return True
    return False


def scalar_probes(operator: Operator, every: Sequence[Small]) -> list[Probe]:
    """A scalar that is the same everywhere may be built into a kernel, and one that moves no output in any case, under
    any law, may be left out; each is a warning."""
    probes = []
    for name in (scalar.name for scalar in operator.scalars):
        values = sorted({small.case.scalars[name] for small in every})
        tried = [_scalar_probe(operator, small, law, name, values) for small, law in _affordable(operator, every)]
        best = max(tried, key=lambda probe: probe.margin, default=Probe("scalars", name, "", "", 0.0, "warning"))
        if len(values) == 1:
            best = replace(best, subject=f"scalar {name}, {values[0]} everywhere", margin=0.0)
        probes.append(replace(best, outcome="ok" if best.margin > 1 else "warning"))
    return probes


def _affordable(operator: Operator, every: Sequence[Small]) -> list[tuple[Small, str]]:
    chosen = [small for small in every if _elements(operator, small.case) <= LARGE][:SCALAR_CASES]
    return [(small, law) for small in chosen for law in operator.distributions]


def _scalar_probe(operator: Operator, small: Small, law: str, name: str, values: Sequence[float]) -> Probe:
    """The effect of another value that the scalar has in some case."""
    case = small.case
    other = next((value for value in values if value != case.scalars[name]), case.scalars[name])
    inputs = host_inputs(operator, case, law, _rng(case, law, "inputs"))
    changed = operator.reference(inputs, replace(case, scalars={**case.scalars, name: other}))
    truth = operator.reference(inputs, case)
    margin = max(_least(changed[out], truth[out], small.limits(operator, out)) for out in truth)
    return Probe("scalars", f"scalar {name} {other} for {case.scalars[name]}", case.name, law, margin, "ok")


def host_inputs(operator: Operator, case: Case, law: str, rng: np.random.Generator) -> dict[str, Array]:
    """Every input as an array of its dtype, fills made on the host."""
    shapes = buffer_shapes(operator, case)
    made = {}
    for name, data in operator.inputs(case, rng, law).items():
        if isinstance(data, Fill):
            array = np.empty(shapes[name], numpy_dtype(case.dtypes[name]))
            fill(array, data, int(rng.integers(1 << 62)))
            made[name] = array
        else:
            made[name] = data
    return made


def excess(found: Deviation, limit: Tolerance) -> float:
    """The largest of the measures that the gate judges, in units of its bound; NaN counts as infinite."""
    measures = [found.rms / limit.rms, found.max / limit.max, found.row / limit.row if limit.row else 0.0]
    return max(float("inf") if np.isnan(value) else value for value in measures)


def _changes(
    name: str, array: Array, fresh: Array, rng: np.random.Generator
) -> Iterator[tuple[str, Callable[[], Iterable[Array]]]]:
    """What is done to an input."""
    yield f"{name}{REDRAWN}", lambda: [fresh]
    if array.ndim and array.shape[-1] > 1:
        yield f"{name}{REORDERED}", lambda: [array[..., rng.permutation(array.shape[-1])]]
    if array.size > 1:
        yield f"one element of {name}", lambda: _single_changes(array, fresh, rng)


def _single_changes(array: Array, fresh: Array, rng: np.random.Generator) -> Iterator[Array]:
    """The first, the last and some other element replaced by a value of the same law, not by one almost equal."""
    pool = fresh.reshape(-1)[rng.integers(fresh.size, size=16)]
    for place in (0, array.size - 1, *rng.integers(array.size, size=ELEMENTS - 2)):
        changed = array.copy()
        old = float(array.reshape(-1)[place])
        with np.errstate(invalid="ignore"):
            distance = np.abs(pool.astype(np.float64) - old)
        changed.reshape(-1)[place] = pool[int(np.argmax(np.nan_to_num(distance, nan=0.0, posinf=0.0)))]
        yield changed


def _nulls(name: str, truth: Array, stale: Array, inputs: Arrays) -> Iterator[tuple[str, Array]]:
    """(name, output) of kernels that do not look at all of the inputs; those that would be the truth are left out."""
    yield f"zeros as {name}", np.zeros_like(truth)
    yield f"ones as {name}", np.ones_like(truth)
    yield f"the {name} of other inputs", stale
    for other, array in inputs.items():
        if _broadcasts(array.shape, truth.shape):
            yield f"{other} as {name}", np.broadcast_to(array.astype(np.float64), truth.shape)
    rows = _rows(truth)
    known = np.ma.masked_invalid(rows)
    if rows.size > 1:
        yield f"the mean as {name}", np.full(truth.shape, float(np.ma.filled(known.mean(), 0.0)))
    if min(rows.shape) > 1:
        yield f"its row's mean as {name}", _spread(np.ma.filled(known.mean(axis=1, keepdims=True), 0.0), truth)
        yield f"the mean row as {name}", _spread(np.ma.filled(known.mean(axis=0, keepdims=True), 0.0), truth)


def _blemishes(
    name: str, truth: Array, limits: Sequence[Tolerance], rng: np.random.Generator
) -> Iterator[tuple[str, Array]]:
    """The truth 1 % too large, with one row lost, and with one element ten tolerances off."""
    yield f"{name} 1 % too large", truth * 1.01
    rows = _rows(truth)
    with np.errstate(all="ignore"):
        scale = np.sqrt(np.mean(np.square(rows), axis=1))
    known = np.where(np.isfinite(scale), scale, 0.0)
    floor = max(limit.row_floor for limit in limits) * np.sqrt(np.mean(np.square(known)))
    usable = np.flatnonzero((known > 0) & (known >= floor))
    if not usable.size:
        return
    bound = max(limit.max for limit in limits)
    row, column = int(rng.choice(usable)), int(rng.integers(rows.shape[1]))
    lost, off = rows.copy(), rows.copy()
    lost[row] = 0.0
    off[row, column] += 10 * bound * max(scale[row], abs(rows[row, column]))
    yield f"{name} with a row of zeros", lost.reshape(truth.shape)
    yield f"{name} with an element 10 tolerances off", off.reshape(truth.shape)


def _precision(case: Case, inputs: Arrays, dtype: str) -> int:
    """Significant bits that a result may rightly have: of its own type, or of the coarsest input where that has fewer.
    (A wide accumulator over narrow inputs is only as exact as the operator says.)"""
    return min(BITS[kind] for kind in (dtype, *(case.dtypes[name] for name in inputs)) if kind in FLOATS)


def _rounded(name: str, truth: Array, precision: int) -> Iterator[tuple[str, Array]]:
    for dtype, bits in LOWER.items():
        if bits < precision:
            yield f"{name} rounded to {dtype}", _significant(truth, bits)


def _least(actual: Array, truth: Array, limits: Sequence[Tolerance]) -> float:
    """In units of the most lenient tolerance."""
    return min(excess(deviation(actual, truth, limit.row_floor), limit) for limit in limits)


def _store(array: Array, dtype: str) -> Array:
    """As a kernel stores it."""
    with np.errstate(all="ignore"):
        return array.astype(numpy_dtype(dtype))


def _significant(array: Array, bits: int) -> Array:
    """Rounded to so many significant bits, ties to even."""
    fraction, exponent = np.frexp(array)
    rounded: Array = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return rounded


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1] if array.ndim else 1)


def _spread(rows: Array, truth: Array) -> Array:
    return np.broadcast_to(rows, _rows(truth).shape).reshape(truth.shape)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _elements(operator: Operator, case: Case) -> int:
    return sum(int(np.prod(shape)) for shape in buffer_shapes(operator, case).values())


def _rng(case: Case, law: str, what: str) -> np.random.Generator:
    return np.random.default_rng([SEED, *(zlib.crc32(part.encode()) for part in (case.name, law, what))])

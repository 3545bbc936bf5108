"""An operator's filters: for `evo doctor --operator`, and for `evo run`, which refuses a gate that proves nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from evo.app.stand import choose_target, find_target, stand
from evo.app.telling import Say
from evo.errors import EvoError, TargetError, UsageError
from evo.fitness.filters import Examination, Filter, Probe, examine, weakest_null
from evo.fitness.findings import Finding, Health, look
from evo.operator import Case, Operator
from evo.plugins.manager import Plugins
from evo.wording import count

PART = "operator"
SHOWN = 6  # probes that are written out for each filter
NULLS: Filter = "null kernels"

FIXES: dict[Filter, str] = {
    "null kernels": "tighten tolerance(), or draw inputs under which the truth is no such thing",
    "sensitivity": "tighten tolerance(), or draw inputs under which every element counts",
    "scalars": "give it other values in some cases, and inputs under which it matters",
    "finite truth": "draw inputs that the float64 reference can take, or mend the reference",
    "rounded truth": "loosen tolerance(): a perfect kernel must pass",
}


def refuse_weak_gate(operator: Operator, cases: Sequence[Case]) -> None:
    """Raises `UsageError` when a null kernel passes the operator's gate: no number of such a run would mean anything.

    Takes well under a second: the smallest cases of every combination of dtypes.
    """
    found = weakest_null(operator, cases)
    if found is not None:
        raise UsageError(
            f"the gate of operator {operator.name!r} lets a kernel pass that does not do the work: {found} "
            f"(it must be above 1)",
            fix=f"{FIXES[NULLS]}; see: evo doctor --operator {operator.name}",
        )


def operator_findings(plugins: Plugins, operator: Operator, target: str, say: Say) -> list[Finding]:
    """The filters on the host; where the target has a device also the oracle and the zoo of hostile kernels."""
    try:
        place, _, _ = choose_target(plugins, target)
        idle = ""
    except TargetError as error:
        place, idle = find_target(plugins, "sm_90" if target == "auto" else target), error.what
    cases = [case for case in operator.cases(place.name) if case.group != "holdout"]
    say(f"trying null kernels on {operator.name}'s small cases")
    found = look(PART, "filters", lambda: filter_findings(examine(operator, cases)))
    if idle or not operator.seeds(place.name):
        why = idle or f"no seed for target {place.name!r}"
        return [*found, Finding(PART, "oracle and zoo", Health.SKIPPED, why)]
    found += look(PART, "oracle", lambda: oracle_findings(plugins, operator, place.name, say))
    return found + look(PART, "zoo", lambda: zoo_findings(plugins, operator, place.name, say))


def filter_findings(seen: Examination) -> Iterator[Finding]:
    """One finding for each filter."""
    if not seen.cases:
        fix = "give the operator cases of group `check`, and neighbours"
        yield Finding(PART, "small cases", Health.PROBLEM, "none: nothing is checked against the reference", fix)
        return
    for name, fix in FIXES.items():
        probes = [probe for probe in seen.probes if probe.filter == name]
        if probes:
            left = (
                f"; no time for {seen.left} of {count(seen.cases, 'case')}"
                if name == "sensitivity" and seen.left
                else ""
            )
            finding = _summary(name, probes, fix)
            yield replace(finding, seen=finding.seen + left)


def _summary(name: Filter, probes: Sequence[Probe], fix: str) -> Finding:
    """The worst outcome decides; its probes are written out. Exceptions are counted: see `evo.fitness.filters`."""
    by = {kind: [p for p in probes if p.outcome == kind] for kind in ("problem", "warning", "exception")}
    state = Health.PROBLEM if by["problem"] else Health.WARNING if by["warning"] else Health.OK
    faults = sorted(by["problem"] or by["warning"], key=lambda probe: probe.margin)
    seen = f"{len(faults)} of {len(probes)} are too weak" if faults else f"{len(probes)} hold"
    decisive = [p for p in probes if p.outcome == "ok" and p.filter != "finite truth"]
    if decisive and not faults:
        closest = (max if name == "rounded truth" else min)(decisive, key=lambda probe: probe.margin)
        seen += f", the closest: {closest}"
    if by["exception"]:
        seen += f"; right by nature: {_few([str(p) for p in by['exception']], 2)}"
    return Finding(PART, name, state, seen, fix if faults else "", tuple(map(str, faults[:SHOWN])))


def _few(items: Sequence[str], most: int) -> str:
    return "; ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


def oracle_findings(plugins: Plugins, operator: Operator, target: str, say: Say) -> Iterator[Finding]:
    """The oracle against the float64 reference on the device, as before every run."""
    if operator.oracle(target) is None:
        yield Finding(PART, "oracle", Health.OK, "none: the float64 reference is the truth everywhere")
        return
    try:
        with stand(plugins, operator.name, target, ()) as here:
            here.calibrate(say, opponents={}, names=())
    except EvoError as error:
        yield Finding(PART, "oracle", Health.PROBLEM, error.what, error.fix)
        return
    yield Finding(PART, "oracle", Health.OK, f"agrees with the float64 reference on {here.facts.name}")


def zoo_findings(plugins: Plugins, operator: Operator, target: str, say: Say) -> Iterator[Finding]:
    """Every hostile kernel must be refused, with the status that it must get."""
    from evo.app.trust.zoo import needed_cases, run_zoo
    from evo.fitness.zoo import members

    animals = [animal for animal in members(operator, target) if not animal.slow]
    if not animals:
        yield Finding(PART, "zoo", Health.SKIPPED, "no member can be made for this operator and target")
        return
    with stand(plugins, operator.name, target, needed_cases(animals, _smallest(operator, target))) as here:
        judged = [each for each in run_zoo(here, animals, say) if not each.ok]
    known = {animal.name for animal in animals if animal.escape}
    lines = [f"{each.member}: {each.message}" for each in judged]
    wrong = f"{len(judged)} not judged as they must be" if judged else "each judged as it must be"
    seen, fix = f"{count(len(animals), 'hostile kernel')}, {wrong}", ""
    state = Health.OK
    if judged:
        state = Health.WARNING if {each.member for each in judged} <= known else Health.PROBLEM
        fix = "a kernel that cheats like these would be believed: read a winner's source before you trust it"
    yield Finding(PART, "zoo", state, seen, fix, tuple(lines[:SHOWN]))


def _smallest(operator: Operator, target: str) -> tuple[str, ...]:
    """The smallest tuned case: the zoo asks whether evo notices, not how fast the kernels are."""
    tuned = [case for case in operator.cases(target) if case.group == "tune"]
    smallest = min(tuned, key=lambda case: operator.cost(case).bytes_read)
    return (smallest.name,)

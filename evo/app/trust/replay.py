"""`evo replay`: does a certificate hold here?

A case holds where the candidate is right and its new interval reaches up to the old one's lower end: it overlaps the
old one, or is better. It does not hold where the candidate is wrong or surely slower, or where the same compiler makes
other machine code. Times compare only on the same model of device, under the same evaluator, operator, protocol and
version of the baseline; anything else cannot be compared, and is shown only when asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from evo.app.provenance import evaluator_hash, operator_hash
from evo.app.stand import Stand, choose_target, stand
from evo.app.telling import Say
from evo.app.trust.certificate_file import read_certificate
from evo.app.trust.certificates import build_of, genome_opponents, opponents, planned
from evo.app.trust.certify import measured
from evo.certificate import Certificate, CertifiedCase, Opponent, Outcome, Replay, ReplayedCase
from evo.errors import TargetError, UnknownNameError
from evo.fitness.clock import UNSTABLE
from evo.operator import Operator
from evo.plugins.manager import Plugins
from evo.records import BLAMELESS, Candidate, CaseResult, DeviceFacts, Evaluation, Status, Timing


def replay(file: Path, *, target: str = "", force: bool = False, say: Say = lambda message: None) -> Replay:
    """Builds, checks and times anew what the certificate says, as often as it says. Raises `UsageError` for a file that
    is no certificate, and where its operator is not installed."""
    certificate = read_certificate(file)
    plugins = Plugins.load()
    try:
        operator = plugins.operator(certificate.operator)
    except UnknownNameError as error:
        error.fix = f"install the plugin that brings it; {error.fix}"
        raise
    name = target or certificate.target
    try:
        place, facts, _ = choose_target(plugins, name)
    except TargetError as error:
        return _unmeasured(certificate, (error.what,))
    reasons = incomparable(certificate, operator, facts)
    known = {case.name for case in operator.cases(place.name)}
    wanted = tuple(case.case for case in _measured_cases(certificate) if case.case in known)
    if not wanted or (reasons and not force):
        return _unmeasured(certificate, reasons or ("the operator has none of its cases here",))
    with stand(plugins, operator.name, place.name, wanted, certificate.protocol) as here:
        cases = _measure(certificate, here, say)
    if reasons:
        cases = tuple(replace(case, outcome=Outcome.INCOMPARABLE, why=case.why or "see above") for case in cases)
    return _replay(certificate, cases, reasons, facts.name)


def incomparable(certificate: Certificate, operator: Operator, facts: DeviceFacts) -> tuple[str, ...]:
    """What keeps every number from being compared here."""
    pairs = {
        "target": (certificate.target, facts.target),
        "device": (certificate.device.name, facts.name),
        "evaluator": (certificate.evaluator_hash, evaluator_hash()),
        "operator": (certificate.operator_hash, operator_hash(operator, facts.target)),
    }
    return tuple(f"another {what}: {now} here, {was} there" for what, (was, now) in pairs.items() if was != now)


def verdict(case: CertifiedCase, timing: Timing) -> tuple[Outcome, str]:
    """Of a case that is right, timed under the same conditions."""
    was = case.measurement
    assert was is not None  # only measured cases are replayed
    width = (math.log(timing.high) - math.log(timing.low)) / 2 if 0 < timing.low < math.inf else math.inf
    if width > UNSTABLE:
        return Outcome.INCOMPARABLE, f"the ratio is known only to +-{width:.0%} here"
    if timing.high < was.low:
        return Outcome.FAILS, "surely slower"
    return Outcome.HOLDS, "better" if timing.low > was.high else ""


def _measured_cases(certificate: Certificate) -> list[CertifiedCase]:
    return [case for case in certificate.cases if case.measurement]


def _measure(certificate: Certificate, here: Stand, say: Say) -> tuple[ReplayedCase, ...]:
    """Against the certificate's own opponents, case by case."""
    named = {case.opponent.name for case in _measured_cases(certificate) if case.opponent}
    library = {baseline.name: baseline.missing() for baseline in here.operator.baselines(here.target.name)}
    files = {name: genome for name, genome in genome_opponents(here).items() if name in named}
    present = tuple(sorted(name for name in named if library.get(name) == "" or name in files))
    found = opponents(here, here.calibrate(say, files, present)) if present else {}
    missing = _missing(certificate, here, found, library)
    yardsticks = {
        case.case: case.opponent.name
        for case in _measured_cases(certificate)
        if case.opponent and case.case not in missing
    }
    if not yardsticks:
        return tuple(_row(case, Outcome.INCOMPARABLE, missing[case.case]) for case in _measured_cases(certificate))
    mine = certificate.candidate
    candidate = Candidate(
        mine.id, certificate.operator, certificate.target, mine.species, mine.suffix, mine.source, mine.values
    )
    members = dict.fromkeys(here.timed, candidate)
    (evaluation,) = measured(here, yardsticks, members, certificate.sessions, certificate.pairs, say)
    return _rows(certificate, here, candidate, evaluation, missing)


def _missing(
    certificate: Certificate, here: Stand, found: Mapping[str, Mapping[str, Opponent]], library: Mapping[str, str]
) -> dict[str, str]:
    """By case, why its opponent is not there or not the same."""
    known = {case.name for case in here.cases}
    reasons: dict[str, str] = {}
    for case in _measured_cases(certificate):
        was = case.opponent
        now = found.get(was.name, {}).get(case.case) if was else None
        if case.case not in known:
            reasons[case.case] = "the operator has no such case here"
        elif was is None or (was.name not in found):
            name = was.name if was else "?"
            reasons[case.case] = (
                f"baseline {name} is missing: {library.get(name) or 'the operator has none of that name'}"
            )
        elif now is None:
            reasons[case.case] = f"baseline {was.name} fails on this case here"
        elif now.version != was.version:
            reasons[case.case] = f"another version of baseline {was.name}: {now.version} here, {was.version} there"
    return reasons


def _rows(
    certificate: Certificate, here: Stand, candidate: Candidate, evaluation: Evaluation, missing: Mapping[str, str]
) -> tuple[ReplayedCase, ...]:
    results = {result.case: result for result in evaluation.cases}
    job, same_tools = planned(here, candidate), here.target.toolchain() == certificate.toolchain
    rows = []
    for case in _measured_cases(certificate):
        result = results.get(case.case)
        if case.case in missing:
            rows.append(_row(case, Outcome.INCOMPARABLE, missing[case.case]))
            continue
        if result is None or result.timing is None or result.status is not Status.OK:
            others = {each.case for each in _measured_cases(certificate)} - {case.case}
            rows.append(_failure(case, result, evaluation, others))
            continue
        outcome, why = verdict(case, result.timing)
        build = build_of(job, evaluation.builds, result)
        same = build.code_hash == case.code_hash if same_tools and build is not None else None
        if same is False:
            outcome, why = Outcome.FAILS, "the same compiler makes other machine code"
        timing = result.timing
        now = (timing.ratio, timing.low, timing.high)
        rows.append(replace(_row(case, outcome, why), time_us=timing.time_us, now=now, same_code=same))
    return tuple(rows)


def _failure(case: CertifiedCase, result: CaseResult | None, evaluation: Evaluation, others: set[str]) -> ReplayedCase:
    """A case without a time: by its own fault or that of a small check, of a build; or since one of the `others`, which
    are replayed too, ended the evaluation."""
    mine = result if result is not None and result.status is not Status.OK else None
    status = mine.status if mine else evaluation.status
    diagnosis = (mine.diagnosis if mine else None) or evaluation.diagnosis
    other = diagnosis.case if diagnosis and mine is None and diagnosis.case in others else ""
    if status is Status.OK:
        return _row(case, Outcome.INCOMPARABLE, "not timed here")
    why = f"{status}{f': {diagnosis.message}' if diagnosis else ''}"
    if other:
        return _row(case, Outcome.INCOMPARABLE, f"not reached: {other} ended in {status}")
    return _row(case, Outcome.INCOMPARABLE if status in BLAMELESS else Outcome.FAILS, why)


def _row(case: CertifiedCase, outcome: Outcome, why: str) -> ReplayedCase:
    was = case.measurement
    assert was is not None  # only measured cases are replayed
    opponent = case.opponent.name if case.opponent else ""
    return ReplayedCase(case.case, outcome, why, opponent, was.time_us, (was.ratio, was.low, was.high))


def _unmeasured(certificate: Certificate, reasons: tuple[str, ...]) -> Replay:
    cases = tuple(_row(case, Outcome.INCOMPARABLE, "not measured") for case in _measured_cases(certificate))
    return _replay(certificate, cases, reasons, "")


def _replay(certificate: Certificate, cases: tuple[ReplayedCase, ...], reasons: tuple[str, ...], on: str) -> Replay:
    """Holds only if every case does; one that does not is enough for all."""
    outcomes = {case.outcome for case in cases}
    outcome = Outcome.FAILS if Outcome.FAILS in outcomes else Outcome.INCOMPARABLE
    if outcomes == {Outcome.HOLDS} and not reasons:
        outcome = Outcome.HOLDS
    return Replay(
        outcome, certificate.digest, certificate.operator, certificate.candidate.id, certificate.protocol,
        certificate.device.name, on, cases, reasons,
    )  # fmt: skip

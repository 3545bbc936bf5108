"""Certificates, made from an evaluation over several sessions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from evo import certificate as records
from evo import codec, ids
from evo.app.provenance import device_facts, evaluator_hash, operator_hash, versions
from evo.app.stand import Stand
from evo.app.trust.certificate_file import medians, seal, source_hash, summarise
from evo.certificate import SCHEMA, Certificate, CertifiedCase, Elsewhere, Measurement, Opponent
from evo.fitness.calibration import Calibration
from evo.fitness.job import Job, plan_job
from evo.fitness.statistics import sessions_interval
from evo.genome import Genome, machine_id
from evo.operator import Case, Operator
from evo.records import Build, Candidate, CaseResult, Evaluation, Proposal, Purpose, Status, Timing

DIGITS = 6  # significant ones of a sample


@dataclass(frozen=True, slots=True)
class Terms:
    """How it was measured, and the command that asks for the same again."""

    command: str
    sessions: int
    pairs: int
    sanitizer: tuple[str, ...] | None = None


# --- making


def make_certificate(
    here: Stand, terms: Terms, candidate: Candidate, calibration: Calibration, evaluation: Evaluation
) -> Certificate:
    """Of an evaluation that is ok. Every tune case of the operator is listed, and the hold-outs that were asked for."""
    job = planned(here, candidate)
    known = opponents(here, calibration)
    results = {result.case: result for result in evaluation.cases}
    asked = {case.name: case for case in here.cases if case.group != "check"}
    listed = {case.name: case for case in here.operator.cases(here.target.name) if case.group == "tune"} | asked
    cases = tuple(
        _case(case, results.get(name), name in asked, job, evaluation.builds, known) for name, case in listed.items()
    )
    facts, used = here.facts, {case.code_hash for case in cases}
    timed = {case.case for case in cases if case.measurement}
    protocol = ", ".join(sorted({r.timing.protocol for r in evaluation.cases if r.timing}))
    options = codec.plain(next(iter(job.requests.values())).options)  # of the candidate, so of all its builds
    return seal(Certificate(
        schema=SCHEMA, created=datetime.now(UTC).isoformat(timespec="seconds"), command=terms.command,
        operator=here.operator.name, operator_version=here.operator.version,
        operator_hash=operator_hash(here.operator, here.target.name), evaluator_hash=evaluator_hash(),
        target=here.target.name,
        device=records.Device(
            facts.name, facts.target, here.target.arch, facts.sms, facts.memory_bytes, device_facts(facts)
        ),
        toolchain=here.target.toolchain(), versions=versions(facts),
        protocol=protocol, sessions=terms.sessions, pairs=terms.pairs,
        candidate=records.Genome(
            candidate.id, candidate.species, candidate.suffix, candidate.source, source_hash(candidate.source),
            candidate.values,
        ),
        code=tuple(_code(build, options) for build in evaluation.builds if build.code_hash in used),
        checks={name: r.deviation for name, r in results.items() if r.deviation and name not in listed},
        cases=cases, summary=summarise(cases), sanitizer=terms.sanitizer,
        recorded=elsewhere(here.operator, here.target.name, facts.name, protocol, timed),
    ))  # fmt: skip


def elsewhere(
    operator: Operator, target: str, device: str, protocol: str, cases: Collection[str]
) -> tuple[Elsewhere, ...]:
    """What the operator has on record of these cases, by this protocol and on a device of this name."""
    return tuple(
        Elsewhere(entry.opponent, entry.case, entry.time_us, entry.provenance)
        for entry in operator.recorded(target)
        if entry.case in cases and entry.protocol == protocol and device in entry.provenance
    )


def planned(here: Stand, candidate: Candidate) -> Job:
    """The candidate's launch plans and build requests by case."""
    genome = Genome.parse(candidate.source, candidate.suffix)
    job = Job(Proposal(ids.new_id(), "", candidate), Purpose.CERTIFY, genome, here.cases, frozenset(here.timed))
    plan_job(job, here.operator, here.facts, here.target.arch)
    return job


def build_of(job: Job, builds: Sequence[Build], result: CaseResult) -> Build | None:
    """The build that a case ran, known by its machine identity."""
    if result.case not in job.plans:
        return None
    plan, options = job.plans[result.case], job.requests[result.case].options
    return next((build for build in builds if machine_id(build, plan, options) == result.machine_id), None)


def _case(
    case: Case,
    result: CaseResult | None,
    asked: bool,
    job: Job,
    builds: Sequence[Build],
    known: Mapping[str, Mapping[str, Opponent]],
) -> CertifiedCase:
    group: Literal["tune", "holdout"] = "holdout" if case.group == "holdout" else "tune"
    if result is None:
        why = "nothing came of it" if asked else "not asked for"
        return CertifiedCase(case.name, group, "not_measured", why)
    if result.status is not Status.OK:
        why = result.diagnosis.message if result.diagnosis else "no reason given"
        return CertifiedCase(case.name, group, result.status, why)
    if result.timing is None:
        return CertifiedCase(
            case.name, group, "not_measured", "no baseline passes this case", deviation=result.deviation
        )
    build = build_of(job, builds, result)
    return CertifiedCase(
        case.name, group, Status.OK, "", build.code_hash if build else "", result.machine_id,
        job.plans[case.name], known[result.timing.opponent][case.name], result.deviation,
        _measurement(result.timing),
    )  # fmt: skip


def opponents(here: Stand, calibration: Calibration) -> dict[str, dict[str, Opponent]]:
    """By name and case, everyone that was timed."""
    files = genome_opponents(here)
    found: dict[str, dict[str, Opponent]] = {}
    for report in calibration.reports:
        version = report.version
        if not version and report.name in files:
            version = f"source {source_hash(files[report.name].canonical)[:12]}"
        settings = report.configuration
        found[report.name] = {case: Opponent(report.name, version, settings.get(case, "")) for case in report.times_us}
    return found


def genome_opponents(here: Stand) -> dict[str, Genome]:
    """Genome files that may be somebody's yardstick, by the names that calibration gives them."""
    files = here.operator.genome_baselines(here.target.name)
    named = {name: Genome.read(path) for name, path in files.items()}
    return named | {f"seed:{genome.species}": genome for genome in here.seeds()}


def _measurement(timing: Timing) -> Measurement:
    """Every number but the roofline follows from the rounded samples, so that a reader can work it out again."""
    pairs = iter([(rounded(one), rounded(other)) for one, other in timing.samples])
    sessions = tuple(tuple(next(pairs) for _ in range(count)) for count in timing.sessions)
    interval = sessions_interval(sessions)
    every = [pair for session in sessions for pair in session]
    time_us, opponent_us = medians(every)
    return Measurement(
        time_us=time_us, opponent_us=opponent_us,
        ratio=interval.ratio, low=interval.low, high=interval.high, level=timing.level, pairs=len(every),
        light_us=rounded(timing.light_us), method=timing.method,
        clocks={name: rounded(value) for name, value in timing.clocks.items()}, samples=sessions,
        opponent_rms=timing.opponent_rms,
    )  # fmt: skip


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _code(build: Build, options: Mapping[str, bool | int | str]) -> records.Code:
    kernels: list[Mapping[str, int | str]] = [
        {
            "name": kernel.name, "registers": kernel.registers, "spill_bytes": kernel.spill_bytes,
            "stack_bytes": kernel.stack_bytes, "shared_bytes": kernel.shared_bytes,
        }
        for kernel in build.kernels
    ]  # fmt: skip
    return records.Code(build.code_hash, build.key, options, tuple(kernels))

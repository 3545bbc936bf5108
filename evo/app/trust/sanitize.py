"""`evo sanitize`: compute-sanitizer on one candidate, from a genome file or an archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from evo import ids
from evo.app.single import build_all, gene_values, read_genome
from evo.app.stand import choose_target, select_cases
from evo.archive import Archive
from evo.errors import UsageError
from evo.fitness.cuda.sanitizer import TOOLS, SanitizerReport, small_cases
from evo.fitness.cuda.sanitizer import sanitize as run_sanitizer
from evo.fitness.job import InvalidGenome, Job, plan_job
from evo.fitness.tasks import Subject
from evo.genome import Genome, make_candidate
from evo.operator import Operator
from evo.plugins.manager import Plugins
from evo.records import Candidate, DeviceFacts, Proposal, Purpose
from evo.target import Target

SUFFIXES = (".cu", ".ptx", ".cpp")


def sanitize(
    identity: str,
    *,
    target: str = "auto",
    genes: Mapping[str, str] | None = None,
    cases: Sequence[str] = (),
    tools: Sequence[str] = (),
    limit_s: float = 120.0,
    archive: str = "evo.db",
) -> SanitizerReport:
    """Builds a candidate and runs it under the tools (all by default) on its smallest cases, or on those that `cases`
    names. `identity`: a genome file, or the id of an archive's candidate or its beginning."""
    subject, operator, facts = built(identity, target, genes or {}, cases, archive)
    known = {case.name: case for case in operator.cases(facts.target)}
    named = [known[name] for name in subject.builds if name in known] if cases else None
    if named is None and not small_cases(subject, operator, facts):
        raise UsageError("none of the candidate's cases is small enough", fix="name one with --case; it will be slow")
    return run_sanitizer(subject, operator, facts, named, tools=tuple(tools) or TOOLS, limit_s=limit_s)


def built(
    identity: str, target: str, genes: Mapping[str, str], cases: Sequence[str], archive: str
) -> tuple[Subject, Operator, DeviceFacts]:
    """A CUDA candidate by genome file or id, built for `cases` or for all that count, and the device that is here.

    Raises `UsageError`.
    """
    plugins = Plugins.load()
    if identity.endswith(SUFFIXES):
        genome, candidate = read_genome(Path(identity)), None
    else:
        with Archive.open(archive, create=False, readonly=True) as store:
            candidate = store.candidate(identity)
        genome = Genome.parse(candidate.source, candidate.suffix)
    operator = plugins.operator(genome.operator)
    place, facts, _ = choose_target(plugins, candidate.target if candidate else target)
    if place.name == "cpu":
        raise UsageError("NVIDIA's tools are for CUDA kernels", fix="name a target such as --target sm_90")
    candidate = candidate or make_candidate(operator.name, place.name, genome, gene_values(genome, genes))
    return _built(genome, candidate, operator, place, facts, cases).subject(), operator, facts


def _built(
    genome: Genome, candidate: Candidate, operator: Operator, target: Target, facts: DeviceFacts, names: Sequence[str]
) -> Job:
    """Raises `UsageError` for a candidate that does not build."""
    cases = select_cases(operator, target.name, names)
    job = Job(Proposal(ids.new_id(), "", candidate), Purpose.FINAL, genome, cases, frozenset(c.name for c in cases))
    try:
        failed = build_all(job, plan_job(job, operator, facts, target.arch), facts)
    except InvalidGenome as error:
        raise UsageError(f"the candidate cannot be used: {error}") from error
    if failed is not None:
        why = failed.diagnosis.message if failed.diagnosis else str(failed.status)
        raise UsageError(f"the candidate does not build: {why}", fix="`evo check` says more")
    return job

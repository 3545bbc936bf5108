"""`evo certify`: a candidate measured anew in several fresh processes, and all that its numbers depend on."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from evo import ids
from evo.app.provenance import versions, yardstick_hash
from evo.app.single import gene_values, read_genome
from evo.app.stand import Stand, stand
from evo.app.telling import Say, of_sessions
from evo.app.trust.certificates import Terms, make_certificate
from evo.archive import Archive, RunRecord
from evo.certificate import Certificate
from evo.errors import RunError, UsageError
from evo.fitness.evaluator import Evaluator
from evo.fitness.sessions import measure
from evo.genome import Genome, make_candidate
from evo.plugins.manager import Plugins
from evo.records import BLAMELESS, Candidate, Evaluation, Purpose, Status
from evo.wording import count

GENOMES = (".cu", ".ptx", ".cpp")
LEAST_SESSIONS, LEAST_PAIRS = 3, 4


@dataclass(frozen=True, slots=True)
class Order:
    """What to certify, and how. `identity`: a candidate of the archive, by unique prefix, or a genome file."""

    identity: str
    archive: str = "evo.db"
    target: str = "auto"
    genes: Mapping[str, str] | None = None
    cases: tuple[str, ...] = ()
    sessions: int = 5
    pairs: int = 40  # of each session
    protocol: str = ""  # "": the target's own
    sanitizer: tuple[str, ...] | None = None  # findings of a sanitizer's run, for the certificate

    def command(self) -> str:
        words = ["evo", "certify", self.identity]
        words += [word for item in (self.genes or {}).items() for word in ("--gene", "=".join(item))]
        words += [word for pattern in self.cases for word in ("--case", pattern)]
        words += ["--sessions", str(self.sessions), "--pairs", str(self.pairs)]
        return shlex.join([*words, *(["--protocol", self.protocol] if self.protocol else [])])


def certify(order: Order, say: Say = lambda message: None) -> Certificate:
    """Measures and certifies. Raises `UsageError` for what cannot be certified, `RunError` when it fails now.

    What is from the archive is filed there, with purpose `certify`, whatever becomes of it.
    """
    expect_enough(order)
    plugins = Plugins.load()
    with ExitStack() as stack:
        genome, values, archive, candidate = _subject(order, stack)
        target = candidate.target if candidate else target_of(genome, order.target)
        here = stack.enter_context(stand(plugins, genome.operator, target, order.cases, order.protocol))
        if not here.timed:
            raise UsageError("--case names only small check cases, of which none is timed", fix="name a timed case")
        candidate = candidate or make_candidate(
            here.operator.name, here.target.name, genome, gene_values(genome, values)
        )
        calibration = here.calibrate(say)
        run, began = ids.new_id(), time.time()
        members = dict.fromkeys(here.timed, candidate)
        (evaluation,) = measured(here, calibration.yardsticks, members, order.sessions, order.pairs, say, run)
        if archive is not None:
            _file(archive, here, order, evaluation, began)
        expect_success(evaluation)
        terms = Terms(order.command(), order.sessions, order.pairs, order.sanitizer)
        return make_certificate(here, terms, candidate, calibration, evaluation)


def measured(
    here: Stand, yardsticks: Mapping[str, str], members: Mapping[str, Candidate], sessions: int, pairs: int, say: Say,
    run: str = "",
) -> list[Evaluation]:  # fmt: skip
    """Each candidate on the cases that name it, every session in a fresh process."""
    say(f"{sessions} sessions of {pairs} pairs")
    evaluator = Evaluator(
        here.executor, here.operator, here.target, here.cases, yardsticks, run=run, protocol=here.protocol
    )
    return asyncio.run(
        measure(evaluator, members, Purpose.CERTIFY, pairs, lambda done: done >= sessions, of_sessions(say, sessions))
    )


# --- the subject


def _subject(order: Order, stack: ExitStack) -> tuple[Genome, Mapping[str, str], Archive | None, Candidate | None]:
    """The genome, gene values given with it, and where it is from."""
    path = Path(order.identity)
    if path.suffix in GENOMES or path.is_file():
        return read_genome(path), order.genes or {}, None, None
    if order.genes:
        raise UsageError("the genes of an archived candidate are fixed", fix="leave --gene out, or name a genome file")
    archive = stack.enter_context(Archive.open(order.archive, create=False))
    candidate = archive.candidate(order.identity)
    status = archive.known(candidate.operator, candidate.target).get(candidate.id)
    if status is not None and status not in {Status.OK, *BLAMELESS}:
        raise UsageError(
            f"candidate {candidate.id[:12]} ended in {status} when it was last evaluated: there is nothing to certify",
            fix=f"evo archive show {candidate.id[:10]} says why",
        )
    if order.target not in ("auto", candidate.target):
        raise UsageError(f"candidate {candidate.id[:12]} is for target {candidate.target!r}, not {order.target!r}")
    return Genome.parse(candidate.source, candidate.suffix), {}, archive, candidate


def expect_enough(order: Order) -> None:
    if order.sessions < LEAST_SESSIONS or order.pairs < LEAST_PAIRS:
        raise UsageError(
            f"{count(order.sessions, 'session')} of {count(order.pairs, 'pair')}: too few for a certificate",
            fix=f"at least {LEAST_SESSIONS} sessions of {LEAST_PAIRS} pairs",
        )


def target_of(genome: Genome, target: str) -> str:
    return "cpu" if target == "auto" and genome.suffix == ".cpp" else target


def expect_success(evaluation: Evaluation) -> None:
    if evaluation.status is not Status.OK:
        diagnosis = evaluation.diagnosis
        where = f" in {diagnosis.case}" if diagnosis and diagnosis.case else ""
        why = f": {diagnosis.message}" if diagnosis else ""
        raise RunError(
            f"not certified: candidate {evaluation.candidate[:12]} ended in {evaluation.status}{where}{why}",
            fix="end other work on this machine, or measure more --pairs" if evaluation.status in BLAMELESS else "",
        )
    if not any(result.timing and result.status is Status.OK for result in evaluation.cases):
        raise RunError(
            "not certified: no case could be timed", fix="evo baselines lists the opponents and what they need"
        )


def _file(archive: Archive, here: Stand, order: Order, evaluation: Evaluation, began: float) -> None:
    """Files the evaluation as a run of its own, without hold-out cases: searches read the archive."""
    hidden = {case.name for case in here.cases if case.group == "holdout"}
    shown = tuple(result for result in evaluation.cases if result.case not in hidden)
    about = evaluation.diagnosis.case if evaluation.diagnosis else ""
    if about in hidden or not any(result.case in here.timed for result in shown):
        return
    record = RunRecord(
        id=evaluation.run, operator=here.operator.name, target=here.target.name, device=here.facts.id,
        command=order.command(), seed=0, budget="", cases=tuple(c for c in here.timed if c not in hidden),
        yardstick=evaluation.yardstick, evaluator=yardstick_hash(here.operator, here.facts), started_s=began,
        ended_s=time.time(), state="done", versions=versions(here.facts),
    )  # fmt: skip
    with archive.batch():
        archive.record_device(here.facts)
        archive.start_run(record)
        archive.file(replace(evaluation, cases=shown), None)

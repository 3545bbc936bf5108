"""`evo archive minimise`: takes out of a winner, edit by edit back toward its ancestor, whatever does not pay."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evo.app.stand import Stand, stand
from evo.app.telling import Say
from evo.archive import Archive, lineage
from evo.engine.reduction import Reduction, Variant, Weighed, Worth
from evo.errors import RunError, UsageError
from evo.fitness.evaluator import Evaluator
from evo.fitness.sessions import measure
from evo.genome import Genome, make_candidate, objection, uncovered, with_defaults
from evo.plugins.manager import Plugins
from evo.records import Candidate, Evaluation, Purpose, Status
from evo.wording import count

WITHOUT = "without"  # the opponent's name: the same candidate without the edit


@dataclass(frozen=True, slots=True)
class Minimised:
    """`edits` in the order in which they were weighed; `total` compares the smallest source with the winner: above 1,
    the smallest is faster. `file` holds it, with its gene values as defaults."""

    candidate: str
    ancestor: str
    edits: tuple[Weighed, ...]
    total: Worth
    lines: int
    lines_before: int
    file: str


def minimise(
    archive: str,
    identity: str,
    *,
    cases: tuple[str, ...] = (),
    sessions: int = 3,
    pairs: int = 16,
    out: Path | None = None,
    say: Say = lambda message: None,
) -> Minimised:
    """Every edit is timed in pairs, with it against without it, at a fixed sample in several fresh processes.

    Raises `UsageError` for a candidate that is its own ancestor, `RunError` when the winner itself is not right now.
    """
    if sessions < 1 or pairs < 4:
        raise UsageError(f"{count(sessions, 'session')} of {count(pairs, 'pair')}", fix="at least 1 session of 4 pairs")
    with Archive.open(archive, create=False, readonly=True) as store:
        winner = store.candidate(identity)
        ancestor = store.candidate(_origin(store, winner))
    reduction = Reduction(ancestor, winner)
    if not reduction.edits:
        raise UsageError(f"candidate {winner.id[:12]} is its own ancestor: there is nothing to take out")
    with stand(Plugins.load(), winner.operator, winner.target, cases) as here:
        scale = Scale(here, winner, sessions, pairs)
        edits = reduction.run(scale.weigh, say)
        smallest = reduction.variant([each.edit for each in edits if each.kept])
        whole = reduction.variant(reduction.edits)
        total = Worth() if smallest == whole else scale.weigh(smallest, whole)
    source = with_defaults(smallest.source, smallest.values)
    file = out or Path(f"minimised-{winner.species}-{winner.id[:8]}{winner.suffix}")
    try:
        file.write_text(source, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}", fix="name a file with --out") from error
    return Minimised(
        winner.id, ancestor.id, tuple(edits), total, len(smallest.source.splitlines()),
        len(winner.source.splitlines()), str(file),
    )  # fmt: skip


def _origin(store: Archive, winner: Candidate) -> str:
    """The ancestor that has no parents, along first parents; of the winner's own species, where sources differ."""
    nodes = {node.candidate: node for node in lineage(store, winner.id, depth=10_000)}
    name = winner.id
    while nodes[name].parents and nodes[name].parents[0] in nodes:
        name = nodes[name].parents[0]
    return name


class Scale:
    """Weighs a variant against another on one stand."""

    def __init__(self, here: Stand, winner: Candidate, sessions: int, pairs: int) -> None:
        self._here, self._winner = here, winner
        self._sessions, self._pairs = sessions, pairs

    def weigh(self, variant: Variant, without: Variant) -> Worth:
        """What `variant` gains over `without`: in the case where the interval says the most."""
        other = Genome.parse(with_defaults(without.source, without.values), self._winner.suffix)
        calibration = self._here.calibrate(lambda message: None, {WITHOUT: other}, (WITHOUT,))
        report = next(each for each in calibration.reports if each.name == WITHOUT)
        if report.failures:
            case, reason = next(iter(report.failures.items()))
            return Worth(case=case, why=f"without it {case} fails: {reason}")
        lost = [case for case in self._covered(variant) if case not in calibration.yardsticks]
        if lost:
            return Worth(case=lost[0], why=f"without it {lost[0]} is not covered")
        evaluation = self._measured(variant, calibration.yardsticks)
        found = [
            Worth(timing.ratio, timing.low, timing.high, result.case)
            for result in evaluation.cases
            if (timing := result.timing) and result.status is Status.OK
        ]
        if not found:
            raise RunError("no case could be timed", fix="see whether the machine is quiet, then try again")
        return max(found, key=lambda worth: worth.low)

    def _covered(self, variant: Variant) -> list[str]:
        genome = Genome.parse(variant.source, self._winner.suffix)
        values = genome.values({name: value for name, value in variant.values.items() if name in genome.genes})
        if objection(genome, values, self._here.facts):
            return []
        timed = [case for case in self._here.cases if case.name in self._here.timed]
        return [
            case.name for case in timed if not uncovered(genome, self._here.operator, case, values, self._here.facts)
        ]

    def _measured(self, variant: Variant, yardsticks: Mapping[str, str]) -> Evaluation:
        here = self._here
        genome = Genome.parse(variant.source, self._winner.suffix)
        candidate = make_candidate(here.operator.name, here.target.name, genome, variant.values)
        evaluator = Evaluator(here.executor, here.operator, here.target, here.cases, yardsticks, protocol=here.protocol)
        members = dict.fromkeys(self._covered(variant), candidate)
        (evaluation,) = asyncio.run(
            measure(evaluator, members, Purpose.FINAL, self._pairs, lambda done: done >= self._sessions)
        )
        if evaluation.status is not Status.OK:
            why = evaluation.diagnosis.message if evaluation.diagnosis else ""
            raise RunError(f"the candidate itself ended in {evaluation.status}: {why}", fix="evo check says more")
        return evaluation

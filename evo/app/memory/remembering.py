"""What a run takes from the archive at its start, and leaves there at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evo.app.memory.effects import case_facts
from evo.archive import Archive, lessons
from evo.archive.learning import Learned, learn
from evo.engine.advice import advised
from evo.engine.pitfalls import Pitfalls
from evo.engine.problem import Problem
from evo.errors import ArchiveError
from evo.genome import Genome
from evo.lesson import Kind
from evo.operator import Operator
from evo.records import Candidate
from evo.report.lessons import learned_line
from evo.wording import count

ELITES, LEAST_ELITES = 24, 4  # of earlier runs that a new run looks at again
LESSONS = 500  # of each kind, the weightiest


@dataclass(frozen=True)
class Memory:
    """Candidates to begin with, what was tried before, and what to pass over; a fresh run has none of it."""

    candidates: Sequence[Candidate] = ()
    known: Mapping[str, str] = field(default_factory=dict)
    pitfalls: Pitfalls = field(default_factory=Pitfalls)


def remembered(
    archive: Archive, problem: Problem, seeds: Sequence[Genome], evaluator: str, evaluations: int = 0
) -> Memory:
    """Elites of the same operator and target; seeds with what was faster, here or elsewhere; known pitfalls.

    `evaluations`: the run's budget of them, 0 where unknown; elites take a fifth of a small one.
    """
    operator, target = problem.operator.name, problem.target
    limit = min(ELITES, max(LEAST_ELITES, evaluations // 5)) if evaluations else ELITES
    elites = [elite.candidate for elite in archive.elites(operator, target, limit=limit)]
    known = archive.known(operator, target, evaluator)
    with archive.reading() as connection:
        gains = lessons.listed(connection, kinds=(Kind.EFFECT,), limit=LESSONS)
        failures = lessons.listed(connection, operator, target, kinds=(Kind.PITFALL,), limit=LESSONS)
    new = [candidate for candidate in advised(problem, seeds, gains) if candidate.id not in known]
    return Memory([*elites, *new], known, Pitfalls(operator, target, failures))


def learned(archive: Archive, operator: Operator, target: str, pitfalls: Pitfalls) -> list[str]:
    """Learns from all that the archive holds now; what that changed, for the run's report."""
    notes = []
    if len(pitfalls):
        passed_over = count(pitfalls.passed_over, "drawn candidate was", "drawn candidates were")
        notes.append(f"{count(len(pitfalls), 'known pitfall')}: {passed_over} passed over")
    try:
        change = learn(archive, operator.name, target, case_facts(operator, target))
    except ArchiveError as error:  # the run's result stands, and `evo lessons learn` can be called any time
        return [*notes, f"no lessons were learned: {error.what}"]
    return [*notes, f"lessons: {learned_line(change)}"] if change != Learned() else notes

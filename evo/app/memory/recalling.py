"""Lessons of earlier runs for a swarm, and what a swarm learns for later ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import text

from evo.archive import Archive, lessons
from evo.archive.learning import record_hypothesis, test_hypothesis
from evo.engine.problem import Problem
from evo.lesson import Evidence, Kind, Scope
from evo.mutators.agents.directions import Direction
from evo.mutators.agents.fence import clean

TOKENS = 1200
CLAIM = 400  # characters
_EVALUATIONS = text(
    "SELECT id FROM evaluation WHERE run = :run AND candidate >= :low AND candidate < :high ORDER BY filed_s LIMIT 1"
)


class Memories:
    """The door of one run. Every lesson that a model states is one of a historian: tentative until evidence comes."""

    def __init__(self, archive: Archive, problem: Problem, run: str) -> None:
        self._archive = archive
        self._operator, self._target = problem.operator.name, problem.target
        self._run = run

    def recall(self, job: int, about: str) -> str:
        """What to bear in mind, a line each."""
        with self._archive.reading() as connection:
            found = lessons.relevant(connection, self._operator, self._target, about, budget_tokens=TOKENS)
        return "\n".join(lessons.line(lesson) for lesson in found)

    def learn(self, items: Sequence[Mapping[str, Any]]) -> None:
        """A historian's lessons; one without a claim, or without evidence of this run, is none."""
        for item in items:
            claim, cited = item.get("claim"), item.get("evidence")
            if not isinstance(claim, str) or not isinstance(cited, list):
                continue
            found = [name for prefix in cited[:16] if isinstance(prefix, str) and (name := self._evaluation(prefix))]
            cases = item.get("cases")
            family = " ".join(clean(cases).split())[:80] if isinstance(cases, str) else ""
            line = " ".join(clean(claim).split())[:CLAIM]
            if found and line:
                self._note(f"{line} ({family})" if family else line, Kind.NOTE, 0, [(name, True) for name in found])

    def tested(self, direction: Direction) -> None:
        """A planner's hypothesis whose tries are used up, with what each of them showed."""
        claim = " ".join(clean(f"{direction.hypothesis} {direction.change} Predicted: {direction.effect}").split())
        self._note(claim[:CLAIM], Kind.HYPOTHESIS, 1, direction.evidence)

    def _note(self, claim: str, kind: Kind, direction: int, evidence: Sequence[tuple[str, bool]]) -> None:
        scope = Scope(self._operator, self._target)
        lesson = record_hypothesis(self._archive, claim, scope=scope, direction=direction, author="swarm", kind=kind)
        for evaluation, supports in evidence:
            test_hypothesis(self._archive, lesson.id, Evidence(evaluation, supports))

    def _evaluation(self, prefix: str) -> str:
        """The first evaluation in this run of the candidate whose id starts so; "" where there is none."""
        prefix = prefix.strip().lower()
        if len(prefix) < 6 or not all(letter in "0123456789abcdef" for letter in prefix):
            return ""
        with self._archive.reading() as connection:
            row = {"run": self._run, "low": prefix, "high": prefix + "g"}
            return str(connection.execute(_EVALUATIONS, row).scalar() or "")

"""What a swarm has seen in its run, bounded, and the texts that prompts are filled with."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evo.mutators.agents import evidence
from evo.mutators.agents.fence import clip
from evo.mutators.agents.jobs import Job
from evo.mutators.agents.prompts import manual
from evo.mutators.agents.worker import template_values
from evo.mutators.base import Parent
from evo.operator import Case, Operator
from evo.records import Candidate, DeviceFacts, Evaluation

EVALUATIONS = 512  # that are kept, without their raw samples
LINES = 32  # parents whose failures are kept
FAILURES, DUPLICATES, VERDICTS = 4, 8, 24  # of a line, of the run, for the historian

Recall = Callable[[int, str], str]  # lessons for a job's number and a text that says what it is about


def nothing_recalled(job: int, about: str) -> str:
    """Where there is no memory."""
    return ""


class Knowledge:
    """Evidence by candidate. Names no case but those that count: hold-out cases are not there to be told."""

    def __init__(self, operator: Operator, cases: Sequence[Case], facts: DeviceFacts) -> None:
        self.allowed = frozenset(case.name for case in cases)
        secret = {case.name for case in operator.cases(facts.target) if case.group == "holdout"}
        self.hidden = frozenset(secret - self.allowed)  # a user may have named one
        self.always: Mapping[str, Any] = {
            "contract": evidence.contract_text(operator),
            "cases": evidence.cases_text(operator, cases),
            "device": evidence.device_text(facts),
            "manual": manual(facts.target),
            "notes": operator.notes(),
        }
        self._evaluations: dict[str, Evaluation] = {}
        self._failures: dict[str, list[str]] = {}  # by parent
        self.duplicates: deque[str] = deque(maxlen=DUPLICATES)
        self.recent: deque[str] = deque(maxlen=DUPLICATES)  # failures of the run
        self.counters: dict[str, str] = {}  # what a profiler counted, by candidate
        self.verdicts: list[str] = []  # since the historian last read them

    def remember(self, evaluation: Evaluation) -> None:
        """Keeps what prompts may tell of a candidate; the oldest goes first."""
        self._evaluations.pop(evaluation.candidate, None)
        cases = tuple(
            replace(case, timing=replace(case.timing, samples=())) if case.timing else case for case in evaluation.cases
        )
        self._evaluations[evaluation.candidate] = replace(evaluation, cases=cases)
        while len(self._evaluations) > EVALUATIONS:
            del self._evaluations[next(iter(self._evaluations))]

    def fail(self, parent: str, idea: str, what: str) -> None:
        """A variant of `parent` failed, or never became one."""
        text = f"- {idea or 'a variant'}: {clip(what, 150)}"
        lines = self._failures.pop(parent, [])
        self._failures[parent] = [*lines, text][-FAILURES:]
        self.recent.append(text)
        while len(self._failures) > LINES:
            del self._failures[next(iter(self._failures))]

    def failures(self, parent: str) -> str:
        return "\n".join(self._failures.get(parent, []))

    def diagnosis(self, candidate: Candidate, evaluation: Evaluation) -> str:
        """What went wrong with a candidate, for its repair."""
        return evidence.failure_text(evaluation, candidate.source, self.allowed, self.hidden)

    def note(self, job: Job, idea: str, candidate: Candidate, evaluation: Evaluation, gain: float) -> None:
        """A verdict for the historian."""
        reason = evaluation.diagnosis
        told = reason is not None and reason.case not in self.hidden
        why = reason.message if reason and told else evidence.times_text(evaluation, self.allowed)
        about = f"direction {job.direction}; " if job.direction else ""
        parent = job.parent.candidate[:8] if job.parent else "-"
        text = (
            f"- candidate {candidate.id[:8]} ({about}parent {parent}): {idea}\n"
            f"  {evaluation.status}, gain {gain:+.4f}; {why[:1200]}"
        )
        self.verdicts = [*self.verdicts, text][-VERDICTS:]

    def parent_values(self, parent: Parent, rival: Parent | None = None) -> dict[str, str]:
        """What templates call `parent` and `mate`."""
        found = self._evaluations.get(parent.candidate)
        return {
            "id": parent.candidate,
            "species": parent.genome.species,
            "source": parent.genome.canonical,
            "genes": evidence.values_text(parent.values),
            "times": evidence.times_text(found, self.allowed) if found else self._scores(parent),
            "builds": evidence.builds_text(found.builds) if found else "",
            "counters": self.counters.get(parent.candidate, ""),
            "why": self._why(parent, rival) if rival else "",
        }

    def _scores(self, parent: Parent) -> str:
        return evidence.scores_text(parent.scores, self.allowed) if parent.scores else ""

    def _why(self, parent: Parent, rival: Parent) -> str:
        """The cases in which it is ahead of the other."""
        ahead = {
            case: score for case, score in parent.scores.items()
            if case not in rival.scores or score > rival.scores[case]
        }  # fmt: skip
        return evidence.scores_text(ahead, self.allowed) if ahead else "it is another structure"

    def brief(self, **values: Any) -> Mapping[str, Any]:
        """Everything that a template may name."""
        return template_values(**self.always, duplicates="\n".join(self.duplicates), **values)

    def elites(self, elites: Sequence[Parent]) -> str:
        return "\n".join(evidence.elite_text(elite, self.allowed) for elite in elites)

    def state(self) -> dict[str, Any]:
        """What cannot be had from the run's evaluations."""
        return {
            "failures": self._failures, "duplicates": list(self.duplicates), "recent": list(self.recent),
            "verdicts": self.verdicts,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        self._failures = {parent: list(lines) for parent, lines in state["failures"].items()}
        self.duplicates = deque(state["duplicates"], maxlen=DUPLICATES)
        self.recent = deque(state["recent"], maxlen=DUPLICATES)
        self.verdicts = list(state["verdicts"])

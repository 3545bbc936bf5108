"""evo's own faults: tried again once, and an end of the run when nothing else comes.

A fault is nobody's to begin with: a worker that somebody killed says nothing of the candidate that it had. One that is
met twice is set apart (`quarantined`): still not held against it, but a candidate that eats all memory, so that the
system kills every worker that has it, comes to an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evo.errors import RunError
from evo.records import Proposal, State, Status, Verdict

FAULTS_IN_A_ROW = 12  # without one verdict that says something about a candidate


class Retries:
    """Sorts verdicts into those that count and proposals to be evaluated again."""

    def __init__(self) -> None:
        self._tried: set[str] = set()  # proposal ids whose first try failed; each leaves with its second verdict
        self._faults = 0

    def sort(self, verdicts: Sequence[Verdict]) -> tuple[list[Verdict], list[Proposal]]:
        """Verdicts to file, and proposals to start again.

        Raises `RunError` when evo itself fails again and again: then there is no point in going on.
        """
        final: list[Verdict] = []
        again: list[Proposal] = []
        for verdict in verdicts:
            fault = verdict.evaluation.status is Status.EVALUATOR_ERROR
            self._faults = self._faults + 1 if fault else 0
            if self._faults >= FAULTS_IN_A_ROW:
                raise _fault(verdict)
            if fault and verdict.proposal.id not in self._tried:
                self._tried.add(verdict.proposal.id)
                again.append(verdict.proposal)
            else:
                self._tried.discard(verdict.proposal.id)
                final.append(replace(verdict, state=State.QUARANTINED) if fault else verdict)
        return final, again


def _fault(verdict: Verdict) -> RunError:
    diagnosis = verdict.evaluation.diagnosis
    why = f"{diagnosis.stage}: {diagnosis.message}" if diagnosis else "no diagnosis"
    return RunError(
        f"the evaluator itself failed {FAULTS_IN_A_ROW} times in a row, last with {why}",
        fix="candidates are not to blame; what was measured is archived, and `evo resume` goes on from there",
    )

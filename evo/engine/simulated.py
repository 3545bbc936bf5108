"""An evaluator that answers from a formula, at once: for tests of searches and mutators and for the engine's benchmark.

Everything it says is marked as simulated, as device, yardstick and protocol.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from evo.engine.evaluator import Heard
from evo.ids import new_id
from evo.records import (
    Candidate,
    CaseResult,
    Diagnosis,
    Evaluation,
    Proposal,
    Purpose,
    Stage,
    Status,
    Timing,
    Verdict,
)

SIMULATED = "simulated"
YARDSTICK_US = 100.0

Formula = Callable[[Candidate, str], float | None]


class SimulatedEvaluator:
    """Verdicts come in the order of the starts, all that are in flight at a time.

    Args:
        cases: names.
        formula: the ratio of a candidate in a case; None where it does not cover it.
        capacity: proposals that it takes at a time.
        error: half-width of the interval of the log ratio.
        run: id that finals are filed under.
    """

    def __init__(
        self, cases: Sequence[str], formula: Formula, *, capacity: int = 4, error: float = 0.002, run: str = ""
    ) -> None:
        self.run = run
        self.cases = tuple(cases)
        self.formula = formula
        self.capacity = capacity
        self.error = error
        self.judged: list[str] = []  # candidate ids, oldest first
        self._flight: deque[Proposal] = deque()

    def room(self) -> int:
        return self.capacity - len(self._flight)

    def start(self, proposal: Proposal, rivals: Mapping[str, float]) -> None:
        self._flight.append(proposal)

    async def finished(self, timeout_s: float) -> list[Verdict]:
        await asyncio.sleep(0)
        proposals = list(self._flight)
        self._flight.clear()
        return [self.verdict(proposal) for proposal in proposals]

    def in_flight(self) -> int:
        return len(self._flight)

    def cancel(self) -> None:
        self._flight.clear()

    async def finals(
        self, members: Mapping[str, Candidate], enough: Callable[[int], bool], heard: Heard
    ) -> list[Evaluation]:
        """A formula has no sessions: it says the same in each."""
        evaluations = []
        for candidate in {candidate.id: candidate for candidate in members.values()}.values():
            cases = [case for case, member in members.items() if member.id == candidate.id]
            evaluations.append(self.evaluate(self.run, candidate, cases, Purpose.FINAL))
        return evaluations

    def verdict(self, proposal: Proposal) -> Verdict:
        """What it makes of one proposal."""
        return Verdict(proposal, self.evaluate(proposal.run, proposal.candidate, self.cases, Purpose.SEARCH))

    def evaluate(self, run: str, candidate: Candidate, cases: Sequence[str], purpose: Purpose) -> Evaluation:
        """A candidate's evaluation on some cases; invalid_genome when it covers none of them."""
        results = tuple(self._case(candidate, case) for case in cases)
        covered = any(result.status is Status.OK for result in results)
        return Evaluation(
            new_id(), run, candidate.id, purpose, SIMULATED, SIMULATED, Status.OK if covered else Status.INVALID_GENOME,
            None if covered else Diagnosis(Stage.PLAN, "no case is covered"), (), results,
        )  # fmt: skip

    def _case(self, candidate: Candidate, case: str) -> CaseResult:
        ratio = self.formula(candidate, case)
        if ratio is None:
            return CaseResult(case, Status.UNCOVERED)
        spread = math.exp(self.error)
        timing = Timing(
            SIMULATED, SIMULATED, YARDSTICK_US / ratio, YARDSTICK_US, ratio, ratio / spread, ratio * spread, 0.95, 1,
            "fixed",
        )  # fmt: skip
        return CaseResult(case, Status.OK, timing=timing)

"""A real evaluator on a real device for tests: the whole way from a genome text to its evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from evo.app.stand import Stand, stand
from evo.fitness.evaluator import Evaluator
from evo.genome import Genome, make_candidate
from evo.plugins.manager import Plugins
from evo.records import Candidate, Evaluation, Purpose, Value


class Rig:
    """Judges genome texts of one operator on one device, checking only (no clock)."""

    def __init__(self, here: Stand) -> None:
        self.stand = here
        here.calibrate(lambda message: None, opponents={}, names=())
        self.evaluator = Evaluator(here.executor, here.operator, here.target, here.cases, {})

    def judge(self, text: str, suffix: str, values: dict[str, Value] | None = None) -> Evaluation:
        genome = Genome.parse(text, suffix)
        return self.judge_candidate(
            make_candidate(self.stand.operator.name, self.stand.target.name, genome, values or {})
        )

    def judge_raw(self, text: str, suffix: str) -> Evaluation:
        """Without parsing first, as a proposal that some author sent."""
        operator, target = self.stand.operator.name, self.stand.target.name
        return self.judge_candidate(Candidate("0" * 64, operator, target, "?", suffix, text, {}))

    def judge_candidate(self, candidate: Candidate) -> Evaluation:
        return asyncio.run(self.evaluator.judge(candidate, Purpose.FINAL, frozenset(self.stand.timed)))


@contextmanager
def rig(operator: str, target: str, *cases: str) -> Iterator[Rig]:
    with stand(Plugins.load(entry_points=False), operator, target, cases) as here:
        yield Rig(here)

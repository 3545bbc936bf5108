"""What one job of the swarm is given and what comes of it: values only, fixed when the job starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from evo.mutators.base import Draft, Parent

Kind = Literal["planner", "writer", "repair", "crossover", "historian"]
Mode = Literal["edits", "whole", "off"]

FRUITLESS = 20  # answers in a row without anything usable, until a model gets an easier task, then none


@dataclass(frozen=True, slots=True)
class Job:
    """`values` fill the template of its kind. Nothing that happens after its start changes what a job asks."""

    number: int
    kind: Kind
    arm: str  # the model
    values: Mapping[str, Any]
    parent: Parent | None = None  # that drafts are made of; planner and historian have none
    mates: tuple[str, ...] = ()
    mode: Mode = "edits"
    direction: str = ""
    attempt: int = 1  # of the line: 1 for a new idea, then repairs
    reviewer: str = ""  # the model that reviews; "": none
    memory: str = ""
    island: int | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that has ended. Without a draft `problem` says why, unless the job's answer was a list."""

    job: Job
    draft: Draft | None = None
    items: tuple[Any, ...] = ()  # a planner's directions, a historian's lessons
    idea: str = ""
    problem: str = ""
    answers: int = 0  # of the author, until one could be used; 0: none came
    tokens: int = 0
    usd: float = 0.0  # of unknown prices an assumption that is only good for comparing arms
    spent: bool = False  # the budget had no room


@dataclass(frozen=True, slots=True)
class Options:
    """How thorough agents are.

    `answers`: that a writer may give until its edits fit. `own_reviews`: of its own answer. `repairs`: of a candidate
    that failed.
    """

    answers: int = 3
    own_reviews: int = 1
    review: bool = True
    repairs: int = 2
    plan: bool = True
    history: bool = True
    slots: int = 4  # jobs in flight, of each model
    max_tokens: int = 16_384
    approve_plan: bool = False


@dataclass
class Tally:
    """What an arm did, for the report and for falling back."""

    jobs: int = 0
    drafts: int = 0  # candidates that were new
    known: int = 0  # proposals that were known already, by either identity
    judged: int = 0
    right: int = 0
    gain: float = 0.0
    tokens: int = 0
    mode: Mode = "edits"
    fruitless: int = 0  # answers in a row without a source that can be used
    problem: str = ""  # the last one

    def fall_back(self, arm: str) -> str:
        """An easier task after `FRUITLESS` answers: whole files instead of edits, then nothing. Gives the note."""
        whole = self.mode == "edits"
        self.mode, self.fruitless = ("whole", 0) if whole else ("off", 0)
        then = "it is asked for whole files now" if whole else "it is not asked any more: genes only"
        last = self.problem.replace("\n", " ")[:200]
        return f"{arm}: nothing that could be used in {FRUITLESS} answers in a row, last: {last}; {then}"

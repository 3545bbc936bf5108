"""What the archive hands out beside the shared records: frozen, typed, never ORM rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from evo.records import Author, Candidate, Evaluation, Proposal, Purpose, State, Status, Values

RunState = Literal["running", "done", "stopped", "failed"]
Seen = Literal["killed", "collecting"]  # of a run that was left "running"; never filed


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. `evaluator` names all that a verdict depends on beside the candidate: hashes of gate and clock, of the
    operator, and of the device's kind. `cases` are those searched; times of day are seconds since the epoch."""

    id: str
    operator: str
    target: str
    device: str
    command: str
    seed: int
    budget: str
    cases: tuple[str, ...]
    yardstick: str
    evaluator: str
    started_s: float
    ended_s: float | None = None
    state: RunState | Seen = "running"
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Elite:
    """A candidate worth starting from, with its ratio by case and their geometric mean."""

    candidate: Candidate
    ratios: Mapping[str, float]
    score: float
    status: Status


@dataclass(frozen=True, slots=True)
class TopRow:
    """A candidate's place in the ranking, by the evaluation that says most about it (see `evo.archive.top`).

    `case` is the one asked for, else the candidate's best; `ratio`, `low`, `high`, `time_us` and `protocol` are of that
    case. `score` is the geometric mean over the `covered` ok cases.
    """

    candidate: str
    species: str
    operator: str
    target: str
    values: Values
    score: float
    covered: int
    case: str
    ratio: float
    low: float
    high: float
    time_us: float
    protocol: str
    yardstick: str
    purpose: Purpose
    evaluator: str
    run: str
    evaluation: str
    evaluated_s: float


@dataclass(frozen=True, slots=True)
class BoardCount:
    """A board that a ranking does not show, and how many evaluations it ranks."""

    operator: str
    target: str
    evaluator: str
    yardstick: str
    protocol: str
    evaluations: int


@dataclass(frozen=True, slots=True)
class ProposalView:
    proposal: Proposal
    state: State
    created_s: float
    lease_until_s: float | None = None
    duplicate_of: str = ""


@dataclass(frozen=True, slots=True)
class PromptUse:
    """A call of a language model in the job that a candidate came of. `prompt` is the request's digest."""

    exchange: str
    run: str
    job: int
    step: int
    role: str
    model: str
    prompt: str
    tokens_in: int
    tokens_out: int
    usd: float | None


@dataclass(frozen=True, slots=True)
class Shown:
    """All about one thing. `kind` says what `id` is.

    A candidate comes with all its proposals and evaluations, a proposal and an evaluation with those that belong to
    them. A run comes with its record, how many evaluations had which status, and its best rows.
    """

    kind: Literal["candidate", "evaluation", "proposal", "run"]
    id: str
    candidate: Candidate | None = None
    proposals: tuple[ProposalView, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    run: RunRecord | None = None
    statuses: Mapping[str, int] = field(default_factory=dict)
    top: tuple[TopRow, ...] = ()
    prompts: tuple[PromptUse, ...] = ()


@dataclass(frozen=True, slots=True)
class LineageNode:
    """An ancestor (or at depth 0 the candidate itself), by the proposal that first brought it in.

    `status` is that of the evaluation that covers most (of equals, of the strongest purpose), "" when there is none;
    `score` is None unless that was ok; `purpose` is that evaluation's.
    `gain`: how much faster than the best of its parents, over the cases that both were timed in on one board; None
    where there is none. `changes`: what it has other than its first parent.
    """

    candidate: str
    parents: tuple[str, ...]
    species: str
    score: float | None
    status: Status | Literal[""]
    depth: int
    author: Author
    gain: float | None = None
    changes: tuple[str, ...] = ()
    purpose: Purpose | Literal[""] = ""

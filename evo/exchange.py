"""What goes to a language model and what comes back: frozen, typed, JSON-able, and free of keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Finish = Literal["stop", "length", "refused", "empty", "error"]


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """One call. The model is the provider's to know; `max_tokens` bounds the answer, thoughts included."""

    system: str
    messages: tuple[Message, ...]
    max_tokens: int = 16_384
    temperature: float | None = None  # None: the model's default


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the service counted them. `cached` is part of `input`, `reasoning` part of `output`."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    estimated: bool = False  # the service told nothing: counted from the lengths of the texts

    @property
    def total(self) -> int:
        return self.input + self.output


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request. `error` says why where `finish` is "error" or "refused"."""

    text: str
    finish: Finish = "stop"
    usage: Usage = field(default_factory=Usage)
    attempts: int = 1  # requests that it took, retries included
    error: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One row of the archive. `job` and `step` number a run's jobs and the calls of each, from 1.

    `usd` is None where the price is not known; `charged_usd` is what a budget was charged then and otherwise. `digest`
    is that of the request: equal prompts have equal ones.
    """

    id: str
    run: str
    job: int
    step: int
    role: str  # planner, writer, reviewer, repair, crossover, historian
    model: str  # as the user named it: "anthropic:MODEL"
    request: Request
    reply: Reply
    digest: str
    usd: float | None
    charged_usd: float
    started_s: float
    seconds: float
    memory: str = ""  # what was recalled from earlier runs for this job, kept with its first call


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run's job: the candidate that came of it, or why none did."""

    run: str
    job: int
    kind: str  # the role that it was for
    model: str
    direction: str = ""
    candidate: str = ""  # id
    idea: str = ""
    problem: str = ""

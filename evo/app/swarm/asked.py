"""What ask and tell exchange with the outside: plain, frozen, JSON-able. The shapes are pinned by a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from evo.records import BLAMELESS, Diagnosis, Evaluation, State, Status, Timing, Values

SCHEMA = 1
AskKind = Literal["mutation", "crossover", "repair"]


@dataclass(frozen=True, slots=True)
class CaseView:
    """What is known of a candidate in one case; zeros where it was not timed. `ratio` above 1: faster than the
    yardstick. `light_share`: roofline time over its own."""

    status: Status
    time_us: float = 0.0
    yardstick_us: float = 0.0
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    light_share: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class ParentView:
    """A candidate to start from. `cases` is empty where it was not measured yet."""

    id: str
    source: str
    values: Values
    cases: Mapping[str, CaseView]


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to whoever changes sources: what to make of which parents. Nobody else is asked the same before
    `lease_until` (seconds since the epoch); an answer after that counts just as well."""

    schema: int
    ask: str  # id, to be named in the answer
    run: str
    operator: str
    target: str
    kind: AskKind
    parents: tuple[ParentView, ...]
    direction: str
    prompt: str
    lease_until: float


@dataclass(frozen=True, slots=True)
class Told:
    """What became of an answer. State duplicate: it equals the candidate `of`, so nothing new will be evaluated."""

    candidate: str
    state: State
    of: str = ""

    def plain(self) -> dict[str, str]:
        """Without `of` where there is none."""
        said = {"candidate": self.candidate, "state": str(self.state)}
        return said | {"of": self.of} if self.of else said


@dataclass(frozen=True, slots=True)
class Answer:
    """What a candidate came to so far. `status` is "" until it was evaluated."""

    schema: int
    candidate: str
    state: State
    status: Status | Literal[""] = ""
    diagnosis: Diagnosis | None = None
    cases: Mapping[str, CaseView] = field(default_factory=dict)
    of: str = ""

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be waited for."""
        return self.state not in (State.PENDING, State.BUILDING, State.EVALUATING)


def case_views(evaluations: Sequence[Evaluation], names: Iterable[str]) -> dict[str, CaseView]:
    """What the evaluations (oldest first) of one candidate say of the named cases: the newest word on each that is no
    fault of evo's own."""
    wanted, found = list(names), dict[str, CaseView]()
    for evaluation in evaluations:
        for result in evaluation.cases:
            if result.case in wanted and not (result.status in BLAMELESS and result.case in found):
                why = result.diagnosis.message if result.diagnosis else ""
                found[result.case] = _view(result.status, result.timing, why)
    return {name: found[name] for name in wanted if name in found}


def _view(status: Status, timing: Timing | None, why: str) -> CaseView:
    if timing is None:
        return CaseView(status, why=why)
    light = timing.light_us / timing.time_us if timing.light_us and timing.time_us else 0.0
    return CaseView(status, timing.time_us, timing.opponent_us, timing.ratio, timing.low, timing.high, light, why)


def ask_json(ask: Ask) -> dict[str, Any]:
    """The pinned object; a case has only what is known of it."""
    from evo import codec

    data: dict[str, Any] = codec.plain(ask)
    for parent in data["parents"]:
        parent["cases"] = {name: _known(view) for name, view in parent["cases"].items()}
    return data


def answer_json(answer: Answer) -> dict[str, Any]:
    from evo import codec

    data: dict[str, Any] = codec.plain(answer)
    data["cases"] = {name: _known(view) for name, view in data["cases"].items()}
    return {key: value for key, value in data.items() if value not in ("", None)}


def _known(view: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in view.items() if value not in (0.0, "")}

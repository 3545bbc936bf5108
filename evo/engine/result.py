"""What the engine tells the outside: how far a run is, and what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from evo.records import Values

Phase = Literal["seeds", "search", "finals"]


@dataclass(frozen=True, slots=True)
class Best:
    """The best candidate of one case so far; `ratio` = yardstick time / candidate time, within `low`..`high`."""

    ratio: float
    low: float
    high: float
    time_us: float
    candidate: str  # id
    species: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot for the live view."""

    run: str
    phase: Phase
    evaluated: int
    duplicates: int
    in_flight: int
    rejected: Mapping[str, int]  # by evaluation status
    best: Mapping[str, Best]  # by case; cases that nothing covers are absent
    seconds: float
    left: str
    fraction: float  # of the search's budget, 0 to 1
    message: str = ""
    step: str = ""  # of the finals: what is being measured


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """One row of the final table. A case that no candidate covers has an empty `candidate` and zeros.

    `final`: measured again after the search, free of the winner's curse; otherwise the search's own number.
    """

    case: str
    yardstick_us: float = 0.0
    best_us: float = 0.0
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    light_share: float = 0.0  # roofline time / best time; 0: roofline unknown
    candidate: str = ""  # id
    species: str = ""
    values: Values | None = None
    pairs: int = 0
    final: bool = False
    searched_ratio: float = 0.0  # what the search had measured for the same candidate; 0: nothing
    sessions: int = 0  # fresh processes behind a final number


@dataclass(frozen=True, slots=True)
class HoldoutRow:
    """A winner on a case that the search never saw. `status` other than ok says why there is no time, in `why`."""

    case: str
    candidate: str  # id
    status: str
    why: str = ""
    yardstick: str = ""
    yardstick_us: float = 0.0
    time_us: float = 0.0
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    sessions: int = 0


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """What a mutator or a model did in a run with agents. `gain`: of the portfolio, in ln ratio over the cases."""

    arm: str
    share: float  # of the budget that it should have now
    jobs: int = 0  # models only, as all that follows
    proposals: int = 0
    right: int = 0
    known: int = 0  # proposed before, or the same machine code
    gain: float = 0.0
    calls: int = 0
    tokens: int = 0
    usd: float | None = None  # None: the price is not known


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that a person may rule on; `ruling` is "waiting" until then."""

    run: str
    kind: str  # plan, finalist
    subject: str  # a direction's name, a candidate's id
    text: str
    ruling: Literal["waiting", "approved", "vetoed"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to: the portfolio, and where everything lies."""

    run: str
    operator: str
    target: str
    device: str
    yardstick: str
    cases: tuple[CaseSummary, ...]
    rejected: Mapping[str, int]
    evaluated: int
    duplicates: int
    seconds: float
    winner: str  # path of the winner's genome file; "" when nothing was right
    archive: str  # path or URL
    notes: tuple[str, ...] = ()
    holdout: tuple[HoldoutRow, ...] = ()  # where it was asked for
    arms: tuple[ArmSummary, ...] = ()  # where there were agents

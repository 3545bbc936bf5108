"""What was learned: a claim with its scope, its evidence, and how far it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from evo.records import Values


class Kind(StrEnum):
    EFFECT = "effect"  # what a gene's value does to the speed
    PITFALL = "pitfall"  # what failed again and again, and in the same way
    HYPOTHESIS = "hypothesis"  # what somebody expects; tests support or refute it
    NOTE = "note"  # anything else that a person or a historian wrote down


class Origin(StrEnum):
    MEASURED = "measured"
    HISTORIAN = "historian"
    PERSON = "person"


class Standing(StrEnum):
    """How far a lesson can be relied on; a retired one stays readable, with the reason."""

    SUPPORTED = "supported"
    TENTATIVE = "tentative"
    DISPUTED = "disputed"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a lesson holds; "" is everywhere. `family` is a condition on the cases, such as "N >= 16384"."""

    operator: str = ""
    target: str = ""
    species: str = ""
    family: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """An evaluation that speaks for or against a lesson. `effect`: the log ratio that it contributes, if any."""

    evaluation: str  # id; it may lie in another team's archive
    supports: bool
    effect: float | None = None


@dataclass(frozen=True, slots=True)
class Lesson:
    """One lesson. `effect`, `low` and `high` are natural logarithms of the speed-up (None: not a matter of speed);
    `direction` is the sign of what is claimed, 0 where nothing is.

    `key` names what the lesson is about: two archives that learn the same make one lesson of it. `pairs`: comparisons
    behind the effect, for a pitfall the candidates that failed. `supporting` and `refuting` count the evidence.
    """

    id: str
    kind: Kind
    claim: str
    scope: Scope
    origin: Origin
    standing: Standing
    key: str
    created_s: float
    updated_s: float
    genes: Values = field(default_factory=dict)  # the values that it is about
    direction: int = 0
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    supporting: int = 0
    refuting: int = 0
    author: str = ""
    reason: str = ""  # why it stands as it does


@dataclass(frozen=True, slots=True)
class LessonWithEvidence:
    """What is exported, imported and shown. `here`: by evaluation, the candidate that this archive has for it."""

    lesson: Lesson
    evidence: tuple[Evidence, ...] = ()
    here: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CaseFacts:
    """A case that lessons may come from (never a hold-out): its sizes, the element type of its first tensor, and
    whether it is timed or only gates."""

    dims: Mapping[str, int]
    dtype: str = ""
    timed: bool = True

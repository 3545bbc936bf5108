"""A member of the zoo, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from evo.records import Status, Value


@dataclass(frozen=True, slots=True)
class Member:
    """One hostile or unlucky genome.

    `stage`: where it must be refused; "build" needs no device, "time" needs the clock. `expect` holds every status that
    is legitimate, `why` says so where there are several. Where `ok` is among them the candidate must gain nothing: the
    lower end of its ratio to the honest kernel stays under `gain`. `escape` says why evo cannot refuse it yet.
    """

    name: str
    kind: str
    summary: str
    suffix: str
    source: str = field(repr=False)
    expect: tuple[Status, ...]
    stage: Literal["build", "check", "time"] = "check"
    why: str = ""
    says: str = ""  # the diagnosis holds this text
    cases: tuple[str, ...] = ()  # () : all that the stand has
    values: Mapping[str, Value] = field(default_factory=dict)
    gain: float = 0.0
    slow: bool = False  # takes more than some seconds, so continuous integration leaves it out
    escape: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a member got, against what it must get."""

    member: str
    kind: str
    expected: tuple[Status, ...]
    got: Status
    message: str
    ok: bool
    seconds: float = 0.0
    escape: str = ""  # why evo cannot refuse this member yet

"""How a search's state is written to the archive and read back."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evo.errors import RunError
from evo.records import Author, Candidate, Evaluation, Purpose

VERSION = 1


@dataclass(frozen=True, slots=True)
class Queued:
    """A candidate that waits to be asked for; `island` None: meant for all of them."""

    candidate: Candidate
    author: Author
    island: int | None
    parents: tuple[str, ...] = ()
    note: str = ""

    def dump(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Queued:
        candidate, author = Candidate(**data["candidate"]), Author(**data["author"])
        return cls(candidate, author, data["island"], tuple(data["parents"]), data["note"])


def dump_random(rng: random.Random) -> list[Any]:
    version, words, gauss = rng.getstate()
    return [version, list(words), gauss]


def load_random(rng: random.Random, state: Sequence[Any]) -> None:
    version, words, gauss = state
    rng.setstate((version, tuple(words), gauss))


def expect_version(state: Mapping[str, Any]) -> None:
    """Raises `RunError` when another evo wrote the state."""
    if state.get("version") != VERSION:
        raise RunError(
            f"the run's state has version {state.get('version')!r}, this evo reads {VERSION}",
            fix="start a new run; it begins with what this one archived",
        )


def wanted(state: Mapping[str, Any]) -> set[str]:
    """Ids of the candidates that the populations and the portfolio hold."""
    held = {name for names in state["islands"]["members"] for name in names}
    return held | {name for name, _ in state["portfolio"].values()}


def counts(evaluation: Evaluation) -> bool:
    """Whether an evaluation made its candidate what it is in the search (finals and duplicates do not)."""
    return evaluation.purpose is Purpose.SEARCH and not evaluation.duplicate_of

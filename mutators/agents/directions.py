"""The planner's directions: a graph of hypotheses, each with an effect, a number of tries, and its needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Ruling = Literal["waiting", "approved", "vetoed"]
MOST = 40  # directions of a run
MOST_TRIES = 10
_NAME = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class Direction:
    """`tries` variants may follow it; `gain` is what they brought (sum of ln ratio over the cases)."""

    name: str
    hypothesis: str
    change: str
    effect: str
    tries: int = 3
    after: tuple[str, ...] = ()
    started: int = 0
    judged: int = 0
    right: int = 0
    gain: float = 0.0
    ruling: Ruling = "approved"
    evidence: tuple[tuple[str, bool], ...] = ()  # evaluations, and whether each gained anything

    @property
    def open(self) -> bool:
        return self.started < self.tries and self.ruling != "vetoed"

    def text(self) -> str:
        return f"{self.name}: {self.hypothesis}\nchange: {self.change}\npredicted effect: {self.effect}"

    def outcome(self) -> str:
        """One line, with what became of it so far."""
        state = self.ruling if self.ruling != "approved" else "open" if self.open else "spent"
        return (
            f"{self.name} ({state}): {self.hypothesis} Predicted: {self.effect}. {self.started} of {self.tries} tries"
            f" begun, {self.judged} judged, {self.right} right, gain {self.gain:+.4f} in ln of the speed-ups"
        )


class Directions:
    """A graph without cycles: an edge that would close one is left out when its direction is added."""

    def __init__(self, *, approve: bool = False) -> None:
        self._found: dict[str, Direction] = {}
        self._approve = approve  # whether a person must approve each

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Direction]:
        return iter(self._found.values())

    def get(self, name: str) -> Direction | None:
        return self._found.get(name)

    def add(self, proposals: Sequence[Any]) -> list[Direction]:
        """Takes in what a planner answered, as far as it makes sense; what is no direction is passed over."""
        added: list[Direction] = []
        for proposal in proposals:
            direction = _read(proposal, self._found, "waiting" if self._approve else "approved")
            if direction and len(self._found) < MOST:
                self._found[direction.name] = direction
                added.append(direction)
        for direction in added:  # only now: one may name another that stands below it
            after: list[str] = []
            for name in direction.after:
                if name in self._found and not self._reaches(name, direction.name):
                    after.append(name)
                    self._found[direction.name] = replace(direction, after=tuple(after))
            self._found[direction.name] = replace(direction, after=tuple(after))
        return [self._found[direction.name] for direction in added]

    def _reaches(self, start: str, end: str) -> bool:
        """Whether `end` must come before `start`."""
        todo, seen = [start], set[str]()
        while todo:
            name = todo.pop()
            if name == end:
                return True
            if name not in seen and name in self._found:
                seen.add(name)
                todo += self._found[name].after
        return False

    def next(self) -> Direction | None:
        """The direction that the next variant should follow: of those that are ready the one with the best gain a
        judged try, an untried one first."""
        ready = [d for d in self._found.values() if d.open and d.ruling == "approved" and self._is_ready(d)]
        return max(ready, key=lambda d: d.gain / d.judged if d.judged else float("inf"), default=None)

    def _is_ready(self, direction: Direction) -> bool:
        """What must come first has had its tries, and one of them was right; else it waits for what will not come."""
        before = [self._found[name] for name in direction.after]
        return all(d.right or not d.open for d in before)

    def is_open(self) -> bool:
        """Whether any direction may still be followed, now or once a person has approved it."""
        return any(d.open for d in self._found.values())

    def start(self, name: str) -> None:
        if found := self._found.get(name):
            self._found[name] = replace(found, started=found.started + 1)

    def judge(self, name: str, *, right: bool, gain: float, evaluation: str = "") -> None:
        if d := self._found.get(name):
            more = ((evaluation, gain > 0),) if evaluation else ()
            self._found[name] = replace(
                d, judged=d.judged + 1, right=d.right + int(right), gain=d.gain + gain, evidence=d.evidence + more
            )

    def rule(self, name: str, ruling: Ruling) -> None:
        """What a person said. Nothing happens for a direction that is not there."""
        if found := self._found.get(name):
            self._found[name] = replace(found, ruling=ruling)

    def state(self) -> list[dict[str, Any]]:
        return [asdict(direction) for direction in self._found.values()]

    def restore(self, state: Iterable[Mapping[str, Any]]) -> None:
        found = [
            Direction(**{**entry, "after": tuple(entry["after"]), "evidence": _pairs(entry["evidence"])})
            for entry in state
        ]
        self._found = {direction.name: direction for direction in found}


def _read(proposal: Any, known: Mapping[str, Direction], ruling: Ruling) -> Direction | None:
    if not isinstance(proposal, dict):
        return None
    name = _name(proposal.get("name"))
    hypothesis, change = _line(proposal.get("hypothesis")), _line(proposal.get("change"))
    if not name or name in known or not (hypothesis or change):
        return None
    tries = proposal.get("tries")
    tries = tries if isinstance(tries, int) and not isinstance(tries, bool) else 3
    after = proposal.get("after")
    names = tuple(dict.fromkeys(_name(item) for item in after)) if isinstance(after, list) else ()
    effect = _line(proposal.get("effect"))
    return Direction(name, hypothesis, change, effect, max(1, min(MOST_TRIES, tries)), names, ruling=ruling)


def _name(value: Any) -> str:
    return _NAME.sub("-", value.lower()).strip("-")[:40] if isinstance(value, str) else ""


def _line(value: Any) -> str:
    return " ".join(value.split())[:600] if isinstance(value, str) else ""


def _pairs(items: Iterable[Sequence[Any]]) -> tuple[tuple[str, bool], ...]:
    return tuple((name, supports) for name, supports in items)

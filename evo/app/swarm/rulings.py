"""What a person is asked to approve, through the archive: the run goes on meanwhile, or waits as a stopped run does."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal

from evo.archive import Archive
from evo.archive.messages import heard, say
from evo.engine.result import Waiting
from evo.engine.search import Search
from evo.errors import UnknownNameError, UsageError
from evo.mutators.agents.directions import Direction, Ruling

EVERY_S = 1.0  # how often the archive is looked at
What = Literal["approve", "veto"]


class Rulings:
    """A run's side: asks for what waits, and hears what was said."""

    def __init__(self, archive: Archive, run: str) -> None:
        self._archive, self._run = archive, run
        self._directions: Iterable[Direction] = ()
        self._known: dict[str, Ruling] = {}
        self._next_s = 0.0

    def watch(self, directions: Iterable[Direction]) -> None:
        self._directions = directions

    def poll(self) -> list[tuple[str, Ruling]]:
        """Directions on which somebody ruled since the last time."""
        open_ones = [direction for direction in self._directions if direction.ruling == "waiting"]
        if not open_ones or time.monotonic() < self._next_s:
            return []
        self._next_s = time.monotonic() + EVERY_S
        ask(self._archive, self._run, "plan", {direction.name: direction.text() for direction in open_ones})
        names = {direction.name for direction in open_ones}
        found = {item.subject: item.ruling for item in waiting(self._archive, self._run) if item.kind == "plan"}
        return [(name, ruling) for name, ruling in found.items() if name in names and ruling != "waiting"]


def ask(archive: Archive, run: str, kind: str, subjects: dict[str, str]) -> None:
    """Asks for a ruling on each subject, once."""
    there = {(item.kind, item.subject) for item in waiting(archive, run)}
    new = {subject: text for subject, text in subjects.items() if (kind, subject) not in there}
    if new:
        with archive.writing() as connection:
            for subject, text in new.items():
                say(connection, run, "waiting", subject=subject, data={"kind": kind, "text": text})


def waiting(archive: Archive, run: str) -> list[Waiting]:
    """Everything of a run (whole id) that a ruling was asked for, with the last ruling."""
    with archive.reading() as connection:
        messages = heard(connection, run, ("waiting", "approve", "veto"))
    found: dict[str, Waiting] = {}
    for message in messages:
        if message.kind == "waiting":
            data = message.data
            found.setdefault(message.subject, Waiting(run, data["kind"], message.subject, data["text"], "waiting"))
        elif item := found.get(message.subject):
            ruling: Ruling = "approved" if message.kind == "approve" else "vetoed"
            found[message.subject] = Waiting(run, item.kind, item.subject, item.text, ruling)
    return list(found.values())


def rule(archive: str, run: str, subject: str, what: What, reason: str = "") -> Waiting:
    """Approves or vetoes what a run waits for, by its name or a unique beginning of it; `run` "" is the newest run.

    Raises `UnknownNameError` for what is not asked for, `UsageError` for a beginning that several share.
    """
    with Archive.open(archive, create=False) as store:
        items = waiting(store, _run(store, run))
        exact = [item for item in items if item.subject == subject]
        fits = exact or [item for item in items if item.subject.startswith(subject)]
        if not fits:
            raise UnknownNameError("subject", subject, [item.subject for item in items], fix="see: evo approve")
        if len(fits) > 1:
            names = ", ".join(item.subject for item in fits)
            raise UsageError(f"{subject!r} is the beginning of several: {names}", fix="write more of it")
        item = fits[0]
        with store.writing() as connection:
            say(connection, item.run, what, subject=item.subject, data={"reason": reason})
        return Waiting(item.run, item.kind, item.subject, item.text, "approved" if what == "approve" else "vetoed")


def asked_for(archive: str, run: str = "") -> list[Waiting]:
    """What a run (the newest, unless one is named) asks rulings for."""
    with Archive.open(archive, create=False) as store:
        return waiting(store, _run(store, run))


def _run(archive: Archive, run: str) -> str:
    if run:
        return archive.run(run).id
    newest = archive.runs(1)
    if not newest:
        raise UsageError("the archive holds no run", fix="start one: evo run --operator rmsnorm")
    return newest[0].id


def hold_finalists(search: Search, archive: Archive) -> str:
    """Asks for rulings on the finalists; strikes those that were vetoed. Gives what to tell while some still wait."""
    while True:
        finalists = {candidate.id: candidate for candidate in search.portfolio.finalists().values()}
        told = {name: f"{c.species}: {dict(c.values)}" for name, c in finalists.items()}
        ask(archive, search.run, "finalist", told)
        rulings = {item.subject: item.ruling for item in waiting(archive, search.run) if item.kind == "finalist"}
        vetoed = [name for name in finalists if rulings.get(name) == "vetoed"]
        if not vetoed:
            break
        for name in vetoed:
            search.portfolio.strike(name, [m for m in search.islands.everyone() if m.candidate.id != name])
    left = [name[:12] for name in finalists if rulings.get(name) == "waiting"]
    if not left:
        return ""
    return f"finalists wait for a person: `evo approve ID` or `evo veto ID` ({', '.join(left)}), then `evo resume`"

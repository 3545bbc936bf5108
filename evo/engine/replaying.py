"""Takes a search the way that its journal says: answers and verdicts in the order in which the run took them in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from evo.engine.search import Search
from evo.ids import digest
from evo.records import Evaluation, Proposal, State, Verdict


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay. `recorded` and `replayed` are hashes over all decisions, equal where `same`."""

    run: str
    decisions: int
    verdicts: int
    exchanges: int
    same_prompts: int
    other_prompts: tuple[str, ...]  # which ones, and the first line in which each differs
    missing_calls: tuple[str, ...]  # that the record lacks: each was answered with an error
    recorded: str
    replayed: str
    parted: str = ""  # where the ways part first

    @property
    def same(self) -> bool:
        return self.recorded == self.replayed and not self.parted


class Replay:
    """One way, to be gone once.

    Args:
        search: as it was at the start of the run; its swarm holds jobs until they are released.
        proposals: all of the run, oldest first; those that came from outside are named by the journal.
        verdicts: the run's, in order of filing, without finals.
    """

    def __init__(
        self, search: Search, events: Sequence[str], proposals: Sequence[Proposal], verdicts: Iterable[Evaluation]
    ) -> None:
        adopted = {event[1:] for event in events if event.startswith("x")}
        self.recorded = [proposal for proposal in proposals if proposal.id not in adopted]
        self.made: list[Proposal] = []
        self.told = 0
        self.parted = ""  # where the ways part first
        self._search, self._events = search, events
        self._adopted = {proposal.id: proposal for proposal in proposals if proposal.id in adopted}
        self._verdicts = iter(verdicts)

    async def go(self) -> None:
        """To the end of the journal, or to where the ways part."""
        swarm = self._search.swarm
        assert swarm is not None
        for event in self._events:
            if self.parted:
                break
            kind, rest = event[0], event[1:]
            if kind == "a":
                self._asked(await self._search.ask())
            elif kind == "t":
                self._tell(next(self._verdicts, None))
            elif kind == "j":
                await swarm.release(int(rest))
            elif kind == "r":
                swarm.interrupt()
            elif kind == "v":
                name, _, ruling = rest.partition("=")
                swarm.rule(name, "approved" if ruling == "approved" else "vetoed")
            elif kind == "b":
                gene, _, value = rest.partition("=")
                self._search.ban(gene, unquote(value))
            elif kind == "x":
                self._search.adopt(self._adopted[rest])
        await swarm.close()

    def hashes(self) -> tuple[str, str]:
        """Over the decisions recorded and those made, as many as were made."""
        return _hash(self.recorded[: len(self.made)]), _hash(self.made)

    def _asked(self, proposal: Proposal | None) -> None:
        if proposal is None:
            return
        at = len(self.made)
        self.made.append(proposal)
        wanted = self.recorded[at] if at < len(self.recorded) else None
        if wanted is None:
            self.parted = f"decision {at + 1} is not in the record: {_said(proposal)}"
        elif _decision(wanted) != _decision(proposal):
            self.parted = f"decision {at + 1} was {_said(wanted)}, and is {_said(proposal)}"

    def _tell(self, evaluation: Evaluation | None) -> None:
        if evaluation is None:
            self.parted = "the record has fewer verdicts than its journal says"
            return
        proposal = next((p for p in self._search.open() if p.candidate.id == evaluation.candidate), None)
        if proposal is None:
            self.parted = f"a verdict on candidate {evaluation.candidate[:8]}, which was not proposed"
            return
        self.told += 1
        state = State.DUPLICATE if evaluation.duplicate_of else State.DONE
        self._search.tell(Verdict(proposal, evaluation, state))


def _decision(proposal: Proposal) -> str:
    """All of a decision save the ids that are new every time."""
    author = proposal.author
    return json.dumps([proposal.candidate.id, list(proposal.parents), author.kind, author.model, proposal.note])


def _said(proposal: Proposal) -> str:
    return f"{proposal.candidate.species} {proposal.candidate.id[:8]} by {proposal.author.kind} ({proposal.note[:80]})"


def _hash(proposals: Sequence[Proposal]) -> str:
    return digest([_decision(proposal) for proposal in proposals])

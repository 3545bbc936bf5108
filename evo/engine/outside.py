"""What others say to a run while it goes on, through the archive: candidates that were told, bans, and stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from evo.archive.messages import heard, starved
from evo.archive.proposals import load_proposals
from evo.engine.budget import Meter
from evo.engine.search import Search
from evo.records import Proposal, State

if TYPE_CHECKING:
    from evo.archive import Archive

PAUSE_S = 0.5  # between two looks: a look costs two queries
OVERLAP_S = 60.0  # a message may become visible later than one that was said after it
STOPPED = "stopped by `evo stop`"


class Outside:
    """Heeds what is said to one run. To be asked every turn; it looks into the archive now and then."""

    def __init__(
        self, archive: Archive, search: Search, meter: Meter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._archive = archive
        self._search = search
        self._meter = meter
        self._clock = clock
        self._next = -1.0
        self._since_s = 0.0

    def heed(self) -> list[Proposal]:
        """Obeys bans and stop; the told candidates that the search has taken in, to be evaluated like its own."""
        if self._clock() < self._next:
            return []
        self._next = self._clock() + PAUSE_S
        run, now = self._search.run, time.time()
        with self._archive.reading() as connection:
            said = heard(connection, run, ("ban", "stop", "resume"), since_s=self._since_s)
            waiting = set(starved(connection, run)) - {proposal.id for proposal in self._search.open()}
            views = [view for name in sorted(waiting) for view in load_proposals(connection, "id", name)]
        self._since_s = now - OVERLAP_S
        for message in said:
            if message.kind == "ban":
                self._search.ban(message.data["gene"], message.data["value"])
        orders = [message for message in said if message.kind != "ban"]
        if orders and orders[-1].kind == "stop":
            self._meter.stop(STOPPED)
        return [view.proposal for view in views if self._take(view.proposal)]

    def _take(self, proposal: Proposal) -> bool:
        """Whether the search takes it in; one that it has had already is no news."""
        if self._search.adopt(proposal):
            return True
        self._archive.set_state(proposal.id, State.DUPLICATE, duplicate_of=proposal.candidate.id)
        return False

"""What the engine asks of whatever builds, checks and times candidates. It knows neither target nor device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from evo.records import Candidate, Evaluation, Proposal, Verdict

Heard = Callable[[int, Candidate, str], None]  # the session, from 1; who; in which case, "" while it is checked


class Evaluator(Protocol):
    """Owned by one run and used from its event loop only. Never raises for a candidate's fault."""

    def room(self) -> int:
        """How many more proposals it takes now without idling or queueing up."""
        ...

    def start(self, proposal: Proposal, rivals: Mapping[str, float]) -> None:
        """Takes a proposal; `rivals` holds the portfolio's best ratio by case, so that timing stops early behind it."""
        ...

    async def finished(self, timeout_s: float) -> list[Verdict]:
        """The verdicts that came in, in order; waits for the first one, and returns none after the time-out."""
        ...

    def in_flight(self) -> int:
        """How many proposals were started and are not finished."""
        ...

    def cancel(self) -> None:
        """Drops everything in flight; no verdict will come for it."""
        ...

    async def finals(
        self, members: Mapping[str, Candidate], enough: Callable[[int], bool], heard: Heard
    ) -> list[Evaluation]:
        """Measures candidates again, each on the cases that name it, with purpose `final`: in several fresh processes,
        at fixed sample size in each. After each session `enough` is asked, with their number, whether to stop; `heard`
        is told what is measured as it goes on.

        One evaluation for each distinct candidate.
        """
        ...

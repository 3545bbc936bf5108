"""What agents may spend. Calls in flight hold back what they may come to, so that many at once keep within a limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class SpentError(Exception):
    """The budget has no room for this call."""


@dataclass
class Purse:
    """Limits of 0 are none. `usd` counts what a budget is charged: tokens of unknown price at the dearest known one."""

    token_limit: int = 0
    usd_limit: float = 0.0
    tokens: int = 0
    usd: float = 0.0
    held_tokens: int = 0
    held_usd: float = 0.0

    @contextmanager
    def hold(self, tokens: int, usd: float) -> Iterator[None]:
        """Holds back what a call may cost at most while it is in flight. Raises `SpentError`."""
        if not self.affords(tokens, usd):
            raise SpentError("the budget has no room for another call")
        self.held_tokens += tokens
        self.held_usd += usd
        try:
            yield
        finally:
            self.held_tokens -= tokens
            self.held_usd -= usd

    def affords(self, tokens: int, usd: float) -> bool:
        if self.token_limit and self.tokens + self.held_tokens + tokens > self.token_limit:
            return False
        return not (self.usd_limit and self.usd + self.held_usd + usd > self.usd_limit)

    def pay(self, tokens: int, usd: float) -> None:
        self.tokens += tokens
        self.usd += usd

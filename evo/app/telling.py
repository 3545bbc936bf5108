"""What a person is told of long work, by the verbs that print lines."""

from __future__ import annotations

from collections.abc import Callable

from evo.records import Candidate

Say = Callable[[str], None]


def changes(say: Say) -> Say:
    """Passes a message on where it is not the one before: work that goes on is told of every second."""
    before = ""

    def told(message: str) -> None:
        nonlocal before
        if message != before:
            before = message
            say(message)

    return told


def of_sessions(say: Say, sessions: int) -> Callable[[int, Candidate, str], None]:
    """For `measure`: which session it is, and which case."""
    told = changes(say)
    return lambda number, candidate, case: told(f"session {number} of {sessions}: {case or 'checking'}")


def of_case(say: Say, doing: str) -> Callable[[str], None]:
    """For a lone candidate: `doing`, then the case that is timed."""
    told = changes(say)
    return lambda case: told(f"timing {case}" if case else doing)

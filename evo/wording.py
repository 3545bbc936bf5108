"""Numbers in sentences, for whoever writes one: reports, the engine's progress, errors."""

from __future__ import annotations


def count(number: int, what: str, many: str = "") -> str:
    """`1 lesson`, `2 lessons`; `many` where the plural is another."""
    return f"{number} {what if number == 1 else many or what + 's'}"

"""What a provider is, and what all of them share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from evo.exchange import Reply, Request, Usage

ANSWER_BYTES = 4 << 20  # of one response; more is refused while it arrives
CHARACTERS_PER_TOKEN = 3.5  # of source and English, on the safe side


class Provider(Protocol):
    """One model of one service. Safe for many calls at once on one event loop; holds no state of a run."""

    @property
    def name(self) -> str:
        """As the user named it, without keys."""
        ...

    async def complete(self, request: Request) -> Reply:
        """Never raises for what the service does or says: a failure is a reply with finish "error"."""
        ...


def estimate_tokens(text: str) -> int:
    """Roughly, and rather too many than too few."""
    return int(len(text) / CHARACTERS_PER_TOKEN) + 1


def estimate_usage(request: Request, text: str) -> Usage:
    """For a service that does not count."""
    prompt = estimate_tokens(request.system) + sum(estimate_tokens(message.text) for message in request.messages)
    return Usage(input=prompt, output=estimate_tokens(text) if text else 0, estimated=True)


def whole(value: Any) -> int:
    """A count of tokens out of a reply that may hold anything: 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else 0


def first(items: Any) -> dict[str, Any]:
    """The first object of a list out of a reply; an empty one where there is none."""
    return dig(items[0]) if isinstance(items, list) and items else {}


def dig(value: Any, *keys: str) -> dict[str, Any]:
    """The object at a path; an empty one where the reply has another shape."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def texts(parts: Any, wanted: str = "") -> str:
    """The texts of a list of parts joined; `wanted` is the parts' type ("": any that has a text and is no thought)."""
    if isinstance(parts, str):
        return parts
    if not isinstance(parts, list):
        return ""
    found = [
        part.get("text")
        for part in parts
        if isinstance(part, dict) and (not wanted or part.get("type") == wanted) and not part.get("thought")
    ]
    return "".join(text for text in found if isinstance(text, str))


def settled(text: str, finish: str, usage: Usage, *, error: str = "") -> Reply:
    """A reply of a service that answered; one without text is "empty" unless it was cut off or refused."""
    if finish == "refused":
        return Reply(text, "refused", usage, error=error or "the model refused")
    if finish == "length":
        return Reply(text, "length", usage)
    return Reply(text, "stop" if text.strip() else "empty", usage)


def listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(values))

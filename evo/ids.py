"""Names that never collide: time-ordered UUIDs for events, content hashes for things."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import uuid6


def new_id() -> str:
    """A time-ordered UUID (version 7) as text, so that archives merge and rows sort by age."""
    return str(uuid6.uuid7())


def digest(parts: Iterable[str | bytes]) -> str:
    """SHA-256 over parts, each with its length first, so that no two lists of parts read the same."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.hexdigest()

"""Ids by their first characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, text

from evo.errors import UnknownNameError, UsageError

Kind = Literal["candidate", "evaluation", "proposal", "run"]
KINDS: tuple[Kind, ...] = ("candidate", "evaluation", "proposal", "run")
_LISTED = 8  # how many of several matches an error shows
_AFTER = "\U0010ffff"  # sorts behind every character that an id may hold


@dataclass(frozen=True, slots=True)
class Match:
    kind: Kind
    id: str


def find_one(connection: Connection, prefix: str, *, kinds: Sequence[Kind] = KINDS) -> Match:
    """The one thing of these kinds whose id starts with `prefix`; a whole id wins over longer ones.

    Raises `UnknownNameError` for none and `UsageError`, which lists them, for several.
    """
    wanted = prefix.strip().lower()
    what = " or ".join(kinds)
    if not wanted:
        raise UsageError(f"an empty {what} id", fix="give at least the first characters of one")
    found = [match for kind in kinds for match in _matches(connection, kind, wanted)]
    exact = [match for match in found if match.id == wanted]
    if len(exact) == 1 or len(found) == 1:
        return (exact or found)[0]
    if not found:
        newest = [match.id for kind in kinds for match in _newest(connection, kind)]
        listing = "`evo archive runs` lists them" if kinds == ("run",) else "`evo archive top` lists candidates"
        raise UnknownNameError(f"{what} id", prefix, newest, fix=listing)
    listed = "\n  ".join(f"{match.kind:<10}  {match.id}" for match in found[:_LISTED])
    more = "\n  ... and more" if len(found) > _LISTED else ""
    raise UsageError(f"{prefix!r} could be several things", fix=f"give more characters of one of\n  {listed}{more}")


def _matches(connection: Connection, kind: Kind, prefix: str) -> list[Match]:
    query = text(f"SELECT id FROM {kind} WHERE id >= :low AND id < :high ORDER BY id LIMIT {_LISTED + 1}")
    found = connection.execute(query, {"low": prefix, "high": prefix + _AFTER})
    return [Match(kind, row.id) for row in found]


def _newest(connection: Connection, kind: Kind) -> list[Match]:
    """A few ids to show as examples: the newest where ids are ordered by time."""
    found = connection.execute(text(f"SELECT id FROM {kind} ORDER BY id DESC LIMIT 2"))
    return [Match(kind, row.id) for row in found]

"""What is said to a run from outside while it may be going on elsewhere: asks and their answers, bans, stop.

Rows are only ever added, and carry time-ordered UUIDs, so archives merge. `subject` is the id that a message is about:
the proposal of a `tell`, the ask itself of an `ask`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, RowMapping, insert, select, text

from evo.archive.rows import pack_json
from evo.archive.tables import MESSAGE
from evo.ids import new_id

MessageKind = Literal["ask", "tell", "ban", "stop", "resume", "waiting", "approve", "veto"]
_STARVED = text(
    "SELECT p.id FROM proposal p JOIN message m ON m.subject = p.id AND m.kind = 'tell'"
    " WHERE p.state IN ('pending', 'building', 'evaluating')"
    " AND (p.state = 'pending' OR coalesce(p.lease_until_s, 0) < :now) AND :run IN ('', p.run) ORDER BY p.id"
)
_TAKE = text(
    "UPDATE proposal SET state = 'evaluating', lease_until_s = :until WHERE id = :proposal AND (state = 'pending'"
    " OR (state IN ('building', 'evaluating') AND coalesce(lease_until_s, 0) < :now))"
)
_HELD = text("SELECT 1 FROM proposal WHERE id = :proposal AND state = 'evaluating' AND lease_until_s = :until")


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    run: str
    kind: MessageKind
    subject: str
    data: Mapping[str, Any]
    said_s: float


def say(
    connection: Connection, run: str, kind: MessageKind, *, subject: str = "", data: Mapping[str, Any] | None = None
) -> Message:
    """Adds a message to a run (whole id)."""
    message = Message(new_id(), run, kind, subject, dict(data or {}), time.time())
    row = {
        "id": message.id, "run": run, "kind": kind, "subject": subject, "data_json": pack_json(message.data),
        "said_s": message.said_s,
    }  # fmt: skip
    connection.execute(insert(MESSAGE), row)
    return message


def heard(connection: Connection, run: str, kinds: Sequence[MessageKind], *, since_s: float = 0.0) -> list[Message]:
    """What was said to a run since then, oldest first."""
    column = MESSAGE.c
    query = (
        select(MESSAGE)
        .where(column.run == run, column.said_s >= since_s, column.kind.in_(kinds))
        .order_by(column.said_s, column.id)
    )
    return [_message(row) for row in connection.execute(query).mappings()]


def by_id(connection: Connection, message: str) -> Message | None:
    """The message of that whole id, of whatever run."""
    row = connection.execute(select(MESSAGE).where(MESSAGE.c.id == message)).mappings().first()
    return None if row is None else _message(row)


def newest(connection: Connection, kind: MessageKind, limit: int = 2) -> list[str]:
    """The ids of a few, to show as examples."""
    query = select(MESSAGE.c.id).where(MESSAGE.c.kind == kind).order_by(MESSAGE.c.id.desc()).limit(limit)
    return list(connection.execute(query).scalars())


def starved(connection: Connection, run: str = "") -> list[str]:
    """Ids of the proposals that somebody told (to that run, if one is named) and nobody evaluates now, oldest first:
    pending, or with a lease that has run out."""
    return list(connection.execute(_STARVED, {"now": time.time(), "run": run}).scalars())


def take(connection: Connection, proposal: str, until_s: float) -> bool:
    """Leases a starved proposal until then; False when somebody else was faster."""
    row = {"proposal": proposal, "until": until_s, "now": time.time()}
    return connection.execute(_TAKE, row).rowcount == 1


def holds(connection: Connection, proposal: str, until_s: float) -> bool:
    """Whether that lease is still the proposal's."""
    return connection.execute(_HELD, {"proposal": proposal, "until": until_s}).first() is not None


def _message(row: RowMapping) -> Message:
    return Message(row["id"], row["run"], row["kind"], row["subject"], json.loads(row["data_json"]), row["said_s"])

"""Failures, grouped by what went wrong: diagnoses that differ only by numbers and addresses are one."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import text

from evo.archive.pitfalls import normalised
from evo.archive.prefixes import find_one
from evo.archive.rows import word
from evo.archive.store import Archive
from evo.errors import UnknownNameError
from evo.records import Status

_FAILED = (
    "SELECT e.id, e.status, e.diagnosis_json, b.operator, b.target, c.species"
    " FROM evaluation e JOIN board b ON b.id = e.board JOIN candidate c ON c.id = e.candidate"
    " WHERE e.status <> 'ok' AND e.duplicate_of = ''{narrowed}"
)
_BLOCK = 2000


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Evaluations that ended alike. `species`: in which, with how many; `example` is the newest one's id, `message`
    what it said in full."""

    status: Status
    stage: str
    diagnosis: str  # normalised
    evaluations: int
    operator: str
    target: str
    species: tuple[tuple[str, int], ...]
    example: str
    message: str


def failures(
    archive: Archive,
    operator: str | None = None,
    target: str | None = None,
    status: str | None = None,
    run: str | None = None,
    limit: int = 20,
) -> list[FailureGroup]:
    """The most frequent first; evo's own faults and unsteady clocks are named among them."""
    if status is not None and status not in list(Status):
        raise UnknownNameError("status", status, list(Status))
    wanted = {"b.operator": operator, "b.target": target, "e.status": status, "e.run": run}
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    newest: dict[tuple[str, ...], tuple[str, str]] = {}
    with archive.reading() as connection:
        if run is not None:
            wanted["e.run"] = find_one(connection, run, kinds=("run",)).id
        names = {name.replace(".", "_"): value for name, value in wanted.items() if value is not None}
        narrowed = "".join(f" AND {name} = :{name.replace('.', '_')}" for name, value in wanted.items() if value)
        query = text(_FAILED.format(narrowed=narrowed)).execution_options(yield_per=_BLOCK)
        for name, verdict, diagnosis_json, of, place, species in connection.execute(query, names):
            stage, message, diagnosis = _read(diagnosis_json, verdict)
            key = (verdict, stage, diagnosis, of, place)
            counts[key][species] += 1
            newest[key] = max(newest.get(key, ("", "")), (name, message))
    groups = [
        FailureGroup(
            word(Status, verdict), stage, diagnosis, found.total(), of, place, tuple(found.most_common()), *newest[key]
        )
        for key, found in counts.items()
        for verdict, stage, diagnosis, of, place in (key,)
    ]
    return sorted(groups, key=lambda group: (-group.evaluations, group.example))[:limit]


@lru_cache(maxsize=4096)
def _read(diagnosis_json: str | None, status: str) -> tuple[str, str, str]:
    """Stage, message, and the message without what differs from one to the next."""
    found = json.loads(diagnosis_json) if diagnosis_json else {"stage": "", "message": status}
    return found["stage"], found["message"], normalised(found["message"])

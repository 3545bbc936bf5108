"""Who leads a run, with the numbers that were measured of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, text

_RATIOS = text(
    "SELECT r.case_name, e.candidate, r.ratio, e.purpose FROM evaluation e JOIN case_result r ON r.evaluation = e.id"
    " WHERE e.run = :run AND r.status = 'ok' AND r.ratio IS NOT NULL"
    " AND (e.purpose = 'final' OR (e.purpose = 'search' AND e.candidate IN :held)) ORDER BY e.filed_s, e.id"
).bindparams(bindparam("held", expanding=True))


@dataclass(frozen=True, slots=True)
class Leader:
    """`final`: measured again after the search; else the ratio is the search's own and may flatter."""

    candidate: str
    ratio: float
    final: bool


def leaders(connection: Connection, run: str, held: Mapping[str, str]) -> dict[str, Leader]:
    """By case of `held` (the search's leader by case) who leads the run (whole id) and by what: what the finals said
    last, else what the search measured of its leader. A case without either is left out."""
    found: dict[str, Leader] = {}
    for case, candidate, ratio, purpose in connection.execute(_RATIOS, {"run": run, "held": [*held.values()]}):
        final = purpose == "final"
        known = found.get(case)
        if case in held and (final or (candidate == held[case] and not (known and known.final))):
            found[case] = Leader(candidate, ratio, final)
    return {case: found[case] for case in held if case in found}

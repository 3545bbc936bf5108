"""What a budget buys, told before it is spent: by what evaluations took in earlier runs of this archive."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy import text

from evo.archive import Archive, RunRecord
from evo.engine.budget import Budget
from evo.records import Stage
from evo.wording import count

RUNS = 5  # newest ones that say how fast it goes
_RUNS = text(
    "SELECT r.ended_s - r.started_s, count(e.id) FROM run r JOIN evaluation e ON e.run = r.id"
    " WHERE r.operator = :operator AND r.target = :target AND r.device = :device AND r.ended_s IS NOT NULL"
    " AND r.state = 'done' AND e.purpose = 'search' GROUP BY r.id, r.started_s, r.ended_s"
    " ORDER BY r.started_s DESC LIMIT :limit"
)
_SECONDS = text(
    "SELECT e.seconds_json FROM evaluation e JOIN run r ON r.id = e.run WHERE r.operator = :operator"
    " AND r.target = :target AND r.device = :device AND e.purpose = 'search' ORDER BY e.filed_s DESC LIMIT 500"
)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds an evaluation, by the wall and on the device; 0 where nothing is known."""

    wall_s: float = 0.0
    device_s: float = 0.0


def pace(archive: Archive, record: RunRecord) -> Pace:
    """Of ended runs of the same operator, target and device, calibration and finals included."""
    row = {"operator": record.operator, "target": record.target, "device": record.device, "limit": RUNS}
    with archive.reading() as connection:
        runs = connection.execute(_RUNS, row).all()
        spent = [json.loads(found) for found in connection.execute(_SECONDS, row).scalars()]
    count = sum(number for _, number in runs)
    wall = sum(seconds for seconds, _ in runs) / count if count else 0.0
    device = [seconds.get(Stage.CHECK, 0.0) + seconds.get(Stage.TIME, 0.0) for seconds in spent]
    return Pace(wall, sum(device) / len(device) if device else 0.0)


def bought(budget: Budget, known: Pace) -> str:
    """A sentence: how many evaluations, by which limit, and how that is known."""
    counts: dict[str, float] = {"evaluations": budget.evaluations} if budget.evaluations else {}
    if budget.minutes and known.wall_s:
        counts["minutes"] = 60 * budget.minutes / known.wall_s
    if budget.gpu_minutes and known.device_s:
        counts["gpu_minutes"] = 60 * budget.gpu_minutes / known.device_s
    if not counts:
        return f"how many evaluations {budget} buys is not known: no earlier run on this device tells"
    limit = min(counts, key=lambda key: counts[key])
    if limit == "evaluations":
        unsure = (budget.minutes and not known.wall_s) or (budget.gpu_minutes and not known.device_s)
        return f"the budget buys {'at most ' if unsure else ''}{count(budget.evaluations, 'evaluation')}"
    seconds = known.wall_s if limit == "minutes" else known.device_s
    about = count(round(counts[limit]), "evaluation")
    return f"the budget buys about {about}: {limit} binds, at {seconds:.1f} s each so far"

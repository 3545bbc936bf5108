"""What must hold of an archive at any time, and of a run that is done. Read with plain SQL, not with evo's own code."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

SETTLED = {"done", "duplicate", "quarantined"}
OPEN = "('pending', 'building', 'evaluating')"
_PROPOSALS = (
    "SELECT p.run, p.id, p.state, count(e.id) FROM proposal p LEFT JOIN evaluation e ON e.proposal = p.id GROUP BY p.id"
)
_COUNTS = (
    "SELECT run, sum(duplicate_of = ''), sum(duplicate_of <> ''), count(*) FROM evaluation WHERE purpose = 'search'"
    " GROUP BY run"
)


def newest_run(archive: Path) -> tuple[str, str]:
    """(id, state) of the newest run; empty where there is none yet."""
    try:
        with sqlite3.connect(f"file:{archive}?mode=rw", uri=True, timeout=30.0) as connection:
            row = connection.execute("SELECT id, state FROM run ORDER BY started_s DESC LIMIT 1").fetchone()
        connection.close()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error) or "unable to open" in str(error):
            return "", ""
        raise
    return (str(row[0]), str(row[1])) if row else ("", "")


def run_count(archive: Path) -> int:
    connection = sqlite3.connect(f"file:{archive}?mode=rw", uri=True, timeout=30.0)
    try:
        return int(connection.execute("SELECT count(*) FROM run").fetchone()[0])
    finally:
        connection.close()


def filings(archive: Path) -> Counter[int]:
    """Of the proposals that are settled, how many have so many evaluations: all must have one."""
    connection = sqlite3.connect(f"file:{archive}?mode=rw", uri=True, timeout=30.0)
    try:
        return Counter(number for _, _, state, number in connection.execute(_PROPOSALS) if state in SETTLED)
    finally:
        connection.close()


def audit(
    archive: Path, before: Mapping[str, str], announced: Mapping[str, int], budget: int
) -> tuple[list[str], dict[str, str]]:
    """Violations, and the archive's evaluations: candidate by id. `before` are those that an earlier audit saw,
    `announced` the number of verdicts by run that people were told of."""
    if not newest_run(archive)[0]:
        return ([f"{len(before)} rows are gone"] if before else []), {}
    connection = sqlite3.connect(f"file:{archive}?mode=rw", uri=True, timeout=30.0)
    try:
        return _audit(connection, before, announced, budget, archive.parent)
    finally:
        connection.close()


def _audit(
    connection: sqlite3.Connection, before: Mapping[str, str], announced: Mapping[str, int], budget: int, folder: Path
) -> tuple[list[str], dict[str, str]]:
    found = [f"integrity: {said}" for (said,) in connection.execute("PRAGMA integrity_check") if said != "ok"]
    found += [f"foreign key: {row}" for row in connection.execute("PRAGMA foreign_key_check")]
    rows = {str(name): str(candidate) for name, candidate in connection.execute("SELECT id, candidate FROM evaluation")}
    found += [f"evaluation {name} is gone or changed" for name in before if rows.get(name) != before[name]]
    for run, name, state, evaluations in connection.execute(_PROPOSALS):
        wanted = 1 if state in SETTLED else 0
        if evaluations != wanted:
            found.append(f"proposal {name} of run {run} is {state} and has {evaluations} evaluations")
    filed = {run: (fresh, duplicates, total) for run, fresh, duplicates, total in connection.execute(_COUNTS)}
    for run, told in announced.items():
        if filed.get(run, (0, 0, 0))[2] < told:
            found.append(f"run {run} told of {told} verdicts, the archive has {filed.get(run)}")
    states = {run: json.loads(data) for run, data in connection.execute("SELECT run, data_json FROM run_state")}
    for run, (fresh, duplicates, _) in filed.items():
        search, meter = states[run]["search"], states[run]["meter"]
        if (search["evaluated"], search["duplicates"]) != (fresh, duplicates):
            found.append(f"run {run} counts {search['evaluated']}, {search['duplicates']}; rows {fresh}, {duplicates}")
        if meter["evaluations"] != fresh:
            found.append(f"run {run} charged {meter['evaluations']} evaluations; rows {fresh}")
    for (run,) in connection.execute("SELECT id FROM run WHERE state = 'done'").fetchall():
        found += _done(connection, run, filed.get(run, (0, 0, 0))[0], budget, folder)
    return found, rows


def _done(connection: sqlite3.Connection, run: str, fresh: int, budget: int, folder: Path) -> list[str]:
    found = []
    query = f"SELECT count(*) FROM proposal WHERE run = ? AND state IN {OPEN}"
    if left := connection.execute(query, (run,)).fetchone()[0]:
        found.append(f"run {run} is done with {left} open proposals")
    if fresh != budget:
        found.append(f"run {run} is done with {fresh} of {budget} evaluations")
    right = "SELECT count(*) FROM evaluation WHERE run = ? AND status = 'ok' AND duplicate_of = ''"
    if not connection.execute(right, (run,)).fetchone()[0]:
        return found  # every evaluation failed, as without a cache: there is nothing to measure again
    finals = connection.execute("SELECT count(*) FROM evaluation WHERE run = ? AND purpose = 'final'", (run,))
    if not finals.fetchone()[0]:
        found.append(f"run {run} is done without finals")
    portfolio = folder / "evo-winners" / run / "portfolio.json"
    if not portfolio.exists() or not json.loads(portfolio.read_text()):
        found.append(f"run {run} is done without its winners")
    return found

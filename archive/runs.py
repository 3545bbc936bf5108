"""Runs, their saved state, and the machines and environments they saw."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select, text, update

from evo import codec
from evo.archive.prefixes import find_one
from evo.archive.rows import pack_json, run_record, run_row
from evo.archive.tables import DEVICE, ENVIRONMENT, RUN, insert_new
from evo.archive.views import RunRecord, RunState
from evo.errors import ArchiveError
from evo.ids import digest
from evo.records import DeviceFacts

_KEEP_STATE = text(
    "INSERT INTO run_state (run, data_json, saved_s) VALUES (:run, :data, :now)"
    " ON CONFLICT (run) DO UPDATE SET data_json = excluded.data_json, saved_s = excluded.saved_s"
)


def start(connection: Connection, record: RunRecord) -> None:
    connection.execute(insert(RUN), run_row(record))


def change(connection: Connection, run: str, columns: Mapping[str, Any]) -> None:
    """Sets columns of a run that exists. Raises `ArchiveError` when it does not."""
    if columns and connection.execute(update(RUN).where(RUN.c.id == run).values(**columns)).rowcount == 0:
        raise ArchiveError(f"there is no run {run!r} in the archive", fix="start the run first")


def finish(connection: Connection, run: str, state: RunState) -> None:
    """A run that goes on has not ended; all other states end it now."""
    change(connection, run, {"state": state, "ended_s": None if state == "running" else time.time()})


def newest(connection: Connection, limit: int) -> list[RunRecord]:
    found = connection.execute(select(RUN).order_by(RUN.c.started_s.desc(), RUN.c.id.desc()).limit(limit))
    return [run_record(row) for row in found.mappings()]


def by_prefix(connection: Connection, prefix: str) -> RunRecord:
    run = find_one(connection, prefix, kinds=("run",)).id
    return run_record(connection.execute(select(RUN).where(RUN.c.id == run)).mappings().one())


def save_state(connection: Connection, run: str, data: Mapping[str, Any]) -> None:
    connection.execute(_KEEP_STATE, {"run": run, "data": pack_json(dict(data)), "now": time.time()})


def load_state(connection: Connection, run: str) -> dict[str, Any] | None:
    data = connection.execute(text("SELECT data_json FROM run_state WHERE run = :run"), {"run": run}).scalar()
    if data is None:
        return None
    state: dict[str, Any] = json.loads(data)
    return state


def record_device(connection: Connection, facts: DeviceFacts) -> str:
    data = codec.dumps(facts).decode()
    device = digest((data,))
    row = {
        "id": device, "device": facts.id, "name": facts.name, "target": facts.target, "facts_json": data,
        "first_seen_s": time.time(),
    }  # fmt: skip
    connection.execute(insert_new(DEVICE), row)
    return device


def record_environment(connection: Connection, facts: Mapping[str, Any]) -> str:
    data = json.dumps(dict(facts), sort_keys=True, separators=(",", ":"))
    environment = digest((data,))
    row = {"id": environment, "facts_json": data, "first_seen_s": time.time()}
    connection.execute(insert_new(ENVIRONMENT), row)
    return environment

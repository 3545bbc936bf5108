"""The state that a run is in now: as it was filed, unless no process works on it any more."""

from __future__ import annotations

from dataclasses import replace

from evo.app.swarm.asking import ASKING
from evo.archive import Archive, RunRecord


def seen(store: Archive, record: RunRecord) -> RunRecord:
    """The run with the state `killed` where it was left "running" and nobody holds it, and `collecting` where it only
    holds what was told. A copy of an archive that is in use elsewhere looks killed too."""
    if record.state != "running":
        return record
    if record.command.startswith(ASKING):
        return replace(record, state="collecting")
    return record if store.is_claimed(record.id) else replace(record, state="killed")

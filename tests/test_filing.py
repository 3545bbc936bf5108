"""A turn is filed in a thread: whoever else lives on the event loop, as agents do, is not kept waiting."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from landscape import CASES, RUN, search, simulated

from evo.archive import Archive, RunRecord
from evo.archive.exchanges import keep_turn
from evo.engine import loop
from evo.engine.budget import Budget, Meter


def test_agents_go_on_while_a_turn_is_filed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticked = threading.Event()
    seen: list[bool] = []

    def filing(*arguments: Any) -> None:
        ticked.clear()
        seen.append(ticked.wait(5.0))  # never, were the loop blocked
        keep_turn(*arguments)

    async def tick() -> None:
        while True:
            ticked.set()
            await asyncio.sleep(0.005)

    async def turn(archive: Archive) -> None:
        ticking = asyncio.create_task(tick())
        await loop.evolve(
            search(), simulated(capacity=4), archive, Meter(Budget.parse("evaluations=8")), lambda _: None
        )
        ticking.cancel()

    monkeypatch.setattr(loop, "keep_turn", filing)
    with Archive.open(str(tmp_path / "evo.db")) as archive:
        archive.start_run(RunRecord(RUN, "scale", "cpu", "cpu:0", "test", 0, "", CASES, "simulated", "test", 0.0))
        asyncio.run(turn(archive))
        assert len(list(archive.evaluations(RUN))) == 8
    assert len(seen) > 1
    assert all(seen)

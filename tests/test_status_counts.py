"""What `evo status` counts of runs without a search of their own: those that hold what was told, or judge it."""

from __future__ import annotations

from pathlib import Path

import archive_records as records
import pytest
from typer.testing import CliRunner

from evo.app import control
from evo.app.swarm.asking import ASKING
from evo.app.swarm.evaluating import COMMAND
from evo.archive import Archive, RunRecord
from evo.cli.root import app
from evo.records import Author, Proposal, Purpose, State, Status

CASE = "bf16-32x1024"
OUTCOMES = (
    ("right", Status.OK, State.DONE),
    ("again", Status.OK, State.DUPLICATE),
    ("wrong", Status.WRONG_RESULT, State.DONE),
    ("crashed", Status.CRASH, State.DONE),
    ("bad", Status.WRONG_RESULT, State.DONE),
)


@pytest.fixture
def place(tmp_path: Path) -> str:
    """An archive in which one run holds what was told and another judged it; a third run is nobody's business."""
    name = str(tmp_path / "told.db")
    with Archive.open(name) as store:
        for run, command in (("holds", f"{ASKING} --operator rmsnorm"), ("judges", COMMAND), ("other", COMMAND)):
            store.start_run(RunRecord(run, "rmsnorm", "cpu", "cpu:0", command, 0, "", (CASE,), "numpy", "e", 5.0))
        for name_, status, state in OUTCOMES:
            propose(store, name_, "holds")
            cases = (records.timed(CASE, 1.5),) if status is Status.OK else ()
            evaluation = records.evaluation(name_, *cases, run="judges", status=status)
            store.file(evaluation, f"told-{name_}", state)
        final = records.evaluation("right", records.timed(CASE, 1.4), run="judges", purpose=Purpose.FINAL)
        store.file(final, None)
        propose(store, "waits", "holds")
        propose(store, "elsewhere", "other")
        store.file(records.evaluation("elsewhere", records.timed(CASE, 1.1), run="other"), "told-elsewhere", State.DONE)
    return name


def propose(store: Archive, name: str, run: str) -> None:
    proposal = Proposal(f"told-{name}", run, records.candidate(name), (), Author("person"), "")
    store.propose(proposal, State.PENDING)


@pytest.mark.parametrize("run", ["holds", "judges"])
def test_what_was_told_and_judged_is_counted(place: str, run: str) -> None:
    standing = control.status(place, run)
    assert (standing.evaluated, standing.duplicates) == (4, 1)
    assert standing.rejected == {"wrong_result": 2, "crash": 1}
    assert standing.open == ({"pending": 1} if run == "holds" else {})
    shown = CliRunner().invoke(app, ["status", run, "--archive", place]).stdout
    assert "4 evaluated, 1 duplicate, 2 wrong_result, 1 crash" in shown


def test_another_runs_work_is_not_counted(place: str) -> None:
    standing = control.status(place, "other")
    assert (standing.evaluated, standing.duplicates, standing.rejected) == (1, 0, {})

"""Speaking to a run through its archive: told candidates, bans, stop, and how it stands."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import archive_records as records
import pytest
from landscape import CASES, RUN, ask, genome, problem, search, simulated
from typer.testing import CliRunner

import evo
from evo import app as verbs
from evo.app import control
from evo.app.buying import Pace, bought, pace
from evo.app.swarm.evaluating import COMMAND
from evo.archive import Archive, RunRecord, RunState
from evo.archive.leaders import Leader
from evo.archive.messages import say
from evo.cli.root import app
from evo.engine.budget import Budget, Meter
from evo.engine.loop import evolve
from evo.engine.outside import OVERLAP_S, STOPPED, Outside
from evo.engine.search import Search
from evo.errors import UnknownNameError, UsageError
from evo.operators.rmsnorm import RmsNorm
from evo.records import Author, Proposal, Purpose, State

CASE = "bf16-32x1024"
LIVE = RunRecord(RUN, "scale", "cpu", "cpu:0", "evo run", 0, "evaluations=40", CASES, "simulated", "test", 0.0)
REAL = RunRecord("run-real", "rmsnorm", "cpu", "cpu:0", "evo run", 0, "evaluations=40", (CASE,), "numpy", "e", 5.0)
SEED = RmsNorm().seeds("cpu")[0]
MINE = SEED.read_text().replace('species  = "plain"', 'species = "mine"')


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive.open(str(tmp_path / "evo.db")) as opened:
        opened.start_run(LIVE)
        yield opened


def told(archive: Archive, species: str, run: str = RUN) -> Proposal:
    """As another process does it."""
    made = Proposal(f"told-{species}", run, problem().candidate(genome(species), {}), (), Author("person"), "mine")
    with Archive.open(str(archive.path)) as other, other.batch(), other.writing() as connection:
        other.propose(made)
        say(connection, run, "tell", subject=made.id)
    return made


def go(run: Search, archive: Archive, budget: str) -> Meter:
    meter = Meter(Budget.parse(budget))
    asyncio.run(evolve(run, simulated(), archive, meter, lambda progress: None))
    return meter


def test_a_told_candidate_is_evaluated_and_becomes_a_parent(archive: Archive) -> None:
    made = told(archive, "fancy")
    run = search()
    go(run, archive, "evaluations=40")
    filed = list(archive.evaluations(RUN))
    assert made.candidate.id in [evaluation.candidate for evaluation in filed]
    assert run.evaluated == len(filed) == 40
    species = {archive.candidate(evaluation.candidate).species for evaluation in filed}
    assert species == {"wide", "fancy"}
    assert sum(archive.candidate(e.candidate).species == "fancy" for e in filed) > 1, "it has children"
    assert archive.open_proposals(RUN) == []


def test_what_the_search_has_had_is_a_duplicate(archive: Archive) -> None:
    run, meter = search(), Meter(Budget.parse("evaluations=9"))
    first = ask(run)
    assert first is not None
    made = Proposal("told-again", RUN, first.candidate)
    archive.propose(first)
    archive.propose(made)
    with archive.writing() as connection:
        say(connection, RUN, "tell", subject=made.id)
    assert Outside(archive, run, meter).heed() == []
    assert [proposal.id for proposal, _ in archive.open_proposals(RUN)] == [first.id]


def test_the_archive_is_looked_at_now_and_then(archive: Archive) -> None:
    now = [0.0]
    outside = Outside(archive, search(), Meter(Budget.parse("")), clock=lambda: now[0])
    assert outside.heed() == []
    made = told(archive, "late")
    assert outside.heed() == []
    now[0] = 0.6
    assert outside.heed() == [made]
    now[0] = 1.2
    assert outside.heed() == [], "once"
    assert OVERLAP_S > 10, "longer than a writer waits for its turn"


def test_a_ban_holds_from_then_on(archive: Archive) -> None:
    run = search()
    with archive.writing() as connection:
        say(connection, RUN, "ban", data={"gene": "EEE", "value": "none"})
        say(connection, RUN, "ban", data={"gene": "AAA", "value": "3"})
    go(run, archive, "evaluations=60")
    filed = [archive.candidate(evaluation.candidate).values for evaluation in archive.evaluations(RUN)]
    late = filed[1:]
    assert len(filed) == 60
    assert [values for values in late if values["EEE"] == "none" or values["AAA"] == 3] == []


def test_stop_ends_a_run_and_resume_voids_it(archive: Archive) -> None:
    with archive.writing() as connection:
        say(connection, RUN, "stop")
    meter = go(search(), archive, "evaluations=40")
    assert meter.stopped == STOPPED
    assert len(list(archive.evaluations(RUN))) < 40
    with archive.writing() as connection:
        say(connection, RUN, "resume")
    again = Meter(Budget.parse("evaluations=9"))
    Outside(archive, search(), again).heed()
    assert again.stopped == ""


@pytest.fixture
def real(tmp_path: Path) -> str:
    """An archive with a run of a real operator; not going on."""
    place = str(tmp_path / "real.db")
    with Archive.open(place) as opened:
        opened.start_run(REAL)
    return place


def test_only_a_run_that_goes_on_is_spoken_to_by_default(real: str) -> None:
    for speak in (
        control.stop,
        lambda place: control.inject(place, SEED),
        lambda place: control.ban(place, "ROWS", "1"),
    ):
        with pytest.raises(UsageError, match="no run is going on"):
            speak(real)
    assert control.status(real).state == "killed"
    assert [run.state for run in verbs.archive_runs(real)] == ["killed"]
    shown = verbs.archive_show(real, "run-real").run
    assert shown
    assert shown.state == "killed"
    listed = CliRunner().invoke(app, ["archive", "runs", "--archive", real])
    assert "killed" in listed.stdout
    assert "evo resume run-real" in CliRunner().invoke(app, ["archive", "show", "run-real", "--archive", real]).stdout


@pytest.mark.parametrize(
    ("command", "filed", "fix"),
    [
        (
            "evo run",
            "running",
            "its state is killed: nothing to stop; `evo resume run-real --archive {}` goes on with it",
        ),
        (
            "evo run",
            "stopped",
            "its state is stopped: nothing to stop; `evo resume run-real --archive {}` goes on with it",
        ),
        (
            "evo run",
            "failed",
            "its state is failed: nothing to stop; `evo resume run-real --archive {}` goes on with it",
        ),
        ("evo run", "done", "its state is done: nothing to stop"),
        (
            COMMAND,
            "running",
            "its state is killed: nothing to stop; `evo evaluate --pending --archive {}` judges what waits",
        ),
    ],
)
def test_stop_says_what_became_of_a_run_and_how_to_go_on(real: str, command: str, filed: RunState, fix: str) -> None:
    with Archive.open(real) as store, store.writing() as connection:
        connection.exec_driver_sql(f"UPDATE run SET command = '{command}', state = '{filed}'")
    with pytest.raises(UsageError) as told:
        control.stop(real, run="run-real")
    assert (told.value.what, told.value.fix) == ("run run-real is not going on", fix.format(real))


def in_another_process(real: str) -> Any:
    """Holds the run, since locks are a process's own."""
    code = "import sys\nfrom evo.archive import Archive\nwith Archive.open(sys.argv[1]) as a, a.claim('run-real'):\n"
    code += "    print('held', flush=True)\n    sys.stdin.read()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code, real], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_live_run_is_spoken_to_and_seen(real: str, tmp_path: Path) -> None:
    with in_another_process(real) as process:
        assert control.status(real).state == "running"
        file = tmp_path / "mine.cpp"
        file.write_text(MINE)
        done = CliRunner().invoke(app, ["inject", str(file), "--archive", real, "--note", "try this"])
        assert (done.exit_code, done.stdout.startswith("pending: candidate ")) == (0, True), done.output
        named = CliRunner().invoke(app, ["status", "--run", "run-real", "--archive", real, "--json"])
        assert (json.loads(named.stdout)["run"], json.loads(named.stdout)["state"]) == ("run-real", "running")
        again = CliRunner().invoke(app, ["inject", str(file), "--archive", real, "--json"])
        assert json.loads(again.stdout)["state"] == "duplicate"
        with pytest.raises(UnknownNameError, match="unknown gene 'ROW'"):
            control.ban(real, "ROW", "1")
        with pytest.raises(UsageError, match="has no choice '5'"):
            control.ban(real, "ROWS", "5")
        banned = CliRunner().invoke(app, ["ban", "ROWS=64", "--archive", real, "--json"])
        assert json.loads(banned.stdout) == {"run": REAL.id, "gene": "ROWS", "value": "64"}
        stopped = CliRunner().invoke(app, ["stop", "--archive", real, "--json"])
        assert json.loads(stopped.stdout) == {"run": REAL.id}
        with Archive.open(real) as store:
            for name, ratio in (("first", 1.62), ("other", 1.4)):
                records.add(store, name, records.timed(CASE, ratio), run=REAL.id)
            store.save_state(
                REAL.id,
                {
                    "search": {
                        "evaluated": 7,
                        "duplicates": 1,
                        "rejected": {"crash": 2},
                        "portfolio": {CASE: [records.candidate("first").id, 1.5]},  # the mark of an improvement
                    },
                    "meter": {"evaluations": 10.0, "seconds": 3.0},
                },
            )
        shown = CliRunner().invoke(app, ["status", "--json", "--archive", real])
        standing = json.loads(shown.stdout)
        assert standing["state"] == "stopping"
        assert (standing["evaluated"], standing["used"]["evaluations"]) == (7, 0.25)
        first = records.candidate("first").id
        assert standing["best"] == {CASE: {"candidate": first, "ratio": 1.62, "final": False}}
        assert (standing["told"], standing["open"], standing["banned"]) == (1, {"pending": 1}, ["ROWS=64"])
        text = CliRunner().invoke(app, ["status", "--archive", real]).stdout
        for part in ("stopping", "7 evaluated, 1 duplicate, 2 crash", "25% of evaluations", "~ 1.620x", "ROWS=64"):
            assert part in text
        with Archive.open(real) as store:
            more = records.evaluation("first", records.timed(CASE, 1.58), run=REAL.id, purpose=Purpose.FINAL)
            store.file(more, None)
        assert control.status(real).best == {CASE: Leader(first, 1.58, final=True)}
        process.stdin.close()
        process.wait(10)
    assert control.status(real).state == "killed"


def test_a_run_that_only_holds_what_was_told_is_closed_by_stop(real: str) -> None:
    with evo.open(real, operator="rmsnorm", target="cpu", cases=[CASE]) as desk:
        answer = desk.tell(source=MINE)
    assert control.status(real, desk.run.id).state == "collecting"
    with pytest.raises(UsageError, match="has no search of its own"):
        verbs.resume(desk.run.id, real, lambda progress: None)
    control.stop(real, run=desk.run.id)
    assert control.status(real, desk.run.id).state == "done"
    with evo.open(real, operator="rmsnorm", target="cpu", cases=[CASE]) as again:
        assert again.run.id != desk.run.id
        assert again.answer(answer.candidate).state is State.CANCELLED
        assert again.tell(source=MINE).state is State.PENDING


def test_what_a_budget_buys_is_told_by_earlier_runs(archive: Archive) -> None:
    assert pace(archive, LIVE) == Pace()
    assert "is not known" in bought(Budget.parse("minutes=2"), Pace())
    assert bought(Budget.parse("evaluations=50"), Pace()) == "the budget buys 50 evaluations"
    assert bought(Budget.parse("evaluations=50,minutes=9"), Pace()) == "the budget buys at most 50 evaluations"
    go(search(), archive, "evaluations=40")
    with archive.writing() as connection:
        connection.exec_driver_sql("UPDATE run SET state = 'done', ended_s = started_s + 80")
    known = pace(archive, LIVE)
    assert known == Pace(2.0, 0.0)
    told = "the budget buys about 60 evaluations: minutes binds, at 2.0 s each so far"
    assert bought(Budget.parse("minutes=2,evaluations=100"), known) == told
    assert "gpu_minutes binds" in bought(Budget.parse("minutes=2,gpu_minutes=1"), Pace(2.0, 1.5))

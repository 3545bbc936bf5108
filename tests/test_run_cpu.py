"""The main job on the real CPU target: `evo run`, killed and resumed, and started again from its archive."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evo.genome import Genome

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"),
]
CASE = "bf16-32x1024"
EVO = [sys.executable, "-m", "evo"]


def evo(folder: Path, *words: str, limit_s: float = 90) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*EVO, *words], cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False)


def rows(archive: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(f"file:{archive}?mode=ro", uri=True) as connection:
        return connection.execute(query).fetchall()


def test_run_finds_a_faster_kernel_and_hands_it_back(tmp_path: Path) -> None:
    words = ("run", "--operator", "rmsnorm", "--target", "cpu", "--cases", CASE, "--seed", "3")
    done = evo(tmp_path, *words, "--budget", "evaluations=6", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["operator"] == "rmsnorm"
    assert result["evaluated"] == 6
    (case,) = result["cases"]
    assert case["case"] == CASE
    unsteady = any("unstable_timing" in note for note in result["notes"])  # a neighbour may have the machine just now
    assert case["final"] is not unsteady
    assert case["low"] <= case["ratio"] <= case["high"]
    assert case["yardstick_us"] > 0
    for session in (1, 2, 3):
        assert f"final {session} of 3: {CASE}, candidate " in done.stderr
        assert f"final {session} of 3: checking, candidate " in done.stderr

    folder = tmp_path / Path(result["winner"])
    portfolio = json.loads((folder / "portfolio.json").read_text())
    winner = folder / portfolio[CASE]["file"]
    checked = evo(tmp_path, "check", str(winner), "--case", CASE, "--json")
    assert checked.returncode == 0, checked.stderr + checked.stdout
    assert json.loads(checked.stdout)["status"] == "ok"
    assert Genome.read(winner).defaults() == case["values"]

    again = evo(tmp_path, *words, "--budget", "evaluations=3", "--json")
    assert again.returncode == 0, again.stderr
    second = json.loads(again.stdout)
    assert second["run"] != result["run"]
    authors = rows(tmp_path / "evo.db", f"SELECT author FROM proposal WHERE run = '{second['run']}'")
    assert ("archive",) in authors, "a new run starts from what earlier ones archived"

    top = json.loads(evo(tmp_path, "archive", "top", "--json").stdout)
    assert top[0]["candidate"]
    lineage = json.loads(evo(tmp_path, "archive", "lineage", case["candidate"], "--json").stdout)
    assert lineage[0]["candidate"] == case["candidate"]


def test_killed_run_resumes_with_nothing_lost_or_doubled(tmp_path: Path) -> None:
    archive = tmp_path / "evo.db"
    words = ["run", "-o", "rmsnorm", "-t", "cpu", "--cases", CASE, "--budget", "evaluations=5", "--seed", "5"]
    process = subprocess.Popen(
        [*EVO, *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    filed = "SELECT count(*) FROM evaluation"
    limit = time.monotonic() + 60
    while not (archive.exists() and _count(archive, filed) >= 2):
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < limit
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = rows(archive, "SELECT id, candidate FROM evaluation ORDER BY id")
    (run,) = rows(archive, "SELECT id FROM run")[0]

    done = evo(tmp_path, "resume", str(run), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["evaluated"] == 5
    after = rows(archive, "SELECT id, candidate FROM evaluation WHERE purpose = 'search' ORDER BY id")
    assert after[: len(before)] == before
    candidates = [candidate for _, candidate in after]
    assert len(candidates) == len(set(candidates)), "nothing is evaluated twice"
    assert rows(archive, "PRAGMA integrity_check") == [("ok",)]
    assert rows(archive, "SELECT state FROM run") == [("done",)]

    refused = evo(tmp_path, "resume", str(run))
    assert refused.returncode == 2
    assert "has ended" in refused.stderr


def test_ctrl_c_ends_with_the_table(tmp_path: Path) -> None:
    words = ["run", "-o", "rmsnorm", "-t", "cpu", "--cases", CASE, "--budget", "minutes=3"]
    process = subprocess.Popen(
        [*EVO, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    archive, limit = tmp_path / "evo.db", time.monotonic() + 60
    while not (archive.exists() and _count(archive, "SELECT count(*) FROM evaluation") >= 2):
        assert time.monotonic() < limit
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert CASE in out
    assert rows(archive, "SELECT state FROM run") == [("stopped",)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_search_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    words = ["run", "-o", "rmsnorm", "-t", "cpu", "--cases", CASE, "--budget", "minutes=3"]
    process = subprocess.Popen(
        [*EVO, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    archive, limit = tmp_path / "evo.db", time.monotonic() + 60
    while not (archive.exists() and _count(archive, "SELECT count(*) FROM run") == 1):
        assert time.monotonic() < limit
        time.sleep(0.02)
    time.sleep(0.3)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=30)
    ((run, state, yardstick),) = rows(archive, "SELECT id, state, yardstick FROM run")
    assert yardstick == "", "it was still calibrating"
    assert (process.returncode, out, state) == (130, "", "stopped"), err
    assert err.endswith(f"interrupted: `evo resume {run}` goes on with it\n")
    assert "Traceback" not in err


def _count(archive: Path, query: str) -> int:
    try:
        return int(str(rows(archive, query)[0][0]))
    except sqlite3.OperationalError:  # the schema is being made
        return 0

"""A run that a strong model took part in, replayed from its record: no key, no network, no compiler and no clock."""

from __future__ import annotations

import json
import lzma
import re
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evo.cli.root import app
from evo.mutators.agents import prompts
from evo.operators.rmsnorm import RmsNorm

RECORD = Path(__file__).parent / "data" / "recorded"
RESULT: dict[str, Any] = json.loads((RECORD / "result.json").read_text("utf-8"))
AGAIN = "make the record again: python tests/data/recorded/record.py (tests/data/recorded/README.md says when)"


@pytest.fixture(autouse=True)
def _texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the prompts of the record were made from: who rewords a manual need not make the record again."""
    notes = (RECORD / "texts" / "notes.md").read_text("utf-8")
    monkeypatch.setattr(prompts, "TEMPLATES", RECORD / "texts" / "templates")
    monkeypatch.setattr(RmsNorm, "notes", lambda self: notes)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "evo.db"
    path.write_bytes(lzma.decompress((RECORD / "evo.db.xz").read_bytes()))
    return path


def replayed(archive: Path, *words: str) -> tuple[int, dict[str, Any]]:
    run = ("run", "--operator", "rmsnorm", "--llm", f"replay:{RESULT['run']}", "--archive", str(archive), "--json")
    done = CliRunner().invoke(app, [*run, *words])
    return done.exit_code, json.loads(done.stdout)


def reword(archive: Path, role: str, change: Callable[[str], str]) -> None:
    """Changes the first answer in a role."""
    first = "SELECT id, answer FROM exchange WHERE role = ? ORDER BY job, step LIMIT 1"
    with sqlite3.connect(archive) as database:
        row, answer = database.execute(first, (role,)).fetchone()
        packed = zlib.compress(change(zlib.decompress(answer).decode()).encode())
        database.execute("UPDATE exchange SET answer = ? WHERE id = ?", (packed, row))
    database.close()


def test_the_recorded_run_takes_the_same_way_again_byte_for_byte(archive: Path) -> None:
    code, way = replayed(archive)
    assert (way["parted"], code) == ("", 0), AGAIN
    assert way["recorded"] == way["replayed"]
    assert way["run"] == RESULT["run"]
    assert way["decisions"] >= way["verdicts"] >= RESULT["evaluated"]
    assert way["other_prompts"] == [], AGAIN
    assert way["missing_calls"] == []
    (model,) = [arm for arm in RESULT["arms"] if arm["calls"]]
    assert model["arm"] == "command:claude"
    # the last answers of a run may come when nobody asks for them any more
    assert model["calls"] - 3 <= way["same_prompts"] == way["exchanges"] <= model["calls"]


def test_every_role_is_in_the_record_with_an_answer(archive: Path) -> None:
    with sqlite3.connect(archive) as database:
        answered = database.execute("SELECT DISTINCT role FROM exchange WHERE finish = 'stop'").fetchall()
    database.close()
    assert {role for (role,) in answered} >= {"planner", "writer", "reviewer", "repair", "historian"}


def test_another_answer_parts_the_ways_and_is_named(archive: Path) -> None:
    reword(archive, "writer", lambda text: f"Another idea. {text}")
    code, way = replayed(archive)
    assert code == 1
    assert way["recorded"] != way["replayed"]
    was, _, now = way["parted"].partition(", and is ")
    assert was.startswith(f"decision {way['decisions']} was ")
    assert "(Another idea. " in now
    assert "Another idea" not in was
    # What the writer is asked next repeats its answer, and the reviewer is told the idea: two other prompts.
    assert [prompt.partition(", line ")[0].partition(", ")[2] for prompt in way["other_prompts"]] == [
        "step 2 (writer)",
        "step 3 (reviewer)",
    ]
    assert all("'Another idea. " in prompt for prompt in way["other_prompts"])


def test_a_call_that_the_record_lacks_is_named(archive: Path) -> None:
    with sqlite3.connect(archive) as database:
        first = "SELECT id, job, step FROM exchange WHERE role = 'reviewer' ORDER BY job, step LIMIT 1"
        row, job, step = database.execute(first).fetchone()
        database.execute("DELETE FROM exchange WHERE id = ?", (row,))
    database.close()
    _, way = replayed(archive)
    named = f"job {job}, step {step} (reviewer)"
    assert way["missing_calls"] == [named]
    run = ("run", "--operator", "rmsnorm", "--llm", f"replay:{RESULT['run']}", "--archive", str(archive))
    assert f"calls that the record lacks: {named}" in CliRunner().invoke(app, run).stdout


def test_a_changed_template_is_told_with_its_role_and_line_and_changes_no_decision(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "templates"
    shutil.copytree(prompts.TEMPLATES, folder)
    template = folder / "historian.md.j2"
    template.write_text(template.read_text("utf-8").replace("What do these", "What do all these"), "utf-8")
    monkeypatch.setattr(prompts, "TEMPLATES", folder)
    code, way = replayed(archive)
    assert (code, way["parted"]) == (0, "")
    assert way["recorded"] == way["replayed"]
    assert way["same_prompts"] + 1 == way["exchanges"]
    (told,) = way["other_prompts"]
    assert re.fullmatch(
        r"job \d+, step 1 \(historian\), line \d+: was 'What do these .*', is 'What do all these .*'", told
    )

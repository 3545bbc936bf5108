"""Agents in a real run on the CPU: from the command line to the archive, and again from the record alone."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from llm_server import Answer, LlmServer, Seen, chat
from typer.testing import CliRunner

from evo.cli.root import app

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"),
]
CASE = "bf16-32x1024"
LIMIT_S = float(os.environ.get("EVO_TEST_LIMIT_S", "90"))
KEY = "sk-proj-Zq81-echoed-by-the-server"
RUN = ("run", "--operator", "rmsnorm", "--target", "cpu", "--cases", CASE, "--seed", "3", "--fresh", "--agents", "3")


def evo(folder: Path, *words: str, key: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    environment |= {"OPENAI_API_KEY": key} if key else {}
    return subprocess.run(
        [sys.executable, "-m", "evo", *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=environment,
    )  # fmt: skip


def echoing(seen: Seen) -> Answer:
    """Says the key in every answer, and in an error now and then."""
    echoing.count = getattr(echoing, "count", 0) + 1  # type: ignore[attr-defined]
    count = echoing.count  # type: ignore[attr-defined]
    key = seen.headers["authorization"].removeprefix("Bearer ")
    if count == 2:
        return Answer({"error": {"message": f"the key {key} has no access"}}, 403)
    if "Give up to" in str(seen.body["messages"][-1]["content"]):
        plan = {
            "name": f"plan-{count}",
            "hypothesis": f"with {key}",
            "change": "a comment",
            "effect": "none",
            "tries": 3,
        }
        return chat(json.dumps([plan]))
    if "strict reviewer" in str(seen.body["messages"][-1]["content"]):
        return chat("KEEP")
    if "Judge it before" in str(seen.body["messages"][-1]["content"]):
        return chat(f"GO {key}")
    edit = f'<<<<<<< SEARCH\n#include "evo.h"\n=======\n#include "evo.h"\n// note {count} {key}\n>>>>>>> REPLACE'
    return chat(f"A note, {key}.\n{edit}")


def test_a_run_with_a_model_keeps_no_key_and_replays_without_one(tmp_path: Path) -> None:
    with LlmServer(echoing) as server:
        llm = ("--llm", f"openai:some-model@{server.url}")
        done = evo(tmp_path, *RUN, *llm, "--budget", "evaluations=14,tokens=2000000", "--json", key=KEY)
        sent = len(server.seen)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (arm,) = [arm for arm in result["arms"] if arm["jobs"]]
    assert arm["calls"] == sent > 1  # how many depends on how fast the machine is
    assert arm["tokens"] > 100
    assert arm["usd"] is None
    assert KEY not in done.stdout + done.stderr
    assert any(KEY.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()) is False

    with sqlite3.connect(tmp_path / "evo.db") as database:
        rows = database.execute("SELECT role, finish, error FROM exchange ORDER BY job, step").fetchall()
        jobs = [job for (job,) in database.execute("SELECT job FROM exchange")]
        events = " ".join(events for (events,) in database.execute("SELECT events FROM turn")).split()
    database.close()
    assert len(rows) == sent
    assert "planner" in {role for role, _, _ in rows}
    assert ("error", "HTTP 403: the key [key] has no access") in {(finish, error) for _, finish, error in rows}
    texts = exchanged(tmp_path / "evo.db")
    assert KEY not in texts
    assert "[key]" in texts

    again = evo(tmp_path, *RUN, "--llm", f"replay:{result['run']}", "--json")
    assert again.returncode == 0, again.stdout + again.stderr
    replayed = json.loads(again.stdout)
    assert replayed["recorded"] == replayed["replayed"]
    assert replayed["decisions"] >= result["evaluated"]
    assert (replayed["other_prompts"], replayed["parted"]) == ([], "")
    taken_in = sum(f"j{job}" in events for job in jobs)  # the others were in flight at the end
    assert 1 < taken_in <= replayed["same_prompts"] <= sent

    candidate = next(case["candidate"] for case in result["cases"] if case["candidate"])
    shown = evo(tmp_path, "prompt", candidate[:10])
    assert shown.returncode == 0, shown.stderr
    assert "the parent, species" in shown.stdout
    assert "the operator's contract" in shown.stdout


def exchanged(archive: Path) -> str:
    """Everything that the archive keeps of exchanges, unpacked, and the rest of it as text."""
    import zlib

    with sqlite3.connect(archive) as database:
        packed = [cell for row in database.execute("SELECT request, answer, memory FROM exchange") for cell in row]
        packed += [text for (text,) in database.execute("SELECT text FROM source")]
        plain = "\n".join(database.iterdump())
    database.close()
    return plain + "\n".join(zlib.decompress(cell).decode() for cell in packed if cell)


def test_mistakes_are_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    for words, says in (
        (("--llm", "anthropic:x"), "set ANTHROPIC_API_KEY"),
        (("--llm", "opnai:x"), "did you mean openai"),
        (("--approve", "everything"), "there are: plan, finalists"),
        (("--prompts", "nowhere"), "there is no folder of prompts"),
        (("--llm", "replay:abc", "--llm", "ollama:x"), "stands alone"),
    ):
        done = CliRunner().invoke(app, [*RUN, *words])
        assert done.exit_code == 2, done.output
        assert says in done.stderr
    assert not (tmp_path / "evo.db").exists()

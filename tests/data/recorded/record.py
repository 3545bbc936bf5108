"""Makes the recorded run again, from the kept answers: `python tests/data/recorded/record.py`, some minutes on the CPU.

Needed after a deliberate change of what a run decides or of how its prompts are put together. It replaces `evo.db.xz`,
`result.json` and `texts`; commit all. The times in it are those of the machine that it ran on.
"""

from __future__ import annotations

import json
import lzma
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from evo.mutators.agents.prompts import TEMPLATES
from evo.operators.rmsnorm import RmsNorm

HERE = Path(__file__).parent
MODEL = "command:claude"  # a program of that name, which hands out what the model claude answered
RUN = (
    "run", "--operator", "rmsnorm", "--target", "cpu", "--cases", "bf16-32x1024", "--cases", "fp32-64x256",
    "--seed", "11", "--fresh", "--agents", "1",
)  # fmt: skip
BUDGET = "evaluations=220"
PACKED = (
    ("exchange", "request"), ("exchange", "answer"), ("exchange", "memory"), ("source", "text"), ("build", "kernels"),
)  # fmt: skip
TEXTS = HERE / "texts"  # what its prompts were made from
LOCAL = ("winner", "archive")  # paths of the machine, which are nobody else's business


def record(folder: Path) -> None:
    """Runs in `folder` and packs what came of it."""
    program = folder / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, str(HERE / 'author.py')])}\n", "utf-8")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    words = [sys.executable, "-m", "evo", *RUN, "--llm", MODEL, "--budget", BUDGET, "--json"]
    done = subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE, env={**os.environ, "PATH": path})
    result = json.loads(done.stdout)
    spread(folder / "evo.db")
    (HERE / "evo.db.xz").write_bytes(lzma.compress((folder / "evo.db").read_bytes(), preset=9))
    kept = {name: value for name, value in result.items() if name not in LOCAL}
    (HERE / "result.json").write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
    keep_texts()


def keep_texts() -> None:
    shutil.rmtree(TEXTS, ignore_errors=True)
    shutil.copytree(TEMPLATES, TEXTS / "templates")  # links as what they lead to
    (TEXTS / "notes.md").write_text(RmsNorm().notes(), "utf-8")


def spread(archive: Path) -> None:
    """Packs texts by level 0, so that xz finds what they have in common (a third of the size), and drops free pages."""
    database = sqlite3.connect(archive, isolation_level=None)
    database.create_function("spread", 1, lambda text: zlib.compress(zlib.decompress(text), 0) if text else text)
    for table, column in PACKED:
        database.execute(f"UPDATE {table} SET {column} = spread({column})")
    database.execute("PRAGMA journal_mode = DELETE")
    database.execute("VACUUM")
    database.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="evo-record-") as temporary:
        record(Path(temporary))

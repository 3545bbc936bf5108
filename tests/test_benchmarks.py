"""The recorded benchmarks still run, at a size that says nothing about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("agents_in_flight.py", ("--agents", "20", "--calls", "60", "--delay", "0.05")),
        ("archive_million.py", ("--rows", "3000", "--filed", "250", "--lessons", "100", "--repeats", "2")),
        ("clock_selftest.py", ("--build-only",)),
        ("engine_null.py", ("--candidates", "150")),
        ("memory_gain.py", ("--repeats", "1", "--evaluations", "12", "--lessons", "50")),
        ("nvrtc_build.py", ("--repeats", "2", str(ROOT / "operators" / "rmsnorm" / "seeds" / "warp.cu"))),
    ],
)
def test_benchmark_runs_and_writes_its_figures(tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(ROOT / "benchmarks" / name), *words, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())

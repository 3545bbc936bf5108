"""Garbage of every kind ends in one archived verdict, and `evo check` says what is wrong with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evo.fitness.cpu import compiler

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
HEADERS = (
    "header bytes flipped", "keys removed, doubled, renamed", "values of another type", "huge numbers", "deep nesting",
    "odd unicode", "NULs and control characters", "very long lines", "truncated", "random bytes", "senseless formulas",
    "gene values of the wrong type",
)  # fmt: skip
BODIES = (
    "line ends and byte order marks", "spliced", "tokens deleted, doubled, exchanged", "unbalanced", "compiler bombs",
)  # fmt: skip
RUNNING = ("crashes and hangs",)
EACH = 3  # of a kind; by hand, hundreds


def garbage(folder: Path, kinds: tuple[str, ...], target: str) -> None:
    out, count = folder / "garbage.json", EACH * len(kinds)
    words = ["--count", str(count), "--seed", "3", "--target", target, "--out", str(out), "--checked", "1"]
    command = [sys.executable, str(BENCHMARKS / "garbage_sources.py"), *words, "--kinds", *kinds]
    own = os.environ | {"TMPDIR": str(folder)}  # also its device locks: nobody else's timing is waited for
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=own)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert {kind: sum(found.values()) for kind, found in report["verdicts"].items()} == dict.fromkeys(kinds, EACH)
    assert not any("evaluator_error" in found for found in report["verdicts"].values())
    assert (report["processes_left"], report["violations"]) == (0, [])


@pytest.mark.parametrize("kinds", [HEADERS, BODIES, RUNNING])
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_garbage_for_the_cpu(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    garbage(tmp_path, kinds, "cpu")


@pytest.mark.parametrize("kinds", [HEADERS, BODIES])
def test_garbage_for_a_gpu_is_built_and_inspected(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    garbage(tmp_path, kinds, "sm_90")


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_a_compiler_that_talks_without_end_is_a_build_error(tmp_path: Path) -> None:
    code, said = compiler.run(["yes", "error: once more"], tmp_path, 20.0)
    assert code != 0
    assert said.startswith("error: once more\n")
    assert len(said) < 1 << 20

"""The command line as a process: how fast it starts, what it imports, signals and closed pipes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import pytest


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=30)


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_is_quick_and_lists_every_verb() -> None:
    spent: dict[tuple[str, ...], list[float]] = {("-m", "evo", "--help"): [], ("-c", "import typer.rich_utils"): []}
    for _ in range(3):
        for words, seconds in spent.items():
            before = children_cpu_s()  # processor time: unlike wall time it hardly depends on what else goes on
            assert python(*words).returncode == 0
            seconds.append(children_cpu_s() - before)
    help_s, least_s = map(min, spent.values())
    assert help_s < 3 * least_s  # 1.6 times what any help must import; 0.15 s on an idle core
    done = python("-m", "evo", "--help")
    for verb in ("run", "resume", "check", "bench", "operators", "targets", "baselines", "archive"):
        assert f" {verb} " in done.stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = (
        "numpy",
        "pydantic",
        "sqlalchemy",
        "sqlmodel",
        "deap",
        "cuda",
        "ml_dtypes",
        "pluggy",
        "evo.app",
        "evo.engine",
    )
    code = f"import sys, evo.cli.root; print([name for name in {heavy} if name in sys.modules])"
    assert python("-c", code).stdout.strip() == "[]"


def test_a_verb_without_an_archive_imports_none() -> None:
    heavy = ("sqlalchemy", "sqlmodel", "httpx", "jinja2", "deap")
    code = (
        f"import sys; from evo.app import bench, check, list_operators; print([n for n in {heavy} if n in sys.modules])"
    )
    assert python("-c", code).stdout.strip() == "[]"
    assert python("-c", "from evo import app; [getattr(app, name) for name in app.__all__]").returncode == 0


def test_version_is_the_distributions() -> None:
    from importlib import metadata

    assert python("-m", "evo", "--version").stdout == f"evo {metadata.version('evo-kernels')}\n"


def test_an_unknown_operator_is_a_clear_error() -> None:
    done = python("-m", "evo", "run", "--operator", "rmsnrom", "--archive", os.devnull)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown operator 'rmsnrom'\n")
    assert "did you mean rmsnorm or" in done.stderr
    assert "Traceback" not in done.stderr


INTERRUPTED = """
import signal, sys, time, types
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
import evo
evo.app = sys.modules["evo.app"] = types.ModuleType("evo.app")
evo.app.Settings = dict
evo.app.AgentSettings = lambda *given: types.SimpleNamespace(replayed=False)
def run(settings, observe):
    print("started", flush=True)
    time.sleep(30)
evo.app.run = run
sys.argv = ["evo", "run", "-o", "rmsnorm"]
from evo.cli import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_shows_no_traceback(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "interrupted\n")


def test_output_into_a_closed_pipe_shows_no_traceback() -> None:
    done = subprocess.run(
        f"{sys.executable} -m evo --help | head -1", shell=True, capture_output=True, text=True, timeout=30
    )
    assert "Traceback" not in done.stderr

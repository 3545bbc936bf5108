"""The command line: parsing, exit statuses, and where output goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

import evo
from evo.archive.asking import Rows
from evo.archive.views import BoardCount, RunRecord
from evo.cli.root import app
from evo.engine.result import Best, CaseSummary, Progress, Result
from evo.errors import ArchiveError, RunError, UnknownNameError
from evo.records import CaseResult, Deviation, Diagnosis, Evaluation, Purpose, Stage, Status
from evo.report.rows import BaselineRow, OperatorRow, TargetRow

RUN = "0192f3a4-5b6c-7000-8000-000000000000"
CANDIDATE = "a1" * 32
PROGRESS = Progress(
    RUN, "search", 5, 1, 2, {"crash": 1}, {"n8": Best(1.1, 1.0, 1.2, 9.0, CANDIDATE, "s")}, 3.0, "0:57", 0.1
)
RESULT = Result(
    RUN, "rmsnorm", "cpu", "cpu:0", "numpy",
    (CaseSummary("n8", 10.0, 5.0, 2.0, 1.9, 2.1, 0.5, CANDIDATE, "s", {}, 9, True),),
    {"crash": 1}, 5, 1, 60.0, "winner.cpp", "evo.db",
)  # fmt: skip
GOOD = Evaluation(
    RUN,
    "",
    CANDIDATE,
    Purpose.SEARCH,
    "",
    "cpu:0",
    Status.OK,
    cases=(CaseResult("n8", Status.OK, Deviation(1e-3, float("inf"))),),
)
RECORD = RunRecord(
    RUN, "rmsnorm", "cpu", "cpu:0", "evo run --operator rmsnorm --target cpu --budget minutes=1,evaluations=500", 7,
    "minutes=1", ("n8",), "numpy", "e", 1e9,
)  # fmt: skip


class FakeAgents(NamedTuple):
    llm: tuple[str, ...] = ()
    approve: tuple[str, ...] = ()
    prompts: str = ""
    slots: int = 4
    replayed: bool = False


class Fake(ModuleType):
    """Stands in for `evo.app`, so that these tests see what commands pass on and print, and nothing else."""

    def __init__(self) -> None:
        super().__init__("evo.app")
        self.Settings = dict
        self.AgentSettings = FakeAgents
        self.calls: list[tuple[Any, ...]] = []

    def answer(self, name: str, value: Any) -> None:
        def function(*args: Any, **options: Any) -> Any:
            if say := options.pop("say", None):
                say("at work")
            self.calls.append((*args, options) if options else args)
            if isinstance(value, BaseException):
                raise value
            return value(*args) if callable(value) else value

        setattr(self, name, function)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    module = Fake()
    monkeypatch.setitem(sys.modules, "evo.app", module)
    monkeypatch.setattr(evo, "app", module, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("EVO_ARCHIVE", raising=False)
    return module


def evo_run(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


def evolve(settings: Any, observe: Callable[[Progress], None]) -> Result:
    observe(PROGRESS)
    return RESULT


def test_run_passes_its_options_on_and_prints_the_table(fake: Fake) -> None:
    fake.answer("run", evolve)
    done = evo_run(
        "run",
        "-o",
        "rmsnorm",
        "-t",
        "cpu",
        "-b",
        "evaluations=5",
        "--cases",
        "n*",
        "--cases",
        "m8",
        "--seed",
        "3",
        "--fresh",
    )
    assert done.exit_code == 0
    assert fake.calls[0][0] == {
        "operator": "rmsnorm", "target": "cpu", "budget": "evaluations=5", "cases": ("n*", "m8"), "seed": 3,
        "fresh": True, "archive": "evo.db", "holdout": False, "protocol": "", "agents": FakeAgents(),
    }  # fmt: skip
    assert "2.000x  [1.900, 2.100]" in done.stdout
    assert "[3 s] search: 5 evaluated" in done.stderr
    assert "search:" not in done.stdout


def test_run_has_defaults_and_takes_the_archive_from_the_environment(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVO_ARCHIVE", "team.db")
    fake.answer("run", evolve)
    assert evo_run("run", "--operator", "rmsnorm", "--quiet").stderr == ""
    assert fake.calls[0][0] == {
        "operator": "rmsnorm", "target": "auto", "budget": "minutes=1", "cases": (), "seed": None, "fresh": False,
        "archive": "team.db", "holdout": False, "protocol": "", "agents": FakeAgents(),
    }  # fmt: skip


def test_run_prints_json_and_nothing_else_on_standard_output(fake: Fake) -> None:
    fake.answer("run", evolve)
    data = json.loads(evo_run("run", "-o", "rmsnorm", "--json").stdout)
    assert (data["winner"], data["cases"][0]["ratio"]) == ("winner.cpp", 2.0)


def test_run_draws_a_picture(fake: Fake, tmp_path: Path) -> None:
    fake.answer("run", evolve)
    assert evo_run("run", "-o", "rmsnorm", "--picture", str(tmp_path / "run.svg")).exit_code == 0
    assert (tmp_path / "run.svg").read_text().startswith("<svg")
    done = evo_run("run", "-o", "rmsnorm", "--picture", str(tmp_path / "none" / "run.svg"))
    assert done.exit_code == 2
    assert len(fake.calls) == 1  # refused before the run, not after it


@pytest.mark.parametrize("name", ["run.png", "run", "svg"])
def test_a_picture_of_another_kind_is_refused_before_the_run(fake: Fake, name: str) -> None:
    fake.answer("run", evolve)
    done = evo_run("run", "-o", "rmsnorm", "--picture", name)
    assert done.exit_code == 2
    assert f"'{name}' does not end in .svg" in done.stderr
    assert fake.calls == []


def test_a_run_that_finds_nothing_fails(fake: Fake) -> None:
    empty = Result(
        RUN, "rmsnorm", "cpu", "cpu:0", "numpy", (CaseSummary("n8", 1.0),), {"crash": 5}, 5, 0, 9.0, "", "evo.db"
    )
    fake.answer("run", empty)
    done = evo_run("run", "-o", "rmsnorm", "-q")
    assert (done.exit_code, "rejected: crash 5" in done.stdout) == (1, True)


def test_resume_passes_the_run_on(fake: Fake) -> None:
    fake.answer("resume", RESULT)
    assert evo_run("resume", "0192", "--archive", "x.db", "-q").exit_code == 0
    assert fake.calls[0][:2] == ("0192", "x.db")


def test_check_and_bench_pass_file_genes_and_cases_on(fake: Fake) -> None:
    fake.answer("check", lambda file: GOOD)
    fake.answer("bench", lambda file: GOOD)
    genes = ["-g", "THREADS=256", "--gene", "LOAD=ld.global.v4.b32", "--case", "n*"]
    assert evo_run("check", "k.cu", "-t", "sm_90", *genes, "--build-only").exit_code == 0
    assert evo_run("bench", "k.cu", *genes, "--against", "torch").exit_code == 0
    values = {"THREADS": "256", "LOAD": "ld.global.v4.b32"}
    assert fake.calls == [
        (Path("k.cu"), {"target": "sm_90", "genes": values, "cases": ("n*",), "build_only": True}),
        (Path("k.cu"), {"target": "auto", "genes": values, "cases": ("n*",), "against": "torch", "protocol": ""}),
    ]


@pytest.mark.parametrize("verb", ["check", "bench"])
def test_what_is_done_is_said_beside_the_data(fake: Fake, verb: str) -> None:
    fake.answer(verb, GOOD)
    done = evo_run(verb, "k.cu", "--json")
    assert json.loads(done.stdout)["status"] == "ok"
    assert done.stderr == "at work\n"
    assert evo_run(verb, "k.cu", "--quiet").stderr == ""


def test_check_as_json_is_valid_with_an_infinite_error(fake: Fake) -> None:
    fake.answer("check", lambda file: GOOD)
    data = json.loads(evo_run("check", "k.cu", "--json").stdout)
    assert data["cases"][0]["deviation"]["max"] == "Infinity"


def test_check_fails_when_the_candidate_does(fake: Fake) -> None:
    fake.answer("check", lambda file: Evaluation(RUN, "", CANDIDATE, Purpose.SEARCH, "", "cpu:0", Status.CRASH))
    assert evo_run("check", "k.cu").exit_code == 1


@pytest.mark.parametrize("gene", ["THREADS", "=1", "THREADS="])
def test_a_malformed_gene_is_a_usage_error(fake: Fake, gene: str) -> None:
    done = evo_run("check", "k.cu", "--gene", gene)
    assert done.exit_code == 2
    assert "NAME=VALUE" in done.stderr
    assert fake.calls == []


def test_lists_of_what_is_installed(fake: Fake) -> None:
    fake.answer("list_operators", [OperatorRow("rmsnorm", "1", "y = x / rms(x)", "evo-kernels", 11)])
    fake.answer("list_targets", [TargetRow("cpu", "cpu", True, True, ("cpu:0",), "")])
    fake.answer("list_baselines", [BaselineRow("rmsnorm", "torch", False, "", "pip install torch")])
    assert "evo-kernels" in evo_run("operators").stdout
    assert "cpu:0" in evo_run("targets").stdout
    assert "pip install torch" in evo_run("baselines", "-o", "rmsnorm").stdout
    assert json.loads(evo_run("operators", "--json").stdout)[0]["cases"] == 11
    assert json.loads(evo_run("targets", "--json").stdout)[0]["devices"] == ["cpu:0"]
    assert json.loads(evo_run("baselines", "--json").stdout)[0]["installed"] is False
    assert [call for call in fake.calls if call] == [("rmsnorm", "auto"), (None, "auto")]


def test_archive_questions_are_passed_on(fake: Fake) -> None:
    fake.answer("archive_top", [])
    fake.answer("archive_others", [BoardCount("rmsnorm", "cpu", "e1", "numpy", "warm", 7)])
    assert evo_run("archive", "top", "-o", "rmsnorm", "--case", "n8", "-n", "3").exit_code == 0
    assert evo_run("archive", "top", "--json").stdout.strip() == "[]"
    assert evo_run("archive", "top", "-n", "0").exit_code == 2
    assert evo_run("archive", "top", "-n", f"{1 << 63}").exit_code == 2
    assert fake.calls[::2] == [("evo.db", "rmsnorm", None, "n8", 3, ""), ("evo.db", None, None, None, 20, "")]
    assert fake.calls[1::2] == [("evo.db", "rmsnorm", None, ""), ("evo.db", None, None, "")]
    done = evo_run("archive", "top", "--json", "--evaluator", "e2")
    assert (done.stdout.strip(), "not shown, results of other evaluators: e1 (7)" in done.stderr) == ("[]", True)
    assert fake.calls[-2:] == [("evo.db", None, None, None, 20, "e2"), ("evo.db", None, None, "e2")]


def test_an_empty_select_is_no_question_for_all_rows(fake: Fake) -> None:
    fake.answer("archive_sql", Rows((), (), more=False))
    assert evo_run("archive", "query", "--sql", "").exit_code == 0
    assert evo_run("archive", "query", "--sql", "", "ratio > 1").exit_code == 2
    assert fake.calls == [("evo.db", "", 100)]


def test_runs_are_listed(fake: Fake) -> None:
    fake.answer("archive_runs", [RECORD])
    shown = evo_run("archive", "runs", "--archive", "x.db", "-n", "3").stdout
    assert RUN[:18] in shown
    assert f"  {RECORD.command}\n" in shown
    assert json.loads(evo_run("archive", "runs", "--json").stdout)[0]["id"] == RUN
    assert evo_run("archive", "runs", "--limit", "0").exit_code == 2
    assert evo_run("archive", "runs", "--limit", f"{1 << 63}").exit_code == 2
    assert fake.calls == [("x.db", 3), ("evo.db", 20)]
    assert "evo archive runs" in " ".join(evo_run("resume", "--help").stdout.replace("│", " ").split())


def test_a_long_compiler_line_is_not_broken_on_standard_output(fake: Fake) -> None:
    line = f"k.cpp:1:1: error: {'no such name ' * 20}"
    diagnosis = Diagnosis(Stage.BUILD, line, detail=f"{line}\n  1 | int\n    | ^~~\n")
    failed = replace(GOOD, status=Status.BUILD_ERROR, diagnosis=diagnosis, cases=())
    fake.answer("check", lambda file: failed)
    done = evo_run("check", "k.cpp")
    assert (done.exit_code, done.stdout.split("\n", 1)[1]) == (1, f"build: {line}\n  1 | int\n    | ^~~\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [((), "interrupted\n"), (("evo resume 01a2 goes on with it",), "interrupted: evo resume 01a2 goes on with it\n")],
)
def test_an_interrupt_says_how_to_go_on(fake: Fake, text: tuple[str, ...], shown: str) -> None:
    fake.answer("run", KeyboardInterrupt(*text))
    done = evo_run("run", "-o", "rmsnorm", "-q")
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", shown)


@pytest.mark.parametrize(
    ("error", "status", "shown"),
    [
        (
            UnknownNameError("operator", "rmsnrom", ["rmsnorm"]),
            2,
            "error: unknown operator 'rmsnrom'\n  did you mean rmsnorm?",
        ),
        (
            ArchiveError("evo.db is not an archive", fix="name another"),
            1,
            "error: evo.db is not an archive\n  name another",
        ),
        (RunError("the worker died"), 1, "error: the worker died"),
    ],
)
def test_a_mistake_is_shown_with_its_fix_and_no_traceback(
    fake: Fake, error: Exception, status: int, shown: str
) -> None:
    fake.answer("run", error)
    done = evo_run("run", "-o", "rmsnrom")
    assert (done.exit_code, done.stdout, done.stderr.strip()) == (status, "", shown)


def test_a_bug_keeps_its_traceback(fake: Fake) -> None:
    fake.answer("run", ZeroDivisionError("a bug"))
    assert isinstance(evo_run("run", "-o", "rmsnorm").exception, ZeroDivisionError)


def test_usage_errors_exit_with_2(fake: Fake) -> None:
    assert [evo_run(*args).exit_code for args in (["run"], ["rum"], ["check"], ["run", "-o", "x", "--seed", "y"])] == [
        2
    ] * 4

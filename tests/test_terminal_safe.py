"""Whoever wrote it, what evo prints for people holds no control characters and no lines of its own making."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import archive_records as records
import pytest
from printed import FIRST, evaluation, rendered
from rich.console import Console
from typer.testing import CliRunner

import evo as package
from evo.archive import Archive
from evo.archive.asking import Rows
from evo.archive.views import LineageNode, ProposalView, Shown
from evo.cli import output
from evo.cli.root import app
from evo.engine.result import Progress
from evo.fitness.findings import Finding, Health
from evo.ids import digest
from evo.records import Author, Candidate, Diagnosis, Proposal, Stage, State, Status
from evo.report.answers import answer_table
from evo.report.archive import shown_report
from evo.report.diagnosis import diagnosis_report
from evo.report.doctor import doctor_report
from evo.report.layout import assemble, listed, listing, table, text, unbroken
from evo.report.lineage import lineage_tree
from evo.report.live import Lines, progress_view
from evo.report.printable import hidden

EVIL = "\x1b[2Jgone\x07\r\u202e"
SHOWN = r"\x1b[2Jgone\x07\r\u202e"
CANDIDATE = Candidate(FIRST, "rmsnorm", "cpu", "plain", ".cpp", f"int main() {{ /* {EVIL}\n\t*/ }}\n", {"A": EVIL})
MADE = Proposal("p1", "r1", CANDIDATE, (), Author(EVIL, f"m\ny:{EVIL}"), f"{EVIL}\nsecond line")


def printed(part: Any) -> str:
    """As on a terminal without colours: of controls only the newlines between lines."""
    console = Console(width=200, file=(file := io.StringIO()), color_system=None, force_terminal=True)
    console.print(part, crop=False)
    return file.getvalue()


def expect_safe(shown: str, *, times: int = 1) -> None:
    assert {c for c in shown if hidden(c)} <= {"\n", "\t"}
    assert shown.count(SHOWN) >= times, shown


def test_what_reports_are_made_of() -> None:
    rows = table(EVIL, "other", title=EVIL)
    rows.add_row(EVIL, text(EVIL))
    for part, times in (
        (text(EVIL), 1), (unbroken(EVIL), 1), (assemble(EVIL, (EVIL, "bold")), 2), (rows, 4),
        (listed(f"// {EVIL}\n", "cpp"), 1),
    ):  # fmt: skip
        expect_safe(printed(part), times=times)
    lines = listing(["a"], [[f"{EVIL}\nfake"]])
    assert [line.plain for line in lines][2] == rf"{SHOWN}\nfake"


def test_brackets_in_cells_and_heads_are_no_markup() -> None:
    rows = table("[red]head", "b")
    rows.add_row("[bold]cell[/bold]", "x")
    assert "[red]head" in rendered(rows)
    assert "[bold]cell[/bold]" in rendered(rows)


def test_everything_about_a_candidate() -> None:
    failed = Diagnosis(Stage.BUILD, f"error: {EVIL}", EVIL, f"log {EVIL}\n\tmore {EVIL}")
    judged = evaluation(status=Status.BUILD_ERROR, diagnosis=failed, device=EVIL)
    shown = Shown("candidate", FIRST, CANDIDATE, (ProposalView(MADE, State.DONE, 1.0),), (judged,))
    written = printed(shown_report(shown))
    expect_safe(written, times=8)
    assert rf"m\ny:{SHOWN}" in written.replace("\n", ""), "an author is one line"
    expect_safe(printed(diagnosis_report(failed)), times=3)


def test_a_lineage_keeps_to_its_lines() -> None:
    node = LineageNode(FIRST, (), f"plain\n{EVIL}", None, "", 0, MADE.author, None, (f"A\n{EVIL}",))
    written = printed(lineage_tree([node]))
    expect_safe(written, times=4)
    assert len(written.splitlines()) == 1


def test_answers_findings_and_progress() -> None:
    expect_safe(printed(answer_table(Rows((EVIL,), ((EVIL,),)))), times=2)
    expect_safe(printed(doctor_report([Finding(EVIL, EVIL, Health.PROBLEM, EVIL, EVIL, (EVIL,))])), times=5)
    progress = Progress("r1", "search", 1, 0, 0, {}, {}, 1.0, EVIL, 0.5, message=EVIL, step=EVIL)
    expect_safe(printed(progress_view(progress, rows=5)), times=1)
    console = Console(file=(file := io.StringIO()))
    Lines(console)(progress)
    expect_safe(file.getvalue(), times=2)


def test_what_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    output.echo(f"{EVIL}\n\tb")
    output.sayer(quiet=False)(EVIL)
    with output.doing("looking") as say:
        say(EVIL)
    output.print_json({"note": EVIL})
    out, err = capsys.readouterr()
    expect_safe(out)
    expect_safe(err.replace("\n", ""), times=2)
    assert r"\u202e" in out


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_tables_for_programs_are_escaped_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", file := io.StringIO())
    output.print_csv([[EVIL]], ["note"])
    assert EVIL in file.getvalue()
    monkeypatch.setattr("sys.stdout", screen := Screen())
    output.print_csv([[EVIL]], ["note"])
    expect_safe(screen.getvalue())


HERE = Path(package.__file__).parent
RAW = re.compile(
    r"\b(Text|Syntax|Segment)\(|\bText\.|from_markup|\btyper\.s?echo\(|(?<!console\.)\bprint\(|\bstd(out|err)\.write\("
)
MAY = {"report/layout.py", "cli/output.py", "cli/__init__.py"}  # the last says one word of its own


def test_there_is_one_way_to_print() -> None:
    """Reports are made of `evo.report.layout`, commands print by `evo.cli.output`: the two that escape."""
    files = {f"{folder}/{path.name}": path for folder in ("report", "cli") for path in (HERE / folder).glob("*.py")}
    lines = [(name, line) for name, path in files.items() for line in path.read_text().splitlines()]
    assert [(name, line) for name, line in lines if name not in MAY and RAW.search(line)] == []


def test_what_strangers_filed_is_shown_and_obeyed_by_nothing(tmp_path: Path) -> None:
    place = str(tmp_path / "evo.db")
    with Archive.open(place) as archive:
        archive.start_run(replace(records.RUN, command=f"evo run {EVIL}"))
        made = records.proposal("a")
        source = f"{made.candidate.source}  // {EVIL}"
        candidate = replace(made.candidate, source=source, id=digest([source]), species=EVIL)
        archive.propose(replace(made, candidate=candidate, note=EVIL, author=Author("x", f"x\ny:{EVIL}")))
        failed = Diagnosis(Stage.BUILD, EVIL, "", f"{EVIL}\n{EVIL}")
        judged = records.evaluation("a", status=Status.BUILD_ERROR)
        archive.file(replace(judged, candidate=candidate.id, diagnosis=failed), None)
    for verb, times in {
        f"show {candidate.id}": 5, f"show {candidate.id} --json": 0, f"lineage {candidate.id}": 2, "runs": 1,
        "failures": 1, "query --of proposal --columns note": 1, f"diff {candidate.id} {candidate.id}": 1,
        "query --sql": 1,
    }.items():  # fmt: skip
        sql = [f"SELECT note AS '{EVIL}' FROM proposal"] if verb.endswith("--sql") else []
        words = ["archive", *verb.split(), *sql, "--archive", place]
        done = CliRunner(env={"COLUMNS": "300"}).invoke(app, words)
        assert done.exit_code == 0, done.output
        expect_safe(done.output, times=times)
    missing = CliRunner().invoke(app, ["archive", "show", EVIL, "--archive", f"{place}{EVIL}"])
    expect_safe(missing.output)

"""Reports: how numbers are written, and that nothing is hidden in the tables."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evo.archive.views import LineageNode, ProposalView, RunRecord, Shown, TopRow
from evo.engine.result import Best, CaseSummary, Progress, Result
from evo.errors import UsageError
from evo.records import (
    Author,
    Build,
    Candidate,
    CaseResult,
    Deviation,
    Diagnosis,
    Evaluation,
    Kernel,
    Proposal,
    Purpose,
    Stage,
    State,
    Status,
    Timing,
    Values,
)
from evo.report import notation
from evo.report.archive import shown_report, top_table
from evo.report.evaluation import evaluation_report
from evo.report.lineage import lineage_tree
from evo.report.live import Lines, Terminal, Watch, progress_line, progress_view, watch
from evo.report.picture import draw
from evo.report.rows import BaselineRow, OperatorRow, TargetRow
from evo.report.runs import run_list
from evo.report.summary import summary
from evo.report.tables import baseline_table, operator_table, target_table

RUN = "0192f3a4-5b6c-7000-8000-000000000000"
FIRST, SECOND = "a1" * 32, "b2" * 32


def rendered(part: Any, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(part, crop=False)
    return console.export_text()


def squeezed(part: Any, width: int = 80) -> list[str]:
    return [" ".join(line.split()) for line in rendered(part, width).splitlines()]


def progress(**changes: Any) -> Progress:
    best = {"m8-n256": Best(1.0342, 1.0313, 1.0371, 38.121, FIRST, "block-per-row")}
    base = Progress(RUN, "search", 123, 4, 3, {"build_error": 2, "wrong_result": 11}, best, 12.3, "0:36", 0.25)
    return replace(base, **changes)


def result(**changes: Any) -> Result:
    values: Values = {"THREADS": 256, "LOAD": "ld.global.nc.L1::no_allocate.L2::128B.v4.b32"}
    cases = (
        CaseSummary(
            "m32768-n1024-bf16", 39.424, 38.121, 1.0342, 1.0313, 1.0371, 0.81, FIRST, "block-per-row", values, 60, True
        ),
        CaseSummary(
            "m32768-n16384-bf16", 960.0, 990.0, 0.9697, 0.9651, 0.9742, 0.7, SECOND, "cluster", values, 60, True
        ),
        CaseSummary(
            "m32768-n32768-bf16", 2000.0, 1600.0, 1.25, 1.2, 1.3, 0.0, FIRST, "block-per-row", values, 12, False
        ),
        CaseSummary("m8-n262144-bf16", 12.0),
    )
    rejected = {"wrong_result": 11, "build_error": 2}
    base = Result(
        RUN, "rmsnorm", "sm_90", "cuda:0", "torch", cases, rejected, 123, 4, 58.1, "evo-winners/best.cu", "evo.db"
    )
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("value", "written"),
    [(1.0342, "1.034x"), (0.97, "0.97x"), (0.998, "0.998x"), (12.345, "12.35x"), (float("nan"), "-")],
)
def test_ratios(value: float, written: str) -> None:
    assert notation.ratio(value) == written


def test_ratio_with_interval() -> None:
    assert notation.ratio_interval(1.0342, 1.0313, 1.0371) == "1.034x  [1.031, 1.037]"
    assert notation.ratio_interval(0.9697, 0.9651, 0.9742) == "0.97x  [0.965, 0.974]"


@pytest.mark.parametrize(
    ("microseconds", "written"),
    [
        (0.81234, "812.3 ns"),
        (1.0, "1.000 us"),
        (38.124, "38.12 us"),
        (812.34, "812.3 us"),
        (999.99, "1.000 ms"),
        (1204.0, "1.204 ms"),
        (2.5e6, "2.500 s"),
        (0.0, "-"),
        (float("inf"), "-"),
    ],
)
def test_times_have_four_digits_and_a_unit(microseconds: float, written: str) -> None:
    assert notation.time(microseconds) == written


def test_small_notations() -> None:
    assert [notation.duration(s) for s in (48.2, 200, 7500)] == ["48 s", "3 min 20 s", "2 h 5 min"]
    assert [notation.size(n) for n in (512, 49152, 100 << 20, 3 << 30)] == ["512 B", "48 KiB", "100 MiB", "3 GiB"]
    assert notation.share(0.812) == "81%"
    assert notation.share(0.0) == "-"
    assert notation.counts({"crash": 0, "b": 2, "a": 2, "c": 9}) == "c 9, a 2, b 2"
    assert notation.counts({}) == "none"
    assert notation.short(RUN) == "0192f3a4-5b6c"
    assert notation.short(FIRST) == "a1a1a1a1a1"


def test_the_spread_holds_minimum_geomean_and_maximum() -> None:
    assert notation.spread([2.0, 0.5, 1.331]) == "min 0.50x   geomean 1.100x   max 2.000x"
    assert notation.spread([0.0]) == "no case has a speed-up"


def test_the_summary_shows_wins_losses_and_gaps() -> None:
    page = rendered(summary(result(notes=("no [GPU] found",))))
    lines = [" ".join(line.split()) for line in page.splitlines()]
    assert "m32768-n1024-bf16 39.42 us 38.12 us 1.034x [1.031, 1.037] 81% A" in lines
    assert "m32768-n16384-bf16 960.0 us 990.0 us 0.97x [0.965, 0.974] 70% B" in lines
    assert "m32768-n32768-bf16 2.000 ms 1.600 ms ~ 1.250x [1.200, 1.300] - A" in lines
    assert "m8-n262144-bf16 12.00 us - not covered - -" in lines
    assert "min 0.97x geomean 1.078x max 1.250x over 3 of 4 cases" in lines
    assert "123 evaluated, 4 duplicates, in 58 s" in lines
    assert "rejected: wrong_result 11, build_error 2" in lines
    assert "note: no [GPU] found" in lines
    assert "winner: evo-winners/best.cu" in lines
    assert "evo archive show a1a1a1a1a1" in lines
    assert all(len(line.rstrip()) <= 80 for line in page.splitlines())


def test_the_summary_names_another_archive_in_its_commands() -> None:
    assert "evo archive top --operator rmsnorm --target sm_90 --archive 'my runs.db'" in rendered(
        summary(result(archive="my runs.db")), width=120
    )


def test_the_summary_of_a_run_that_found_nothing_says_so() -> None:
    nothing = result(cases=(CaseSummary("m8-n256", 12.0),), winner="")
    page = rendered(summary(nothing))
    assert "no case has a speed-up   over 0 of 1 cases" in page
    assert "no candidate was right: no winner" in page
    assert "no right candidate" in page
    assert "not covered" not in page
    unrejected = rendered(summary(replace(nothing, rejected={})))
    assert "not covered" in unrejected
    assert "no right candidate" not in unrejected
    assert "nothing was evaluated within the budget" in rendered(summary(result(evaluated=0, winner="")))
    assert "evo archive show 0192f3a4-5b6c" in page


def test_an_interrupted_run_can_be_resumed() -> None:
    assert "evo resume 0192f3a4-5b6c" in rendered(summary(result(notes=("interrupted",))))
    assert "evo resume" not in rendered(summary(result()))


def test_paths_in_the_working_folder_are_short_and_the_leaders_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "evo-winners" / "run"
    folder.mkdir(parents=True)
    for name in (SECOND, FIRST):
        (folder / f"species-{name[:8]}.cu").touch()
    page = rendered(summary(result(winner=str(folder), archive=str(tmp_path / "evo.db"))))
    assert "winner: evo-winners/run\n" in page.replace(" \n", "\n")
    assert "evo bench evo-winners/run/species-a1a1a1a1.cu --target sm_90" in page
    assert "--archive" not in page


def test_paths_are_not_broken(tmp_path: Path) -> None:
    winner, archive = (str(tmp_path / f"{'folder with a long name ' * 5}{end}") for end in ("winners", "evo.db"))
    lines = rendered(summary(result(winner=winner, archive=archive))).splitlines()
    assert f"winner: {winner}" in lines
    assert f"archive: {archive}" in lines


def test_many_winners_get_letters_that_differ() -> None:
    cases = tuple(CaseSummary(f"n{i}", 2.0, 1.0, 2.0, 1.9, 2.1, 0.5, f"{i:064x}", "s", {}, 9, True) for i in range(30))
    page = rendered(summary(result(cases=cases)))
    letters = [line.split()[-1] for line in page.splitlines() if line.startswith("n") and " us " in line]
    assert letters[:2] == ["A", "B"]
    assert letters[25:27] == ["Z", "AA"]
    assert len(set(letters)) == 30


def test_a_line_holds_all_of_a_snapshot() -> None:
    assert progress_line(progress()) == (
        "[12 s] search: 123 evaluated, 4 duplicates, 3 in flight; rejected: wrong_result 11, build_error 2; "
        "min 1.034x   geomean 1.034x   max 1.034x; 0:36 of the search left"
    )


@pytest.mark.parametrize(
    ("left", "phase", "written"),
    [
        ("0:48", "seeds", "0:48 of the search left"),
        ("120 evaluations", "search", "120 evaluations left"),
        ("1:30 on the device", "search", "1:30 on the device left"),
        ("no limit", "search", "no limit"),
        ("0:00", "finals", "the best are measured again"),
    ],
)
def test_what_is_left_is_the_searchs(left: str, phase: str, written: str) -> None:
    snapshot = progress(left=left, phase=phase)
    assert progress_line(snapshot).split("; ")[-1] == written
    assert rendered(progress_view(snapshot, rows=3)).splitlines()[0].rstrip().endswith(f"  {written}")


def test_off_a_terminal_a_line_comes_every_five_seconds_and_at_every_change() -> None:
    now = 0.0
    console = Console(file=io.StringIO(), width=80)
    lines = Lines(console, clock=lambda: now)
    for now, phase, message in [
        (0.0, "seeds", "no GPU [here]"),
        (1.0, "seeds", "no GPU [here]"),
        (2.0, "search", ""),
        (6.9, "search", ""),
        (7.1, "search", ""),
    ]:
        lines(progress(phase=phase, message=message, evaluated=int(now * 10)))
    out = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert out[0] == "no GPU [here]"
    assert [line.split("evaluated")[0] for line in out[1:]] == [
        "[12 s] seeds: 0 ",
        "[12 s] search: 20 ",
        "[12 s] search: 71 ",
    ]


def test_on_a_terminal_the_display_is_redrawn_and_messages_stay() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=24, color_system=None)
    with watch(console) as display:
        assert isinstance(display, Terminal)
        display(progress(message="no GPU [here]"))
    out = file.getvalue()
    assert "no GPU [here]" in out
    assert "123 evaluated" in out
    assert "\x1b[2K" in out  # erased at the end: the summary takes its place


def test_the_display_fits_its_rows() -> None:
    best = {f"case{i}": Best(1.1, 1.0, 1.2, 10.0, FIRST, "s") for i in range(20)}
    page = rendered(progress_view(progress(best=best), rows=5))
    assert "case4" in page
    assert "case5" not in page
    assert "and 15 more" in page


def test_quiet_shows_nothing() -> None:
    console = Console(file=io.StringIO())
    quiet = watch(console, quiet=True)
    assert type(quiet) is Watch
    quiet(progress())
    assert quiet.last == progress()


def test_the_picture_is_an_svg_that_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.svg"
    draw(path, "evo run --operator rmsnorm", progress(), result())
    text = path.read_text()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = "".join(root.itertext()).replace("\xa0", " ")
    assert "evo run --operator rmsnorm" in words
    assert "1.034x  [1.031, 1.037]" in words
    assert "url(http" not in text
    assert "font-face" not in text


def test_a_picture_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write the picture"):
        draw(tmp_path, "evo run", None, result())


def evaluation(**changes: Any) -> Evaluation:
    kernel = Kernel("rmsnorm_forward", (8, 8), registers=40, spill_bytes=16, shared_bytes=49152)
    build = Build("k", Status.OK, "nvrtc 13.0", 0.1, code_hash="c3" * 32, kernels=(kernel,))
    timing = Timing("rotation", "torch", 38.121, 39.424, 1.0342, 1.0313, 1.0371, 0.95, 60, "fixed", light_us=30.9)
    cases = (
        CaseResult("m8-n256", Status.OK, Deviation(1.25e-3, 2.5e-3), timing),
        CaseResult(
            "m8-n300", Status.UNCOVERED, diagnosis=Diagnosis(Stage.PLAN, "N % 256 == 0 does not hold", "m8-n300")
        ),
    )
    base = Evaluation(
        RUN, "", FIRST, Purpose.SEARCH, "torch", "cuda:0", Status.OK, None, (build, build), cases, {"build": 0.12}
    )
    return replace(base, **changes)


def test_an_evaluation_shows_builds_deviations_and_times() -> None:
    page = rendered(evaluation_report(evaluation()))
    lines = [" ".join(line.split()) for line in page.splitlines()]
    assert "ok candidate a1a1a1a1a1 on cuda:0 (build 0.12 s)" in lines
    assert "kernel registers spills shared code" in lines  # no kernel has a stack
    assert lines.count("rmsnorm_forward 40 16 B 48 KiB c3c3c3c3c3") == 1
    assert "m8-n256 ok 1.25e-03 2.50e-03" in lines
    assert lines[-2:] == ["not covered: 1 case", "N % 256 == 0 does not hold: m8-n300"]
    assert "uncovered" not in page
    assert lines.index("against torch") + 1 == lines.index("case opponent time speed-up light pairs")
    assert "m8-n256 39.42 us 38.12 us 1.034x [1.031, 1.037] 81% 60" in lines
    assert "min 1.034x geomean 1.034x max 1.034x over 1 of 2 cases" in lines


def test_cases_timed_against_different_opponents_name_theirs() -> None:
    first = evaluation().cases[0]
    assert first.timing is not None
    second = replace(first, case="m8-n512", timing=replace(first.timing, opponent="numpy"))
    page = rendered(evaluation_report(evaluation(cases=(first, second))), width=100)
    lines = [" ".join(line.split()) for line in page.splitlines()]
    assert "m8-n256 39.42 us torch 38.12 us 1.034x [1.031, 1.037] 81% 60" in lines
    assert "m8-n512 39.42 us numpy 38.12 us 1.034x [1.031, 1.037] 81% 60" in lines


def test_an_opponents_file_is_named_without_its_folder() -> None:
    timed = evaluation().cases[0]
    assert timed.timing is not None
    path = "/home/somebody/a folder/with/a/path/of/many/parts/that/would/be/folded/plain-reference.cpp"
    page = rendered(evaluation_report(evaluation(cases=(replace(timed, timing=replace(timed.timing, opponent=path)),))))
    assert "\nagainst plain-reference.cpp\n" in page
    assert "somebody" not in page


def test_uncovered_cases_are_grouped_by_reason_at_the_end() -> None:
    budget = "constraint 'BUDGET <= 216' does not hold: BUDGET = {}"
    why = {
        "n8": "kernel f needs the optional tensor 'weight'",
        "n1": budget.format(304),
        "n2": budget.format(560),
    }
    uncovered = tuple(
        CaseResult(name, Status.UNCOVERED, diagnosis=Diagnosis(Stage.PLAN, message, name))
        for name, message in why.items()
    )
    lines = squeezed(evaluation_report(evaluation(cases=(*uncovered, evaluation().cases[0]))))
    assert lines[-3:] == [
        "not covered: 3 cases",
        "kernel f needs the optional tensor 'weight': n8",
        "constraint 'BUDGET <= 216' does not hold: n1, n2",
    ]
    assert lines.count("m8-n256 ok 1.25e-03 2.50e-03") == 1
    assert not any(line.startswith("plan") for line in lines)


def test_without_a_device_cases_are_built_and_no_more() -> None:
    cases = (CaseResult("n1", Status.OK), CaseResult("n2", Status.RESOURCE_LIMIT))
    lines = squeezed(evaluation_report(evaluation(device="", cases=cases)))
    assert lines[0] == "built candidate a1a1a1a1a1 (build 0.12 s)"
    assert lines[-4] == "case status"
    assert lines[-2:] == ["n1 built", "n2 resource_limit"]


def test_of_kernels_that_nothing_is_known_of_the_code_remains() -> None:
    builds = tuple(Build(f"k{n}", Status.OK, "g++", 0.1, code_hash=n * 64, kernels=(Kernel("f"),)) for n in "eaa")
    known = evaluation(builds=builds)
    lines = squeezed(evaluation_report(known))
    head = lines.index("kernel code")
    assert lines[head + 2 : head + 5] == [f"f {'e' * 10}", f"f {'a' * 10}", ""]  # the order of the builds
    assert "kernel code" not in squeezed(evaluation_report(known, archived=True))


def test_the_most_frequent_opcodes_take_a_line_a_kernel() -> None:
    counts = {"RET": 1, "FFMA": 64, "LDG.E.128": 32, "FADD": 32, "F2FP.BF16.F32.PACK_AB": 9, "MUFU.RSQ": 2}
    kernel = Kernel("rmsnorm_forward", registers=40, opcodes=counts)
    counted = evaluation(builds=(Build("k", Status.OK, "nvrtc", 0.1, code_hash="c3" * 32, kernels=(kernel,)),))
    page = rendered(evaluation_report(counted), width=100)
    assert "rmsnorm_forward  c3c3c3c3c3  FFMA 64, FADD 32, LDG.E.128 32, F2FP.BF16.F32.PACK_AB 9\n" in page
    assert all(len(line) <= 80 for line in rendered(evaluation_report(counted)).splitlines())
    archived = squeezed(evaluation_report(counted, archived=True))
    assert "rmsnorm_forward 40 c3c3c3c3c3" in archived
    assert not any("FFMA" in line for line in archived)


def test_the_times_of_the_stages_stay_in_one_line() -> None:
    seconds = {"build": 0.0, "check": 0.11, "time": 0.0}
    lines = rendered(evaluation_report(evaluation(status=Status.NONDETERMINISTIC, seconds=seconds))).splitlines()
    assert lines[:2] == [
        "nondeterministic  candidate a1a1a1a1a1 on cuda:0",
        "(build 0.00 s, check 0.11 s, time 0.00 s)",
    ]
    lines = rendered(evaluation_report(evaluation(seconds=seconds))).splitlines()
    assert lines[0] == "ok  candidate a1a1a1a1a1 on cuda:0  (build 0.00 s, check 0.11 s, time 0.00 s)"


LOG = f"""k.cu(7): error: identifier "it" is undefined
\tvoid f({"const float* x, " * 8}it rows) {{  // [red]
\t       {" " * 128}^
1 error detected.   of it"""


@pytest.mark.parametrize(
    ("message", "before", "after"),
    [
        ('k.cu(7): error: identifier "it" is undefined', "", ""),
        ('k.cu(7): identifier "it" is undefined', "", ""),  # the compiler's severity is left out of the sentence
        ('k.cu(7): identifier "it" is undefined; declare it', "", "declare it\n"),
        ("another message", "another message\n", ""),
    ],
)
def test_a_compilers_log_is_printed_as_it_came_and_once(message: str, before: str, after: str) -> None:
    diagnosis = Diagnosis(Stage.BUILD, message, detail=LOG + "\n")
    failed = evaluation(status=Status.BUILD_ERROR, diagnosis=diagnosis, builds=(), cases=(), seconds={})
    page = rendered(evaluation_report(failed))
    assert page == f"build_error  candidate a1a1a1a1a1 on cuda:0\nbuild: {before}{LOG}\n{after}"


def test_a_rejection_shows_its_diagnosis_in_full() -> None:
    detail = "\n".join(f"line {i} of [the log]" for i in range(50))
    diagnosis = Diagnosis(Stage.CHECK, "y[3] is 2.5, the truth 1.25", "m8-n256", detail)
    case = CaseResult("m8-n256", Status.WRONG_RESULT, Deviation(float("inf"), 1.0), diagnosis=diagnosis)
    page = rendered(evaluation_report(evaluation(status=Status.WRONG_RESULT, diagnosis=diagnosis, cases=(case,))))
    assert page.startswith("wrong_result")
    assert page.count("check, m8-n256: y[3] is 2.5, the truth 1.25") == 1
    assert "line 49 of [the log]" in page
    assert "infinite" in page


def test_tables_of_what_is_installed() -> None:
    operators = rendered(operator_table([OperatorRow("scale", "1", "y = a * x [fp32]", "evo-scale 0.1", 3)]))
    assert "y = a * x [fp32]" in operators
    targets = rendered(target_table([TargetRow("sm_90", "cuda", True, False, (), "no GPU; use --build-only")]))
    assert targets.splitlines()[-1].split()[:4] == ["sm_90", "cuda", "yes", "no"]
    baselines = rendered(baseline_table([BaselineRow("rmsnorm", "quack", False, "", "pip install quack-kernels")]))
    assert "pip install quack-kernels" in baselines
    assert "the plain seed is the yardstick" in rendered(baseline_table([]))


def top_row(**changes: Any) -> TopRow:
    base = TopRow(
        candidate=FIRST, species="block-per-row", operator="rmsnorm", target="sm_90", values={"THREADS": 256},
        score=1.021, covered=11, case="m8-n256", ratio=1.0342, low=1.0313, high=1.0371, time_us=38.1,
        protocol="rotation", yardstick="torch", purpose=Purpose.FINAL, evaluator="e", run=RUN, evaluation=RUN,
        evaluated_s=1e9,
    )  # fmt: skip
    return replace(base, **changes)


def test_rankings_of_different_yardsticks_stay_apart() -> None:
    page = rendered(top_table([top_row(), top_row(yardstick="plain")]))
    assert "rmsnorm on sm_90, against torch" in page
    assert "rmsnorm on sm_90, against plain" in page
    lines = [line.split() for line in page.splitlines() if line.startswith("a1a1")]
    assert lines == [["a1a1a1a1a1", "1.021x", "11", "1.034x", "[1.031,", "1.037]", "m8-n256", "block-per-row"]] * 2
    assert "no timed candidate" in rendered(top_table([]))


def test_a_ranking_marks_what_was_not_measured_again() -> None:
    footnote = "~ the search's own number, not measured again: it may flatter"
    final, searched = top_row(), top_row(candidate=SECOND, purpose=Purpose.SEARCH)
    lines = squeezed(top_table([final, searched]))
    assert "a1a1a1a1a1 1.021x 11 1.034x [1.031, 1.037] m8-n256 block-per-row" in lines
    assert "b2b2b2b2b2 1.021x 11 ~ 1.034x [1.031, 1.037] m8-n256 block-per-row" in lines
    assert lines[-1] == footnote
    assert footnote not in squeezed(top_table([final]))


def test_a_list_of_runs_has_their_ids_and_commands() -> None:
    command = "evo run --operator rmsnorm --target cpu --budget minutes=1 --cases 'bf16-*' --cases 'fp32-*' --fresh"
    runs = [
        RunRecord(RUN, "rmsnorm", "cpu", "cpu:0", command, 7, "minutes=1", ("n1",), "numpy", "e", 1e9, 1e9, "done"),
        RunRecord("01a2" + RUN[4:], "scale", "sm_90", "cuda:0", "evo run", 7, "", (), "", "e", 1e9, None, "failed"),
    ]
    lines = rendered(run_list(runs)).splitlines()
    started = f"{datetime.fromtimestamp(1e9, UTC).astimezone():%Y-%m-%d %H:%M}"
    assert lines[0].split() == ["run", "state", "operator", "target", "started"]
    assert lines[2] == f"0192f3a4-5b6c-7000  done    rmsnorm   cpu     {started}"
    assert lines[3] == f"  {command}"
    assert lines[4] == f"01a2f3a4-5b6c-7000  failed  scale     sm_90   {started}"
    assert rendered(run_list([])) == "the archive holds no run\n"


def test_a_shown_candidate_has_genes_proposals_evaluations_and_source() -> None:
    candidate = Candidate(FIRST, "rmsnorm", "sm_90", "block-per-row", ".cu", "__global__ void f();\n", {"THREADS": 256})
    proposal = Proposal(RUN, RUN, candidate, (), Author("creep-mutation"), "one gene")
    shown = Shown("candidate", FIRST, candidate, (ProposalView(proposal, State.DONE, 1e9),), (evaluation(),))
    page = rendered(shown_report(shown), width=100)
    for part in ("THREADS=256", "creep-mutation", "one gene", "1.034x  [1.031, 1.037]", "__global__ void f();"):
        assert part in page


def test_a_shown_run_has_its_record_and_counts() -> None:
    run = RunRecord(
        RUN, "rmsnorm", "cpu", "cpu:0", "evo run", 7, "minutes=1", ("n1",), "numpy", "e", 1e9, 1e9 + 61, "done"
    )
    page = rendered(shown_report(Shown("run", RUN, run=run, statuses={"ok": 3, "crash": 1}, top=(top_row(),))))
    assert "done, started" in page
    assert "1 min 1 s, budget minutes=1, seed 7" in " ".join(page.split())
    assert "evaluations: ok 3, crash 1" in page
    assert "against torch" in page


def test_a_lineage_unfolds_a_shared_ancestor_once() -> None:
    seed = Author("seed")
    nodes = [
        LineageNode("c" * 64, ("d" * 64, "e" * 64), "child", 1.2, Status.OK, 0, Author("uniform-crossover")),
        LineageNode("d" * 64, ("e" * 64,), "left", None, Status.CRASH, 1, Author("llm", "big")),
        LineageNode("e" * 64, ("f" * 64,), "root", 1.0, Status.OK, 1, seed),
    ]
    page = rendered(lineage_tree(nodes))
    assert page.splitlines()[0] == "cccccccccc  child  1.200x  by uniform-crossover"
    assert page.count("eeeeeeeeee  root  1.000x  by seed") == 1
    assert page.count("eeeeeeeeee  (see above)") == 1
    assert "dddddddddd  left  crash  by llm big" in page
    assert "ffffffffff  (not followed)" in page

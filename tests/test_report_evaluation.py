"""What is printed of one evaluation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from printed import evaluation, rendered, squeezed

from evo.records import (
    Build,
    CaseResult,
    Deviation,
    Diagnosis,
    Kernel,
    Purpose,
    Stage,
    Status,
)
from evo.report.evaluation import evaluation_report
from evo.report.layout import FLATTERS


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
    assert "min 1.034x geomean 1.034x max 1.034x over 1 timed case" in lines


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


def test_numbers_of_the_search_are_marked() -> None:
    page = rendered(evaluation_report(evaluation(purpose=Purpose.SEARCH)), width=100)
    assert "~ 1.034x [1.031, 1.037]" in " ".join(page.split())
    assert [line.strip() for line in page.splitlines()].count(FLATTERS) == 1
    assert "~" not in rendered(evaluation_report(evaluation()), width=100)

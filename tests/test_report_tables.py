"""Tables of what is installed and of what the archive holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from printed import FIRST, RUN, SECOND, evaluation, rendered, squeezed

from evo.archive.views import LineageNode, ProposalView, RunRecord, Shown, TopRow
from evo.records import (
    Author,
    Candidate,
    Proposal,
    Purpose,
    State,
    Status,
)
from evo.report.archive import shown_report, top_table
from evo.report.lineage import lineage_report, lineage_tree
from evo.report.rows import BaselineRow, OperatorRow, TargetRow
from evo.report.runs import run_list
from evo.report.tables import baseline_table, operator_table, target_table


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
    footnote = "~ the search's own number: it may flatter"
    final, searched = top_row(), top_row(candidate=SECOND, purpose=Purpose.SEARCH)
    lines = squeezed(top_table([final, searched]))
    assert "a1a1a1a1a1 1.021x 11 1.034x [1.031, 1.037] m8-n256 block-per-row" in lines
    assert "b2b2b2b2b2 1.021x 11 ~ 1.034x [1.031, 1.037] m8-n256 block-per-row" in lines
    assert lines[-1] == footnote
    assert footnote not in squeezed(top_table([final]))


def test_geometric_means_over_different_numbers_of_cases_are_said_not_to_compare() -> None:
    said = "geomean: over the cases that each was timed in"
    assert said not in rendered(top_table([top_row(), top_row(candidate=SECOND)]))
    assert said in rendered(top_table([top_row(), top_row(candidate=SECOND, covered=2)]))


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


def test_a_lineage_hangs_every_line_below_the_step_that_it_had_a_part_in() -> None:
    parents = {"c": "de", "d": "f", "e": "gh", "f": "", "g": "i", "h": "", "i": ""}
    nodes = [
        LineageNode(name * 64, tuple(each * 64 for each in of), name, None, Status.OK, depth, Author("seed"))
        for depth, (name, of) in enumerate(parents.items())
    ]
    lines = rendered(lineage_tree(nodes)).splitlines()
    where = [(line.index(name * 10), name) for line in lines for name in parents if name * 10 in line]
    assert where == [(0, "c"), (4, "e"), (8, "h"), (4, "g"), (4, "i"), (0, "d"), (0, "f")]


def test_a_lineage_says_that_its_speed_ups_do_not_compare() -> None:
    alone = [LineageNode("a" * 64, (), "a", 1.2, Status.OK, 0, Author("seed"))]
    above = LineageNode("b" * 64, (), "b", 27.7, Status.OK, 1, Author("seed"))
    both = [replace(alone[0], parents=("b" * 64,)), above]
    assert "each was timed with" not in rendered(lineage_report(alone))
    assert "each was timed with" in rendered(lineage_report(both))


def test_a_lineage_unfolds_a_shared_ancestor_once() -> None:
    seed = Author("seed")
    nodes = [
        LineageNode("c" * 64, ("d" * 64, "e" * 64), "child", 1.2, Status.OK, 0, Author("uniform-crossover")),
        LineageNode("d" * 64, ("e" * 64,), "left", None, Status.CRASH, 1, Author("llm", "big")),
        LineageNode("e" * 64, ("f" * 64,), "root", 1.0, Status.OK, 1, seed, purpose=Purpose.FINAL),
    ]
    page = rendered(lineage_tree(nodes))
    assert page.splitlines()[0] == "cccccccccc  child  1.200x  by uniform-crossover"
    assert page.count("eeeeeeeeee  root  1.000x  by seed") == 1
    assert page.count("eeeeeeeeee  (see below)") == 1
    assert "dddddddddd  left  crash  by llm big" in page
    assert "ffffffffff  (not followed)" in page

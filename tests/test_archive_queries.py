"""What ranks first and why, what is shown, who descends from whom."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from archive_records import RUN, add, candidate, evaluation, proposal, timed
from typer.testing import CliRunner

from evo.archive import Archive, BoardCount, lineage, other_boards, show, top
from evo.archive.exchanges import file_exchanges
from evo.archive.tables import AGENT_JOB, insert_new
from evo.cli.root import app as cli
from evo.errors import UsageError
from evo.exchange import Exchange, Message, Reply, Request, Usage
from evo.records import Author, CaseResult, Purpose, Status


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive.open(str(tmp_path / "evo.db")) as opened:
        opened.start_run(RUN)
        yield opened


def names(archive: Archive, case: str | None = None) -> list[str]:
    return [str(row.values["LOAD"]) for row in top(archive, case=case)]


def test_top_ranks_by_the_geometric_mean_of_ok_cases(archive: Archive) -> None:
    add(archive, "narrow", timed("a", 3.0), CaseResult("b", Status.UNCOVERED))
    add(archive, "even", timed("a", 2.0), timed("b", 2.0))
    add(archive, "wide", timed("a", 8.0), timed("b", 0.25))
    add(archive, "wrong", timed("a", 90.0), CaseResult("b", Status.WRONG_RESULT), status=Status.WRONG_RESULT)
    rows = top(archive, "rmsnorm", "cpu")
    assert [row.values["LOAD"] for row in rows] == ["narrow", "even", "wide"]
    assert [row.score for row in rows] == pytest.approx([3.0, 2.0, math.sqrt(2)])
    assert [row.covered for row in rows] == [1, 2, 2]
    assert (rows[2].case, rows[2].ratio, rows[2].time_us, rows[2].protocol) == ("a", 8.0, 1.25, "warm")
    assert (rows[0].run, rows[0].yardstick, rows[0].evaluator) == ("run-1", "numpy", "e1")
    by_case = top(archive, case="b")
    assert [(row.values["LOAD"], row.case, row.ratio) for row in by_case] == [("even", "b", 2.0), ("wide", "b", 0.25)]
    assert top(archive, "softmax") == []
    assert top(archive, target="sm_90") == []
    assert len(top(archive, limit=2)) == 2


def test_a_final_sample_replaces_the_lucky_one_of_the_search(archive: Archive) -> None:
    add(archive, "lucky", timed("a", 5.0))
    add(archive, "solid", timed("a", 2.0))
    archive.file(evaluation("lucky", timed("a", 1.5), purpose=Purpose.FINAL), None)
    archive.file(evaluation("lucky", timed("a", 9.0)), None)  # newer, but a search
    for case in (None, "a"):
        assert [(row.values["LOAD"], row.ratio) for row in top(archive, case=case)] == [("solid", 2.0), ("lucky", 1.5)]
    assert top(archive)[1].purpose is Purpose.FINAL


def test_a_final_sample_of_fewer_cases_does_not_hide_the_others(archive: Archive) -> None:
    add(archive, "both", timed("a", 4.0), timed("b", 1.0))
    archive.file(evaluation("both", timed("a", 3.0), purpose=Purpose.FINAL), None)
    (row,) = top(archive)
    assert (row.covered, round(row.score, 9)) == (2, 2.0)
    assert [row.ratio for row in top(archive, case="a")] == [3.0]
    assert [row.ratio for row in top(archive, case="b")] == [1.0]


@pytest.mark.parametrize(
    ("status", "left"),
    [(Status.WRONG_RESULT, []), (Status.EVALUATOR_ERROR, ["a"]), (Status.UNSTABLE_TIMING, ["a"])],
)
def test_only_a_later_verdict_against_the_candidate_takes_its_place(
    archive: Archive, status: Status, left: list[str]
) -> None:
    add(archive, "a", timed("a", 2.0))
    archive.file(evaluation("a", CaseResult("a", status), status=status), None)
    assert names(archive) == left
    assert names(archive, "a") == left
    assert [elite.candidate.values["LOAD"] for elite in archive.elites("rmsnorm", "cpu")] == left


def test_other_evaluators_and_yardsticks_never_mix(archive: Archive) -> None:
    archive.start_run(dataclasses.replace(RUN, id="run-2", evaluator="e2", started_s=2000.0))
    add(archive, "old", timed("a", 50.0))
    add(archive, "new", timed("a", 1.1), run="run-2")
    add(archive, "newer", timed("a", 1.2), run="run-2")
    archive.file(evaluation("old", timed("a", 70.0), yardstick="loop"), None)
    assert [(row.values["LOAD"], row.evaluator) for row in top(archive)] == [("newer", "e2"), ("new", "e2")]
    others = [BoardCount("rmsnorm", "cpu", "e1", yardstick, "warm", 1) for yardstick in ("loop", "numpy")]
    assert sorted(other_boards(archive), key=lambda board: board.yardstick) == others
    older = top(archive, evaluator="e1")
    assert sorted((row.ratio, row.yardstick) for row in older) == [(50.0, "numpy"), (70.0, "loop")]
    assert [board.evaluations for board in other_boards(archive, evaluator="e1")] == [2]
    assert top(archive, evaluator="e3") == []
    assert len(top(archive, limit=1)) == 1
    assert [elite.score for elite in archive.elites("rmsnorm", "cpu", limit=2)] == pytest.approx([1.2, 1.1])
    (elite,) = archive.elites("rmsnorm", "cpu", "e1")  # one candidate, once, though it has a place on two boards
    assert round(elite.score) in (50, 70)


def test_protocols_never_mix(archive: Archive) -> None:
    add(archive, "warm", timed("a", 9.0))
    cold = timed("a", 1.1)
    assert cold.timing
    add(archive, "cold", dataclasses.replace(cold, timing=dataclasses.replace(cold.timing, protocol="rotation")))
    add(archive, "warm-too", timed("a", 8.0))
    rows = [(row.protocol, row.ratio) for row in top(archive)]
    assert sorted(rows) == [("rotation", 1.1), ("warm", 8.0), ("warm", 9.0)]
    assert rows.index(("warm", 8.0)) == rows.index(("warm", 9.0)) + 1, "one board after another"


def test_a_wrong_verdict_on_another_board_takes_the_place_away(archive: Archive) -> None:
    """A final that fails has no timing, and finals may know fewer yardsticks than the search."""
    add(archive, "a", timed("a", 2.0))
    failed = CaseResult("a", Status.WRONG_RESULT)
    archive.file(evaluation("a", failed, status=Status.WRONG_RESULT, yardstick="loop", purpose=Purpose.FINAL), None)
    assert top(archive) == []
    assert archive.elites("rmsnorm", "cpu") == []


def test_elites_hold_the_best_of_every_case(archive: Archive) -> None:
    add(archive, "all", timed("a", 2.0), timed("b", 2.0))
    add(archive, "good", timed("a", 1.9), timed("b", 1.9))
    add(archive, "king-of-b", timed("a", 0.1), timed("b", 4.0))
    found = archive.elites("rmsnorm", "cpu", limit=2)
    assert [elite.candidate.values["LOAD"] for elite in found] == ["all", "king-of-b"]
    assert found[1].ratios == {"a": 0.1, "b": 4.0}
    assert found[1].candidate == candidate("king-of-b")
    assert len(archive.elites("rmsnorm", "cpu")) == 3
    assert archive.elites("rmsnorm", "sm_90") == []


def test_show_finds_each_kind_of_thing(archive: Archive) -> None:
    made = add(archive, "a", timed("a", 2.0))
    filed = next(archive.evaluations("run-1"))
    assert show(archive, candidate("a").id[:12]).candidate == candidate("a")
    by_evaluation = show(archive, filed.id)
    assert (by_evaluation.kind, by_evaluation.evaluations) == ("evaluation", (filed,))
    by_proposal = show(archive, made.id)
    assert by_proposal.proposals[0].proposal == made
    assert by_proposal.evaluations == (filed,)
    run = show(archive, "run-1")
    assert (run.run, run.statuses) == (RUN, {"ok": 1})
    assert [row.candidate for row in run.top] == [candidate("a").id]
    with pytest.raises(UsageError, match="several things") as several:
        show(archive, filed.id[:6])  # ids of one minute start alike
    assert filed.id in str(several.value)
    assert made.id in str(several.value)


def test_show_names_the_prompts_that_a_candidate_came_of(archive: Archive) -> None:
    made = add(archive, "a", timed("a", 2.0))
    reply = Reply("```\nint main;\n```", usage=Usage(input=120, output=30))
    request = Request("be brief", (Message("user", "make it faster"),), 100)
    exchange = Exchange("x-1", "run-1", 3, 1, "writer", "openai:m", request, reply, "d" * 64, 0.25, 0.25, 1.0, 2.0)
    row = {
        "run": "run-1",
        "job": 3,
        "kind": "write",
        "model": "openai:m",
        "direction": "",
        "candidate": made.candidate.id,
    }
    with archive.writing() as connection:
        file_exchanges(connection, [exchange])
        connection.execute(insert_new(AGENT_JOB), {**row, "idea": "", "problem": ""})
    (use,) = show(archive, made.candidate.id).prompts
    assert (use.exchange, use.role, use.model, use.prompt) == ("x-1", "writer", "openai:m", "d" * 64)
    assert (use.job, use.step, use.tokens_in, use.tokens_out, use.usd) == (3, 1, 120, 30, 0.25)


def test_lineage_walks_back_once_through_every_ancestor(archive: Archive) -> None:
    for each in (
        proposal("root", species="seed"), proposal("left", "root"), proposal("right", "root"),
        proposal("child", "right", "left", author="crossover"), proposal("leaf", "child", "root"),
        proposal("root", "leaf"),  # proposed again later: not an origin, so no cycle
    ):  # fmt: skip
        archive.propose(each)
    archive.file(evaluation("child", timed("a", 2.0)), None)
    nodes = lineage(archive, candidate("leaf").id)
    by_name = {name: candidate(name).id for name in ("leaf", "child", "root", "left", "right")}
    assert [node.depth for node in nodes] == [0, 1, 1, 2, 2]
    assert {node.candidate for node in nodes} == set(by_name.values())
    child = next(node for node in nodes if node.candidate == by_name["child"])
    assert child.parents == (by_name["right"], by_name["left"])
    assert (child.author, child.status) == (Author("crossover", "m"), Status.OK)
    assert child.score == pytest.approx(2.0)
    root = next(node for node in nodes if node.candidate == by_name["root"])
    assert (root.depth, root.parents, root.species, root.status, root.score) == (1, (), "seed", "", None)
    assert [node.depth for node in lineage(archive, by_name["leaf"], depth=1)] == [0, 1, 1]


def test_a_select_that_lacks_its_option_is_told_of_it() -> None:
    done = CliRunner().invoke(cli, ["archive", "query", "select count(*) from evaluation"])
    assert done.exit_code == 2
    assert "a SELECT goes with --sql" in done.stderr

"""Ask and tell: the pinned shapes, exactly once, evaluated elsewhere under leases."""

from __future__ import annotations

import asyncio
import inspect
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import archive_records as records
import pytest
from typer.testing import CliRunner

import evo
from evo import api
from evo.app.swarm.asked import ask_json
from evo.app.swarm.evaluating import _batches, drain, judged_machines
from evo.archive import Archive, RunRecord
from evo.archive.merging import merge
from evo.archive.messages import holds, starved, take
from evo.cli.root import app
from evo.engine.simulated import SimulatedEvaluator
from evo.errors import GenomeError, UsageError
from evo.genome import machine_set
from evo.operators.rmsnorm import RmsNorm
from evo.records import Author, State, Status

CASE = "bf16-32x1024"
SEEDS = RmsNorm().seeds("cpu")
PLAIN = SEEDS[0].read_text()
ELSEWHERE = RunRecord("run-elsewhere", "rmsnorm", "cpu", "cpu:9", "evo evaluate", 0, "", (CASE,), "numpy", "e", 1.0)


@pytest.fixture
def archive(tmp_path: Path) -> str:
    return str(tmp_path / "evo.db")


def desk(archive: str, **options: Any) -> api.Desk:
    return evo.open(archive, **({"operator": "rmsnorm", "target": "cpu", "cases": [CASE]} | options))


def judge(archive: str, ratio: float | None = 1.5) -> list[api.Answer]:
    """Evaluates what waits, by a formula: None where it covers nothing, so that it fails."""
    with Archive.open(archive) as store:
        if ELSEWHERE.id not in [record.id for record in store.runs()]:
            store.start_run(ELSEWHERE)
        judge = SimulatedEvaluator((CASE,), lambda candidate, case: ratio, run=ELSEWHERE.id)
        waiting = [name for batch in _batches(store) for name in batch.proposals]
        return asyncio.run(drain(store, judge, ELSEWHERE, waiting, lambda message: None))


def renamed(species: str) -> str:
    return PLAIN.replace('species  = "plain"', f'species  = "{species}"')


def test_public_interface_is_pinned() -> None:
    assert sorted(api.__all__) == ["Answer", "Ask", "Author", "CaseView", "Desk", "ParentView", "Told", "open"]
    assert evo.open is api.open

    def names(function: Any) -> list[str]:
        return [name for name in inspect.signature(function).parameters if name != "self"]

    assert names(evo.open) == ["archive", "run", "operator", "target", "cases"]
    assert names(api.Desk.ask) == ["lease_s", "parent"]
    assert names(api.Desk.tell) == ["source", "edits", "values", "parents", "note", "author", "ask", "suffix"]
    assert names(api.Desk.wait) == ["candidate", "timeout_s", "pause_s", "sleep"]
    with pytest.raises(AttributeError, match="no attribute 'shut'"):
        evo.shut  # noqa: B018


def test_ask_has_the_pinned_shape_and_no_hold_out_case(archive: str) -> None:
    with desk(archive, cases=()) as open_desk:
        ask = open_desk.ask(lease_s=60)
    data = json.loads(json.dumps(ask_json(ask)))
    assert list(data) == [
        "schema", "ask", "run", "operator", "target", "kind", "parents", "direction", "prompt", "lease_until"
    ]  # fmt: skip
    assert (data["schema"], data["operator"], data["target"], data["kind"]) == (1, "rmsnorm", "cpu", "mutation")
    assert 0 < data["lease_until"] - time.time() <= 60
    (parent,) = data["parents"]
    assert list(parent) == ["id", "source", "values", "cases"]
    assert parent["source"] in data["prompt"]
    hidden = [case.name for case in RmsNorm().cases("cpu") if case.group == "holdout"]
    assert hidden
    assert [name for name in hidden if name in data["prompt"]] == []


def test_cases_that_are_named_may_be_hold_outs_but_not_only_checks(archive: str) -> None:
    every = RmsNorm().cases("cpu")
    hidden = next(case.name for case in every if case.group == "holdout")
    with desk(archive, cases=(hidden,)) as open_desk:
        open_desk.ask()
    with Archive.open(archive) as store:
        assert [record.cases for record in store.runs()] == [(hidden,)]
    with pytest.raises(UsageError, match="names only small check cases"):
        desk(archive, cases=(next(case.name for case in every if case.group == "check"),))


def test_questions_that_are_leased_are_not_asked_again_until_the_lease_ends(archive: str) -> None:
    with desk(archive) as open_desk:
        first, second = open_desk.ask(), open_desk.ask(lease_s=0)
        third = open_desk.ask(lease_s=0)
        assert len(SEEDS) == 2
        assert first.parents[0].id != second.parents[0].id == third.parents[0].id
        fourth = open_desk.ask()
        assert fourth.kind == "crossover"
        assert len({parent.id for parent in fourth.parents}) == 2


def test_telling_the_same_twice_is_one_proposal_and_a_known_candidate_is_named(archive: str) -> None:
    with desk(archive) as open_desk:
        ask = open_desk.ask()
        told = open_desk.tell(source=renamed("mine"), ask=ask.ask, note="two names", author=Author("agent", "m"))
        assert told.plain() == {"candidate": told.candidate, "state": "pending"}
        again = open_desk.tell(source=renamed("mine"), ask=ask.ask, note="two names", author=Author("agent", "m"))
        assert again == told
        other = open_desk.tell(source=renamed("mine"), note="somebody else's")
        assert (other.candidate, other.state, other.of) == (told.candidate, State.DUPLICATE, told.candidate)
        seed = open_desk.tell(source=PLAIN)
        assert (seed.state, seed.of) == (State.DUPLICATE, seed.candidate)
        (proposal,) = open_desk._views(told.candidate)
        assert proposal.proposal.parents == (ask.parents[0].id,)
        assert (proposal.proposal.note, proposal.proposal.author) == ("two names", Author("agent", "m"))
    with Archive.open(archive) as store, store.reading() as connection:
        assert len(starved(connection)) == len(SEEDS) + 1


def test_edits_and_values_change_the_parent(archive: str) -> None:
    block = "<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n"
    old = 'species  = "plain"'
    with desk(archive) as open_desk:
        parent = open_desk.ask().parents[0]
        edited = open_desk.tell(edits=block.format(old, 'species  = "edited"'), parents=[parent.id[:12]])
        listed = open_desk.tell(edits=[{"search": old, "replace": 'species = "listed"'}], parents=[parent.id])
        species = {open_desk.archive.candidate(t.candidate).species for t in (edited, listed)}
        assert species == {"edited", "listed"}
        simd = next(p for p in (open_desk.ask().parents[0], parent) if p.values)
        told = open_desk.tell(values={"ROWS": "64"}, parents=[simd.id])
        assert dict(open_desk.archive.candidate(told.candidate).values) == dict(simd.values) | {"ROWS": 64}
        with pytest.raises(UsageError, match="gene ROWS has no choice '65'"):
            open_desk.tell(values={"ROWS": 65}, parents=[simd.id])
        with pytest.raises(UsageError, match="edits do not fit: edit 1"):
            open_desk.tell(edits=block.format("no such line", "x"), parents=[parent.id])
        with pytest.raises(UsageError, match="needs a parent"):
            open_desk.tell(values={"ROWS": 4})
        with pytest.raises(GenomeError, match="for another operator"):
            open_desk.tell(source=PLAIN.replace('"rmsnorm"', '"softmax"'))


def test_verdicts_are_filed_once_and_failures_come_back_as_repairs(archive: str) -> None:
    with desk(archive) as open_desk:
        open_desk.ask()
        seeds = judge(archive)
        assert [(a.state, a.status, a.cases[CASE].ratio) for a in seeds] == [(State.DONE, Status.OK, 1.5)] * 2
        told = open_desk.tell(source=renamed("bad"), parents=[seeds[0].candidate])
        assert open_desk.answer(told.candidate).state is State.PENDING
        assert not open_desk.answer(told.candidate).settled
        (failed,) = judge(archive, None)
        assert (failed.candidate, failed.status) == (told.candidate, Status.INVALID_GENOME)
        assert open_desk.wait(told.candidate).diagnosis == failed.diagnosis
        assert judge(archive) == []
        repair = open_desk.ask(lease_s=0)
        assert (repair.kind, repair.parents[0].id) == ("repair", told.candidate)
        assert "no case is covered" in repair.prompt
        assert open_desk.ask(lease_s=0).kind == "repair"
        assert open_desk.ask(lease_s=0).kind != "repair", "two tries are enough"
        best = open_desk.elites()
        assert {parent.id for parent in best} == {answer.candidate for answer in seeds}
        assert best[0].cases[CASE].ratio == 1.5
        after = open_desk.tell(source=renamed("bad"), note="once more")
        assert (after.state, after.of) == (State.DUPLICATE, told.candidate), "what was judged is not judged again"


def test_a_lease_is_held_by_one_and_ends(archive: str) -> None:
    with desk(archive) as open_desk:
        open_desk.ask()
    with Archive.open(archive) as one, Archive.open(archive) as other:
        with one.reading() as connection:
            name = starved(connection)[0]
        soon, later = time.time() + 0.2, time.time() + 60
        with one.writing() as connection:
            assert take(connection, name, soon)
        with other.writing() as connection:
            assert name not in starved(connection)
            assert not take(connection, name, later)
        time.sleep(0.25)
        with other.writing() as connection:
            assert take(connection, name, later)
        with one.reading() as connection:
            assert not holds(connection, name, soon), "a verdict under the old lease would be the second"
            assert holds(connection, name, later)


class Killed(Exception):
    pass


class Dying(SimulatedEvaluator):
    async def finished(self, timeout_s: float) -> list[Any]:
        raise Killed


def test_what_is_not_finished_is_given_back(archive: str) -> None:
    with desk(archive) as open_desk:
        open_desk.ask()
    with Archive.open(archive) as store:
        store.start_run(ELSEWHERE)
        with store.reading() as connection:
            waiting = starved(connection)
        with pytest.raises(Killed):
            asyncio.run(drain(store, Dying((CASE,), lambda c, k: 1.0), ELSEWHERE, waiting, lambda message: None))
        with store.reading() as connection:
            assert starved(connection) == waiting


def test_a_copy_is_evaluated_elsewhere(archive: str, tmp_path: Path) -> None:
    with desk(archive) as open_desk:
        told = open_desk.tell(source=renamed("far"))
    copy = str(tmp_path / "copy.db")
    shutil.copy(archive, copy)
    answers = judge(copy, 2.0)
    assert told.candidate in {answer.candidate for answer in answers}
    with desk(copy) as open_desk:
        assert open_desk.answer(told.candidate).cases[CASE].ratio == 2.0
        assert open_desk.run.command.startswith("evo ask")


def test_machine_code_that_was_judged_before_is_known(archive: str) -> None:
    judged = replace(ELSEWHERE, id=records.RUN.id, evaluator="e1")
    with Archive.open(archive) as store:
        store.start_run(judged)
        records.add(store, "good", records.timed("a", 2.0, machine="m1"))
        records.add(store, "bad", records.timed("a", 2.0, machine="m2"), status=Status.WRONG_RESULT)
        records.add(store, "noisy", records.timed("a", 2.0, machine="m3"), status=Status.UNSTABLE_TIMING)
        found = judged_machines(store, judged)
        assert judged_machines(store, replace(judged, evaluator="e2")) == {}
    assert sorted(found.values()) == sorted(
        [(records.candidate("good").id, Status.OK), (records.candidate("bad").id, Status.WRONG_RESULT)]
    )
    assert machine_set({"a": "m1"}) in found


def test_what_was_evaluated_on_a_copy_is_merged_back_once(archive: str, tmp_path: Path) -> None:
    with desk(archive) as open_desk:
        early = open_desk.tell(source=renamed("early"))
    copy = str(tmp_path / "copy.db")
    shutil.copy(archive, copy)
    with desk(archive) as open_desk:
        late = open_desk.tell(source=renamed("late"))
    judge(copy, 2.0)
    for _ in range(2):
        with Archive.open(archive) as store, Archive.open(copy, readonly=True) as other:
            merge(store, other)
        with desk(archive) as open_desk:
            assert open_desk.answer(early.candidate).cases[CASE].ratio == 2.0
            assert open_desk.answer(late.candidate).state is State.PENDING
            assert open_desk.tell(source=renamed("early")) == api.Told(early.candidate, State.DONE)
    assert [answer.candidate for answer in judge(archive)] == [late.candidate]
    with Archive.open(archive) as store, store.reading() as connection:
        count = connection.exec_driver_sql("SELECT count(*), count(DISTINCT proposal) FROM evaluation").one()
    assert tuple(count) == (len(SEEDS) + 2, len(SEEDS) + 2)


def run_cli(*words: str, stdin: str = "") -> Any:
    return CliRunner().invoke(app, list(words), input=stdin)


def test_command_line(archive: str, tmp_path: Path) -> None:
    to = ("--archive", archive)
    done = run_cli("ask", "-o", "rmsnorm", "-t", "cpu", "--cases", CASE, "--json", *to)
    assert done.exit_code == 0, done.output
    ask = json.loads(done.stdout)
    file = tmp_path / "mine.cpp"
    file.write_text(renamed("cli"))
    words = ("tell", str(file), "--ask", ask["ask"], "--note", "n", "--author", "agent:some-model", "--json", *to)
    told = json.loads(run_cli(*words).stdout)
    assert told["state"] == "pending"
    assert json.loads(run_cli(*words).stdout) == told
    answer = {"parents": [ask["parents"][0]["id"]], "source": renamed("object"), "author": {"kind": "agent"}}
    spoken = run_cli("tell", "-", "--json", *to, stdin=json.dumps(answer | {"suffix": ".cpp"}))
    assert json.loads(spoken.stdout)["state"] == "pending", spoken.output
    wrong = run_cli("tell", "-", "--json", *to, stdin=json.dumps(answer | {"sauce": 1}))
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "sauce: Extra inputs are not permitted" in wrong.stderr
    lost = run_cli("tell", "--gene", "ROWS=4", *to)
    assert (lost.exit_code, "which operator" in lost.stderr) == (2, True)
    with Archive.open(archive) as store:
        (record,) = store.runs()
        proposals = [proposal for proposal, _ in store.open_proposals(record.id)]
    assert [p.author for p in proposals if p.candidate.species == "cli"] == [Author("agent", "some-model")]
    bare = run_cli("evaluate", *to)
    assert (bare.exit_code, "--pending" in bare.stderr) == (2, True)


def test_names_of_a_candidate_that_is_not_there(archive: str) -> None:
    with desk(archive) as open_desk, pytest.raises(UsageError, match="unknown candidate id 'ffffffff'"):
        open_desk.tell(values={"ROWS": 4}, parents=["ffffffff"])


@pytest.mark.alone
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_pending_ones_are_judged_for_real(archive: str) -> None:
    with desk(archive) as open_desk:
        bad = open_desk.tell(source=renamed("broken").replace("#include", "#inclood"))
    done = run_cli("evaluate", "--pending", "--json", "--quiet", "--archive", archive)
    assert done.exit_code == 0, done.stderr
    answers = {answer["candidate"]: answer for answer in json.loads(done.stdout)}
    assert len(answers) == len(SEEDS) + 1
    assert answers[bad.candidate]["status"] == "forbidden"  # a directive that is none of the allowed ones
    assert all(a["cases"][CASE]["ratio"] > 0 for a in answers.values() if a["status"] == "ok")
    again = run_cli("evaluate", "--pending", "--archive", archive)
    assert (again.exit_code, again.stdout.strip()) == (0, "nothing waited")

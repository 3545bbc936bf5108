"""What a person approves or vetoes, and what the swarm learns and recalls, through a real archive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from landscape import CASES, RUN, drive, problem, search

from evo.app.memory.recalling import Memories
from evo.app.swarm.agents import AgentSettings, check_agents
from evo.app.swarm.rulings import Rulings, asked_for, hold_finalists, rule
from evo.archive import Archive, RunRecord, lessons
from evo.engine.simulated import SimulatedEvaluator
from evo.errors import UnknownNameError, UsageError
from evo.lesson import Kind
from evo.mutators.agents.directions import Directions
from evo.records import State


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive.open(str(tmp_path / "evo.db")) as opened:
        opened.start_run(RunRecord(RUN, "scale", "cpu", "cpu:0", "test", 3, "", CASES, "simulated", "test", 0.0))
        yield opened


def test_a_plan_is_asked_for_once_and_ruled_on(archive: Archive) -> None:
    graph, door = Directions(approve=True), Rulings(archive, RUN)
    graph.add([{"name": "wide", "hypothesis": "h", "change": "c"}, {"name": "deep", "hypothesis": "h", "change": "c"}])
    door.watch(graph)
    assert door.poll() == []
    where = str(archive.path)
    assert [(item.kind, item.subject, item.ruling) for item in asked_for(where)] == [
        ("plan", "wide", "waiting"), ("plan", "deep", "waiting"),
    ]  # fmt: skip
    assert rule(where, "", "wi", "approve", "go on").ruling == "approved"
    assert rule(where, RUN, "deep", "veto").ruling == "vetoed"
    assert door.poll() == []  # not so soon
    door._next_s = 0.0
    assert sorted(door.poll()) == [("deep", "vetoed"), ("wide", "approved")]
    for name, ruling in (("deep", "vetoed"), ("wide", "approved")):
        graph.rule(name, ruling)  # type: ignore[arg-type]
    door._next_s = 0.0
    assert door.poll() == []
    assert len(asked_for(where)) == 2
    with pytest.raises(UnknownNameError, match="wide"):
        rule(where, "", "wode", "approve")


def test_finalists_wait_and_a_vetoed_one_is_struck(archive: Archive) -> None:
    run = search()
    drive(run, 40)
    finalists = {candidate.id for candidate in run.portfolio.finalists().values()}
    assert "finalists wait for a person" in hold_finalists(run, archive)
    where = str(archive.path)
    assert {item.subject for item in asked_for(where)} == finalists
    bad, *good = sorted(finalists)
    rule(where, RUN, bad, "veto")
    for name in good:
        rule(where, RUN, name, "approve")
    why = hold_finalists(run, archive)
    assert bad not in {candidate.id for candidate in run.portfolio.finalists().values()}
    for item in asked_for(where):
        if item.ruling == "waiting":
            rule(where, RUN, item.subject, "approve")
    assert hold_finalists(run, archive) == ""
    assert why == "" or "evo approve" in why


def test_lessons_need_evidence_of_the_run_and_come_back(archive: Archive) -> None:
    run = search()
    proposal = asyncio.run(run.ask())
    assert proposal is not None
    archive.propose(proposal)
    verdict = SimulatedEvaluator(CASES, lambda *_: 1.5, run=RUN).verdict(proposal)
    archive.file(verdict.evaluation, proposal.id, State.DONE)
    door = Memories(archive, problem(), RUN)
    door.learn(
        [
            {
                "claim": "wider loads help at N = 4096\u202e",
                "cases": "N >= 4096",
                "evidence": [proposal.candidate.id[:8]],
            },
            {"claim": "invented", "evidence": ["deadbeef"]},
            {"claim": "quoted", "evidence": ["' OR 1=1 --"]},
            {"claim": 5, "evidence": []},
        ]
    )
    with archive.reading() as connection:
        (lesson,) = lessons.listed(connection, kinds=(Kind.NOTE,))
        shown = lessons.show(connection, lesson.id)
    assert lesson.claim == "wider loads help at N = 4096\ufffd (N >= 4096)"
    assert [evidence.evaluation for evidence in shown.evidence] == [verdict.evaluation.id]
    assert "wider loads help" in door.recall(1, "wide loads")
    graph = Directions()
    graph.add([{"name": "a", "hypothesis": "h", "change": "c", "effect": "+5 %"}])
    graph.judge("a", right=True, gain=0.1, evaluation=verdict.evaluation.id)
    direction = graph.get("a")
    assert direction is not None
    door.tested(direction)
    with archive.reading() as connection:
        (hypothesis,) = lessons.listed(connection, kinds=(Kind.HYPOTHESIS,))
    assert (hypothesis.claim, hypothesis.direction, hypothesis.supporting) == ("h c Predicted: +5 %", 1, 1)


def test_settings_survive_the_command_that_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import shlex

    given = AgentSettings(("command:agent -p 'x y'*2", "openai:m@http://h/v1"), ("plan", "finalists"), "my prompts", 7)
    assert AgentSettings.read(shlex.join(["evo", "run", *given.words()])) == given
    assert AgentSettings.read("evo run --operator x") == AgentSettings()
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(UsageError, match="needs a key"):
        check_agents(AgentSettings(("anthropic:m",)))

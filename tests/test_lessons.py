"""Lessons: made from measurements, changed by new ones, found by scope and words, shared between archives."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import measured
import pytest
from measured import CASES, Values

from evo.app.memory.lessons import export_lessons, import_lessons
from evo.archive import Archive, learning, lessons
from evo.archive.learning import learn, record_hypothesis, retire
from evo.archive.pitfalls import normalised
from evo.errors import UnknownNameError, UsageError
from evo.lesson import Evidence, Kind, Lesson, Origin, Scope, Standing
from evo.records import Status

TILES = (1, 2, 3, 4, 5, 6)
OP = Scope("op", "cpu")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Archive]:
    with measured.archive(tmp_path / "evo.db") as found:
        yield found


def fill(store: Archive, gain: float, *, run: str = "run-1", tiles: tuple[int, ...] = TILES, seed: int = 1) -> None:
    """Two values of STORE in otherwise equal candidates: cs is worth `gain`."""

    def law(values: Values, size: int) -> float:
        return gain if values["STORE"] == "cs" else 0.0

    rng = random.Random(seed)
    for tile in tiles:
        for value in ("plain", "cs"):
            measured.add(store, {"STORE": value, "TILE": tile}, law, rng=rng, run=run)


def all_of(store: Archive) -> list[Lesson]:
    with store.reading() as connection:
        return lessons.listed(connection)


def about(store: Archive, value: str) -> Lesson:
    (lesson,) = [each for each in all_of(store) if each.genes == {"STORE": value} and each.kind is Kind.EFFECT]
    return lesson


def test_learning_makes_a_lesson_with_evidence_and_is_idempotent(store: Archive) -> None:
    fill(store, 0.02)
    assert learn(store, "op", "cpu", CASES).new == 2  # cs is faster, plain is slower
    lesson = about(store, "cs")
    assert lesson.origin is Origin.MEASURED
    assert lesson.standing is Standing.TENTATIVE  # six pairs
    assert lesson.scope == Scope("op", "cpu", "sp")
    assert lesson.direction == 1
    assert lesson.effect == pytest.approx(0.02, abs=0.004)
    assert lesson.claim.startswith("STORE=cs in sp: +")
    with store.reading() as connection:
        item = lessons.show(connection, lesson.id[:13])
        assert len(item.evidence) == lesson.supporting == 6
        assert set(item.here) == {each.evaluation for each in item.evidence}  # each can be opened
    again = learn(store, "op", "cpu", CASES)
    assert (again.new, again.raised, again.lowered, again.retired) == (0, 0, 0, 0)
    assert about(store, "cs") == lesson


def test_more_pairs_raise_a_lesson(store: Archive) -> None:
    fill(store, 0.02)
    learn(store, "op", "cpu", CASES)
    fill(store, 0.02, tiles=(7, 8, 9, 10, 11), seed=2)
    assert learn(store, "op", "cpu", CASES).raised == 2
    assert about(store, "cs").standing is Standing.SUPPORTED


def test_new_evidence_retires_and_the_reason_stays(store: Archive) -> None:
    fill(store, 0.02)
    learn(store, "op", "cpu", CASES)
    first = about(store, "cs")
    measured.start(store, "run-2", "e2")
    fill(store, -0.06, run="run-2", tiles=tuple(range(1, 30)), seed=3)
    learn(store, "op", "cpu", CASES)
    now = about(store, "cs")
    assert now.id == first.id
    assert now.standing in (Standing.DISPUTED, Standing.RETIRED)
    assert "%" in now.reason
    with store.reading() as connection:
        assert lessons.show(connection, first.id).lesson == now


def test_failures_with_a_common_cause_become_a_pitfall_and_are_doubted_when_one_is_right(store: Archive) -> None:
    def law(values: Values, size: int) -> float:
        return 0.0

    for tile in range(30):
        for stages in (2, 3):
            measured.add(store, {"STAGES": stages, "TILE": tile}, law)
    for tile in range(8):
        used = f"ptxas: too much shared memory: {300000 + tile} bytes"
        measured.fail(store, {"STAGES": 4, "TILE": tile}, Status.RESOURCE_LIMIT, used, case="n16384~37")
    measured.fail(store, {"STAGES": 4, "TILE": 99}, Status.CRASH, "x", case="secret-case")
    learn(store, "op", "cpu", CASES)
    (pitfall,) = [each for each in all_of(store) if each.kind is Kind.PITFALL]
    assert pitfall.genes == {"STAGES": 4}
    assert pitfall.standing is Standing.SUPPORTED
    assert pitfall.pairs == pitfall.supporting == 8
    assert "resource_limit at STAGES=4" in pitfall.claim
    assert "N = 16384" in pitfall.claim
    assert "ptxas: too much shared memory" in pitfall.claim
    measured.add(store, {"STAGES": 4, "TILE": 50}, law)
    learn(store, "op", "cpu", CASES)
    (doubted,) = [each for each in all_of(store) if each.id == pitfall.id]
    assert doubted.standing is Standing.DISPUTED
    assert doubted.refuting == 1


def test_diagnoses_are_grouped_without_their_numbers() -> None:
    one = normalised("kernel f: 49153 bytes of shared memory at 0x7f00a, limit 49,152\nand more")
    assert one == normalised("kernel f: 65537 bytes of shared memory at 0x1b, limit 49,152")
    assert normalised("") == ""


def test_a_persons_hypothesis_is_judged_by_measurements(store: Archive) -> None:
    scope = Scope("op", "cpu", "sp")
    right = record_hypothesis(
        store, "cs helps", scope=scope, genes={"STORE": "cs"}, direction=1, origin=Origin.PERSON, author="me"
    )
    wrong = record_hypothesis(store, "plain helps", scope=scope, genes={"STORE": "plain"}, direction=1)
    assert record_hypothesis(store, "cs helps ", scope=scope, genes={"STORE": "cs"}, direction=1).id == right.id
    assert right.standing is Standing.TENTATIVE
    fill(store, 0.03, tiles=tuple(range(12)))
    learn(store, "op", "cpu", CASES)
    now = {lesson.id: lesson for lesson in all_of(store)}
    assert now[right.id].standing is Standing.SUPPORTED
    assert now[right.id].origin is Origin.PERSON
    assert now[wrong.id].standing is Standing.RETIRED
    assert "-" in now[wrong.id].reason
    assert now[wrong.id].refuting > 0


def test_what_a_person_claims_of_every_target_is_judged_by_each(store: Archive) -> None:
    """It was never tested: what names no target matched none."""
    scope = Scope("op")
    right = record_hypothesis(store, "cs helps", scope=scope, genes={"STORE": "cs"}, direction=1)
    wrong = record_hypothesis(store, "plain helps", scope=scope, genes={"STORE": "plain"}, direction=1)
    fill(store, 0.03, tiles=tuple(range(12)))
    learn(store, "op", "cpu", CASES)
    now = {lesson.id: lesson for lesson in all_of(store)}
    good, bad = now[right.id], now[wrong.id]
    assert (good.standing, bad.standing) == (Standing.SUPPORTED, Standing.RETIRED)
    assert good.reason.startswith("measured on cpu: STORE=cs in ")
    with store.writing() as connection:  # as if another target had spoken for it
        lessons.put(connection, replace(bad, standing=Standing.SUPPORTED), [Evidence("e" * 36, True)])
    learn(store, "op", "cpu", CASES)
    assert next(each for each in all_of(store) if each.id == wrong.id).standing is Standing.DISPUTED


def test_tests_of_a_hypothesis_decide_from_three_on(store: Archive) -> None:
    lesson = record_hypothesis(store, "a ring of stages hides latency", scope=OP)
    assert learning.test_hypothesis(store, lesson.id, Evidence("e1", True)).standing is Standing.TENTATIVE
    learning.test_hypothesis(store, lesson.id, Evidence("e2", True))
    assert learning.test_hypothesis(store, lesson.id, Evidence("e2", True)).supporting == 2, (
        "one evaluation counts once"
    )
    assert learning.test_hypothesis(store, lesson.id, Evidence("e3", True)).standing is Standing.SUPPORTED
    for number in range(4, 7):
        learning.test_hypothesis(store, lesson.id, Evidence(f"e{number}", False))
    assert all_of(store)[0].standing is Standing.DISPUTED


def test_retrieval_ranks_by_scope_words_and_genes_within_a_budget(store: Archive) -> None:
    def note(claim: str, scope: Scope, **genes: str) -> Lesson:
        return record_hypothesis(store, claim, scope=scope, genes=genes, kind=Kind.NOTE)

    ring = note("a ring of bulk copies hides the latency of long rows", OP)
    cs = note("streaming stores spare the cache", OP, STORE="cs")
    other = note("bulk copies need alignment", Scope("gemm", "cpu"))
    note("unrelated to anything", Scope("gemm", "cpu"))
    gone = note("bulk copies never work", OP)
    retire(store, gone.id, "they do")
    with store.reading() as connection:
        found = lessons.relevant(connection, "op", "cpu", "would bulk copies help?")
        assert [lesson.id for lesson in found] == [ring.id, cs.id, other.id]
        assert lessons.relevant(connection, "op", "cpu", "", {"STORE": "cs"})[0].id == cs.id
        small = lessons.relevant(connection, "op", "cpu", "bulk copies", budget_tokens=25)
        assert [lesson.id for lesson in small] == [ring.id]
        assert lessons.relevant(connection, "op", "cpu", "\"' OR words : * NEAR(") != []  # only words are looked for
        (kept,) = lessons.listed(connection, standing="retired")
        assert kept.reason == "they do"


def test_lessons_travel_and_doing_it_twice_changes_nothing(store: Archive, tmp_path: Path) -> None:
    fill(store, 0.02)
    learn(store, "op", "cpu", CASES)
    record_hypothesis(store, "warps should not wait", scope=OP, origin=Origin.PERSON)
    data = export_lessons(str(tmp_path / "evo.db"))
    file = tmp_path / "lessons.json"
    file.write_text(json.dumps(data))
    there = str(tmp_path / "there.db")
    with measured.archive(tmp_path / "there.db") as other:
        fill(other, 0.02, tiles=(20, 21, 22, 23, 24), seed=7)
        learn(other, "op", "cpu", CASES)
        before = {lesson.key: lesson for lesson in all_of(other)}
    import_lessons(there, file)
    once = export_lessons(there)
    import_lessons(there, file)
    assert export_lessons(there) == once
    mine = {entry["key"]: entry for entry in data["lessons"]}
    theirs = {entry["key"]: entry for entry in once["lessons"]}
    assert theirs.keys() == mine.keys()
    for key, entry in theirs.items():
        assert entry["id"] == min(mine[key]["id"], before[key].id if key in before else mine[key]["id"])
    effect = next(entry for entry in theirs.values() if entry["genes"] == {"STORE": "cs"})
    assert effect["pairs"] == 6, "more pairs stand behind the imported one"
    assert effect["supporting"] == 11, "evidence of both"
    with Archive.open(there) as other:
        learn(other, "op", "cpu", CASES)
        assert about(other, "cs").supporting == 11, "the other team's evidence stays"


def test_a_file_that_is_none_changes_nothing(store: Archive, tmp_path: Path) -> None:
    archive, file = str(tmp_path / "evo.db"), tmp_path / "lessons.json"
    good = record_hypothesis(store, "good", scope=OP)
    data = export_lessons(archive)
    for broken in (
        "no json",
        "[]",
        json.dumps({"format": "other", "lessons": []}),
        json.dumps({**data, "lessons": [{**data["lessons"][0], "standing": "loved"}]}),
        json.dumps({**data, "lessons": [data["lessons"][0], {}]}),
    ):
        file.write_text(broken)
        with pytest.raises(UsageError, match="is no file of lessons"):
            import_lessons(archive, file)
    assert [lesson.id for lesson in all_of(store)] == [good.id]
    with store.reading() as connection, pytest.raises(UnknownNameError):
        lessons.show(connection, "ffff")

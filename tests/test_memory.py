"""What the archive brings to a prompt and to a search: four memories, replayed edits, pitfalls, advice, niches."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import landscape
import measured
from measured import CASES, Values

from evo.archive import Archive, learning, lessons, niches
from evo.archive.memory import Budgets, Procedure, Step, recall
from evo.engine.advice import advised
from evo.engine.niche import niche
from evo.engine.pitfalls import EXPLORED, Pitfalls
from evo.engine.procedures import patched, replay
from evo.genome import Genome
from evo.lesson import Kind, Lesson, Origin, Scope, Standing
from evo.mutators.base import Parent
from evo.records import Build, Candidate, CaseResult, Kernel, Status, Value


def lesson(kind: Kind, genes: dict[str, Value], *, species: str = "wide", standing: Standing = Standing.SUPPORTED,
           operator: str = "scale", effect: float | None = None) -> Lesson:  # fmt: skip
    scope = Scope(operator, "cpu", species)
    sign = -1 if kind is Kind.PITFALL else 1
    return Lesson("id", kind, "claim", scope, Origin.MEASURED, standing, str(genes), 0, 0, genes, sign, effect)


def slow(values: Values, size: int) -> float:
    return 0.05 * int(values["TILE"])


def test_recall_assembles_four_memories_within_their_budgets(tmp_path: Path) -> None:
    hidden = CaseResult("secret", Status.OK, timing=measured.timing(5.0, 0.001))
    with measured.archive(tmp_path / "evo.db") as store:
        first, _ = measured.add(store, {"TILE": 1}, slow)
        second, _ = measured.add(store, {"TILE": 3}, slow, parents=[first.id], author="creep-mutation", extra=[hidden])
        worse, _ = measured.add(store, {"TILE": 2}, slow, parents=[second.id], author="uniform-mutation")
        learning.record_hypothesis(store, "long rows want a ring of copies", scope=Scope("op", "cpu"))
        found = recall(
            store, "op", "cpu", CASES, candidate=second.id, question="ring", notes="# title\n\nMemory bound."
        )
        assert found.working == (
            "tried from here: TILE 3 -> 2: -4.9 % (by uniform-mutation)",
            "TILE 1 -> 3: +10.5 % (by creep-mutation)",
        )
        assert found.episodic[0].startswith("run run-1 (, running): ok 3; best n1024 1.")
        assert found.semantic == (
            "[hypothesis, tentative, historian] long rows want a ring of copies", "Memory bound.",
        )  # fmt: skip
        assert found.procedural == ("+10.5 % in sp: TILE 1 -> 3",)
        assert found.procedures[0].steps[0].child == second.id
        assert "secret" not in found.text()
        assert found.text().count("## ") == 4
        assert worse.id not in {step.child for each in found.procedures for step in each.steps}
        none = recall(
            store, "op", "cpu", CASES, candidate=second.id, budgets=Budgets(0, 0, 0, 0), notes="Memory bound."
        )
        assert none.text() == ""


def test_edits_are_replayed_on_another_parent() -> None:
    genome = landscape.genome()
    parent = Parent("p", genome, genome.values({"AAA": 2, "BBB": 4}), {})
    step = Step("a", "b", "wide", {"AAA": (3, 5), "CCC": (0, 999), "GONE": (1, 2)}, False, "x", "", "ok", 0.1)
    draft = replay(Procedure((step,), 0.1), parent, lambda name: Candidate(name, "", "", "", "", "", {}))
    assert draft is not None
    assert draft.values == {**parent.values, "AAA": 5}, "what the genome does not offer is left alone"
    assert draft.parents == ("p",)
    same = Step("a", "b", "wide", {"AAA": (3, 2)}, False, "x", "", "ok", 0.1)
    assert replay(Procedure((same,), 0.1), parent, lambda name: Candidate(name, "", "", "", "", "", {})) is None


def test_source_edits_find_their_one_place() -> None:
    genome = landscape.genome()
    old = genome.canonical
    new = old.replace("2.0f * x[i]", "x[i] + x[i]")
    other = landscape.genome("narrow")
    sources = {"a": Candidate("a", "", "", "", ".cpp", old, {}), "b": Candidate("b", "", "", "", ".cpp", new, {})}
    step = Step("a", "b", "wide", {}, True, "x", "adds", "ok", 0.1)
    draft = replay(Procedure((step,), 0.1), Parent("p", other, other.defaults(), {}), sources.__getitem__)
    assert draft is not None
    assert draft.source == other.canonical.replace("2.0f * x[i]", "x[i] + x[i]")
    assert patched("a\nb\n", "x\n", "y\n") is None
    assert patched("x\nx\n", "x\n", "y\n") is None


def test_a_search_passes_over_pitfalls_but_never_forbids_them() -> None:
    bad = Pitfalls("scale", "cpu", [lesson(Kind.PITFALL, {"FFF": "plain", "EEE": "none"})])
    asked = landscape.drive(landscape.search(seed=1, pitfalls=bad), 300)
    fell = [p for p in asked if dict(p.candidate.values).items() >= {"FFF": "plain", "EEE": "none"}.items()]
    free = landscape.drive(landscape.search(seed=1), 300)
    would = [p for p in free if dict(p.candidate.values).items() >= {"FFF": "plain", "EEE": "none"}.items()]
    assert bad.passed_over > 0
    assert len(fell) < len(would) / 2
    assert asked[0].author.kind == "seed"


def test_which_pitfalls_are_explored_depends_on_the_candidate_alone() -> None:
    genome = landscape.genome()
    bad = Pitfalls("scale", "cpu", [lesson(Kind.PITFALL, {"EEE": "none"})])
    points = [genome.values({"EEE": "none", "AAA": a, "BBB": b, "DDD": d})
              for a in range(1, 9) for b in (1, 2, 4, 8, 16) for d in range(1, 6)]  # fmt: skip
    avoided = [bad.avoids(genome, values) for values in points]
    assert avoided == [bad.avoids(genome, values) for values in points]
    assert 1 - 2 * EXPLORED < sum(avoided) / len(avoided) < 1
    assert not bad.avoids(genome, genome.values({"EEE": "some"}))
    tentative = lesson(Kind.PITFALL, {"EEE": "none"}, standing=Standing.TENTATIVE)
    assert len(Pitfalls("scale", "cpu", [tentative])) == 0
    assert len(Pitfalls("scale", "cpu", [lesson(Kind.PITFALL, {})])) == 0


def test_where_only_pitfalls_are_left_they_are_tried() -> None:
    seed = landscape.genome(genes=landscape.SMALL)  # six points
    bad = Pitfalls("scale", "cpu", [lesson(Kind.PITFALL, {"EEE": "more"}, species="")])
    run = landscape.search(seeds=(seed,), pitfalls=bad)
    asked = landscape.drive(run, 20)
    assert len({p.candidate.id for p in asked}) == 6
    assert run.message == "every legal candidate was tried"


def test_advice_applies_believed_gains_of_the_nearest_lesson() -> None:
    problem, seed = landscape.problem(), landscape.genome()
    found = advised(problem, [seed], [
        lesson(Kind.EFFECT, {"AAA": 7}, effect=0.1, operator="gemm"),
        lesson(Kind.EFFECT, {"AAA": 5}, effect=0.01),
        lesson(Kind.EFFECT, {"EEE": "more"}, effect=0.2, operator="gemm", species="x"),
        lesson(Kind.EFFECT, {"BBB": 64}, effect=0.2, standing=Standing.DISPUTED),
        lesson(Kind.EFFECT, {"DDD": 99}, effect=0.2),
    ])  # fmt: skip
    assert [candidate.values for candidate in found] == [seed.values({"AAA": 5, "EEE": "more"})]
    assert advised(problem, [seed], []) == []


def test_elites_of_every_niche_live_on(tmp_path: Path) -> None:
    with measured.archive(tmp_path / "evo.db") as store:
        for tile in range(30):
            _, evaluation = measured.add(store, {"TILE": tile}, slow)
            with store.writing() as connection:
                niches.keep(connection, evaluation.id, "slow" if tile < 10 else "fast")
                niches.keep(connection, evaluation.id, "again")  # the first one stays
        elites = store.elites("op", "cpu", limit=4)
        assert [elite.candidate.values["TILE"] for elite in elites[:1]] == [29]
        assert 9 in [elite.candidate.values["TILE"] for elite in elites], "the best of the slow niche"
        measured.fail(store, {"TILE": 9}, Status.WRONG_RESULT, "wrong after all")
        assert 8 in [elite.candidate.values["TILE"] for elite in store.elites("op", "cpu", limit=4)]


def test_a_niche_is_species_load_path_synchronisation_and_resources() -> None:
    made = measured.candidate({"LOAD": "ld.global.v4"})
    operator = landscape.Scale()
    kernel = Kernel("k", registers=40, shared_bytes=1024, opcodes={"UBLKCP": 1, "LDG.E": 2, "BAR.SYNC": 1})
    build = Build("key", Status.OK, "t", 0.0, kernels=(kernel,))
    assert niche(operator, made, [build]) == "sp tma block r64 s48"
    assert niche(operator, made, []) == "sp ld.global.v4"

    class Own(landscape.Scale):
        def niche(self, species: str, values: Values, kernels: object) -> str:
            return f"{species}, my way"

    assert niche(Own(), made, []) == "sp, my way"


def test_a_run_notes_the_niche_of_right_candidates(tmp_path: Path) -> None:
    from evo.archive import RunRecord
    from evo.engine.budget import Budget, Meter
    from evo.engine.loop import evolve

    with Archive.open(str(tmp_path / "evo.db")) as store:
        cases = landscape.CASES
        store.start_run(RunRecord(landscape.RUN, "scale", "cpu", "", "", 0, "", cases, "simulated", "e", 1.0))
        meter = Meter(Budget(evaluations=20))
        asyncio.run(evolve(landscape.search(), landscape.simulated(), store, meter, lambda progress: None))
        with store.reading() as connection:
            counts = connection.exec_driver_sql("SELECT niche, count(*) FROM niche GROUP BY niche").all()
    assert [tuple(row) for row in counts] == [("wide", 20)]


def test_retrieval_is_quick_among_many_lessons(tmp_path: Path) -> None:
    rng = random.Random(0)
    words = [f"word{number}" for number in range(400)]
    with measured.archive(tmp_path / "evo.db") as store, store.writing() as connection:
        for number in range(2000):
            claim = " ".join(rng.choices(words, k=12))
            each = Lesson(f"l-{number}", Kind.NOTE, claim, Scope("op", "cpu"), Origin.PERSON, Standing.TENTATIVE,
                          f"key{number}", 0, 0)  # fmt: skip
            lessons.put(connection, each, ())
        began = time.perf_counter()
        found = lessons.relevant(connection, "op", "cpu", " ".join(words[:20]), {"TILE": 3})
        assert time.perf_counter() - began < 1.0  # benchmarks/memory_gain.py says how long exactly
    assert sum(lessons.tokens(lessons.line(each)) for each in found) <= 800
    assert len(found) > 10


def test_genomes_of_an_older_evo_are_no_replay() -> None:
    genome = landscape.genome()
    parent = Parent("p", genome, genome.defaults(), {})
    broken = Candidate("b", "", "", "", ".cpp", genome.canonical.replace("[genes]", "[gens]"), {})
    whole = Candidate("a", "", "", "", ".cpp", genome.canonical, {})
    step = Step("a", "b", "wide", {}, True, "x", "", "ok", 0.1)
    assert replay(Procedure((step,), 0.1), parent, {"a": whole, "b": broken}.__getitem__) is None
    assert Genome.parse(genome.canonical, ".cpp").species == "wide"

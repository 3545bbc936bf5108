"""Mutators: what they make is new and legal, drawn from the run's own generator, and they say when a space is spent."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from landscape import FACTS, genome, problem

from evo.genome import Genome, candidate_id
from evo.mutators.base import Context, Draft, Mutator, Parent
from evo.mutators.crossover import TwoPointCrossover, UniformCrossover, shared_genes
from evo.mutators.deap_ops import cross_two_point, cross_uniform, lent, mutate_indices, select_epsilon_lexicase
from evo.mutators.mutation import CreepMutation, UniformMutation, neighbour
from evo.mutators.variation import redraw, scan
from evo.records import Values

ALL: list[Mutator] = [UniformMutation(), CreepMutation(), UniformCrossover(), TwoPointCrossover()]
every_mutator = pytest.mark.parametrize("mutator", ALL, ids=lambda mutator: mutator.name)


def identity(source: Genome, values: Values) -> str:
    return candidate_id("scale", "cpu", source, values)


def parent(source: Genome, **values: int | str) -> Parent:
    complete = source.values(values)
    return Parent(identity(source, complete), source, complete, {})


def context(*parents: Parent, known: set[str] | None = None) -> Context:
    seen = {each.candidate for each in parents} | (known or set())
    return Context("scale", "cpu", parents, FACTS, seen.__contains__, problem().legal)


def propose(mutator: Mutator, within: Context, rng: random.Random) -> Sequence[Draft]:
    return asyncio.run(mutator.propose(within, rng))


def test_deap_draws_from_the_lent_generator_and_global_state_is_restored() -> None:
    random.seed(1)
    before = random.getstate()
    rng = random.Random(5)
    with lent(rng):
        drawn = [random.random(), random.random()]
    twin = random.Random(5)
    assert drawn == [twin.random(), twin.random()]
    assert rng.random() == twin.random()
    assert random.getstate() == before


def test_global_state_is_restored_after_an_error() -> None:
    before = random.getstate()

    def fail() -> None:
        with lent(random.Random(5)):
            random.random()
            raise KeyError("in the body")

    with pytest.raises(KeyError):
        fail()
    assert random.getstate() == before


def test_crossover_takes_each_position_from_one_of_two_lists_and_leaves_them_alone() -> None:
    first, second = list("aaaaaaaa"), list("bbbbbbbb")
    rng = random.Random(0)
    stretches = {"".join(cross_two_point(first, second, rng)) for _ in range(50)}
    assert all(child.strip("a").strip("b") == "" for child in stretches)  # one stretch of b
    assert len(stretches) > 10
    shares = Counter(child for _ in range(200) for child in cross_uniform(first, second, 0.25, rng))
    assert 0.2 < shares["b"] / 1600 < 0.3
    assert first == list("aaaaaaaa")
    assert second == list("bbbbbbbb")


def test_indices_are_redrawn_within_their_sizes() -> None:
    rng = random.Random(0)
    drawn = [mutate_indices([0, 0, 0], [2, 5, 1], 1.0, rng) for _ in range(200)]
    assert [sorted({row[column] for row in drawn}) for column in range(3)] == [[0, 1], [0, 1, 2, 3, 4], [0]]
    assert mutate_indices([1, 4, 0], [2, 5, 1], 0.0, rng) == [1, 4, 0]


def test_lexicase_keeps_specialists_and_never_picks_the_dominated() -> None:
    scores = [(0.0, 0.0), (9.0, -float("inf")), (-float("inf"), 9.0), (8.5, -float("inf"))]
    rng = random.Random(0)
    wins = Counter(select_epsilon_lexicase(scores, 1.0, rng) for _ in range(400))
    assert set(wins) == {1, 2, 3}  # 3 is within epsilon of 1 in the first case, and equal in the second
    assert 120 < wins[2] < 280
    assert 0 < wins[3] < 200


def test_lexicase_of_members_without_any_score_is_a_fair_draw() -> None:
    nothing = (-float("inf"),) * 3
    rng = random.Random(0)
    wins = Counter(select_epsilon_lexicase([nothing] * 4, 1.0, rng) for _ in range(200))
    assert min(wins[index] for index in range(4)) > 20


@every_mutator
def test_children_are_new_legal_and_reproducible(mutator: Mutator) -> None:
    source = genome(constraints='"AAA * BBB <= 128"')
    pair = (parent(source), parent(source, AAA=1, BBB=64, CCC=70, EEE="most"))
    global_state = random.getstate()

    def children(seed: int) -> list[Draft]:
        rng, known, drafts = random.Random(seed), set[str](), list[Draft]()
        for _ in range(40):
            (draft,) = propose(mutator, context(*pair, known=known), rng)
            known.add(identity(source, draft.values))
            drafts.append(draft)
        return drafts

    drafts = children(3)
    assert len({identity(source, draft.values) for draft in drafts} | {each.candidate for each in pair}) == 42
    for draft in drafts:
        assert int(draft.values["AAA"]) * int(draft.values["BBB"]) <= 128
        assert source.values(draft.values) == draft.values
        assert (draft.source, draft.suffix) == (source.canonical, ".cpp")
        assert draft.parents[0] == pair[0].candidate
    assert children(3) == drafts
    assert children(4) != drafts
    assert random.getstate() == global_state


@every_mutator
def test_a_small_space_is_searched_to_its_last_point_and_then_said_to_be_spent(mutator: Mutator) -> None:
    source = genome(genes='AAA = [1, 2, 3]\nBBB = [1, 2, 3, 4]\nEEE = ["x", "y"]', constraints='"AAA != BBB"')
    first = parent(source, AAA=1, BBB=2, EEE="x")
    known, rng = {first.candidate}, random.Random(0)
    found = 0
    while drafts := propose(mutator, context(first, first, known=known), rng):
        found += len(drafts)
        known.update(identity(source, draft.values) for draft in drafts)
    assert found == (3 * 4 - 3) * 2 - 1


def test_scan_visits_every_point_once() -> None:
    source = genome(genes="AAA = [1, 2, 3]\nBBB = [1, 2, 3, 4]\nCCC = [7]")
    visited: list[tuple[int | str, ...]] = []

    def refuse(_: Genome, values: Values) -> bool:
        visited.append(tuple(values.values()))
        return False

    within = Context("scale", "cpu", (parent(source),), FACTS, lambda _: False, refuse)
    assert scan(within, source, random.Random(2)) is None
    assert sorted(visited) == [(a, b, 7) for a in (1, 2, 3) for b in (1, 2, 3, 4)]


def test_a_gene_has_its_neighbours_in_the_order_of_size() -> None:
    gene = genome(genes="AAA = [256, 64, 128, 512]").genes["AAA"]
    rng = random.Random(0)
    neighbours = {value: {neighbour(gene, value, rng) for _ in range(30)} for value in gene.choices}
    assert neighbours == {64: {128}, 128: {64, 256}, 256: {128, 512}, 512: {256}}


def test_creep_moves_one_or_two_genes_by_one_step() -> None:
    source, rng = genome(), random.Random(0)
    start = parent(source)
    for _ in range(60):
        (draft,) = propose(CreepMutation(), context(start), rng)
        moved = [name for name in start.values if draft.values[name] != start.values[name]]
        assert draft.note == "creep-mutation"
        assert 1 <= len(moved) <= 2
        for name in moved:
            choices = sorted(source.genes[name].choices)
            assert abs(choices.index(draft.values[name]) - choices.index(start.values[name])) == 1


def test_creep_without_ordered_genes_mutates_uniformly() -> None:
    source = genome(genes='AAA = [4]\nEEE = ["x", "y", "z"]')
    (draft,) = propose(CreepMutation(), context(parent(source)), random.Random(0))
    assert draft.values["EEE"] in ("y", "z")


def test_uniform_mutation_changes_about_one_gene() -> None:
    source, rng = genome(), random.Random(0)
    values = source.defaults()
    changed = [sum(redraw(source, values, 1 / 6, rng)[name] != values[name] for name in values) for _ in range(300)]
    assert 0.6 < sum(changed) / 300 < 1.1  # a redraw may give the old value again


def test_crossover_between_species_exchanges_what_both_have() -> None:
    one = genome("one", 'AAA = [1, 2, 3]\nBBB = [1, 2, 4]\nLLL = ["x", "y"]')
    two = genome("two", 'BBB = [8, 4]\nAAA = [3, 9]\nLLL = ["z"]\nTTT = [1, 2]')
    first, second = parent(one), parent(two, BBB=4)
    assert shared_genes(first, second) == ["AAA", "BBB"]  # LLL has no common value
    assert shared_genes(second, first) == []
    rng = random.Random(0)
    drafts = [propose(UniformCrossover(), context(first, second), rng)[0] for _ in range(40)]
    crossed = [draft for draft in drafts if draft.note == "uniform-crossover"]
    assert {(draft.values["AAA"], draft.values["BBB"]) for draft in crossed} == {(3, 4), (3, 1), (1, 4)}
    assert {draft.parents for draft in crossed} == {(first.candidate, second.candidate)}


def test_a_genome_without_free_genes_has_nothing_to_offer() -> None:
    source = genome(genes="AAA = [4]")
    for mutator in ALL:
        assert propose(mutator, context(parent(source)), random.Random(0)) == []

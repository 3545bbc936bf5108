"""Population, selection, islands and portfolio: who stays, who is picked, what counts as better."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from landscape import genome

from evo.engine.islands import Islands, island_count
from evo.engine.population import WIDE, Member, Population, half_width
from evo.engine.portfolio import Portfolio
from evo.engine.selection import lexicase, pick_mate, pick_parent
from evo.records import Candidate, CaseResult, Evaluation, Purpose, Status, Timing

CASES = ("a", "b", "c")
GENOMES = {species: genome(species) for species in ("wide", "narrow")}


def timing(ratio: float, error: float = 0.01) -> Timing:
    spread = math.exp(error)
    return Timing("test", "yardstick", 100 / ratio, 100.0, ratio, ratio / spread, ratio * spread, 0.95, 8, "fixed")


def member(
    name: str, *ratios: float | None, species: str = "wide", error: float = 0.01, status: Status = Status.OK
) -> Member:
    results = tuple(
        CaseResult(case, Status.UNCOVERED)
        if ratio is None
        else CaseResult(case, Status.OK, timing=timing(ratio, error))
        for case, ratio in zip(CASES, ratios, strict=False)
    )
    evaluation = Evaluation("e" + name, "r", name, Purpose.SEARCH, "yardstick", "cpu:0", status, cases=results)
    candidate = Candidate(name, "scale", "cpu", species, ".cpp", "", {})
    return Member.of(candidate, GENOMES[species], evaluation)


def ids(population: Population) -> list[str]:
    return [each.candidate.id for each in population.members]


def test_a_member_has_ratios_of_covered_cases_only_and_none_when_it_failed() -> None:
    good = member("x", 1.5, None, 0.5, error=0.02)
    assert good.ratios == {"a": 1.5, "c": 0.5}
    assert good.epsilon == pytest.approx({"a": 0.02, "c": 0.02})
    assert good.scores == pytest.approx({"a": math.log(1.5), "c": math.log(0.5)})
    bad = member("x", 1.5, None, 0.5, status=Status.WRONG_RESULT)
    assert (bad.ratios, bad.status) == ({}, Status.WRONG_RESULT)
    assert member("x", math.inf, math.nan, 2.0).ratios == {"c": 2.0}


def test_an_interval_without_bounds_is_wide() -> None:
    assert half_width(Timing("t", "y", 1.0, 1.0, 1.0, 0.0, 2.0, 0.95, 2, "fixed")) == WIDE
    assert half_width(Timing("t", "y", 1.0, 1.0, 1.0, 0.5, math.inf, 0.95, 2, "fixed")) == WIDE
    assert half_width(timing(3.0, 0.25)) == pytest.approx(0.25)


def test_scores_are_in_units_of_each_cases_own_error() -> None:
    population = Population(CASES)
    population.add(member("x", math.e, 1.0, error=0.01))
    population.add(member("y", None, math.e, error=0.02))
    population.add(member("z", 1.0, None, error=0.01))
    table = population.table()
    assert table["x"] == pytest.approx((100.0, 0.0, -math.inf))
    assert table["y"] == pytest.approx((-math.inf, 50.0, -math.inf))


def test_a_full_population_keeps_specialists_and_drops_who_leads_nowhere() -> None:
    population = Population(CASES, size=3, floor=0)
    population.add(member("specialist", None, None, 1.1))
    population.add(member("middling", 1.9, 1.9, 0.5))
    population.add(member("best", 2.0, 2.0, 0.4))
    population.add(member("poor", 1.5, 1.5, 0.9))
    assert ids(population) == ["specialist", "middling", "best"]
    population.add(member("better", 3.0, 3.0, None))
    assert ids(population) == ["specialist", "best", "better"]


def test_every_species_keeps_its_floor_and_its_share_of_the_selections() -> None:
    population, rng = Population(CASES, size=20, floor=4), random.Random(0)
    for number in range(10):
        population.add(member(f"n{number}", 0.1, 0.1, 0.1, species="narrow"))
    for number in range(60):
        population.add(member(f"w{number}", *(2 + rng.random() for _ in CASES)))
    niches = population.niches()
    assert {species: len(members) for species, members in niches.items()} == {"narrow": 4, "wide": 16}
    picks = Counter(pick_parent(population, population.members, rng).candidate.species for _ in range(600))
    assert 0.10 < picks["narrow"] / 600 < 0.20  # 0.3 / 2 of all, none of the rest


def test_more_species_than_places_still_fit_the_size() -> None:
    population = Population(CASES, size=1, floor=4)
    population.add(member("n", 1.0, species="narrow"))
    population.add(member("w", 2.0, species="wide"))
    assert ids(population) == ["w"]


def test_members_that_cover_nothing_are_selected_kept_and_dropped_without_a_crash() -> None:
    population, rng = Population(CASES, size=5, floor=2), random.Random(0)
    for number in range(8):
        population.add(member(f"m{number}", status=Status.BUILD_ERROR))
    assert ids(population) == ["m3", "m4", "m5", "m6", "m7"]  # of equals the oldest goes
    assert len({lexicase(population, population.members, rng).candidate.id for _ in range(60)}) == 5
    population.add(member("works", 1.0))
    assert {lexicase(population, population.members, rng).candidate.id for _ in range(20)} == {"works"}


def test_a_mate_is_another_member_and_mostly_kin() -> None:
    population, rng = Population(CASES), random.Random(0)
    first = member("w0", 1.0)
    population.add(first)
    assert pick_mate(population, first, rng) is None
    population.add(member("w1", 1.0))
    population.add(member("n0", 9.0, 9.0, 9.0, species="narrow"))
    mates = Counter(mate.candidate.id for _ in range(400) if (mate := pick_mate(population, first, rng)))
    assert set(mates) == {"w1", "n0"}
    assert 260 < mates["w1"] < 340


def test_discard_spares_the_last_of_a_species() -> None:
    population = Population(CASES)
    for each in (member("w0", 1.0), member("w1", 1.0), member("n0", 1.0, species="narrow")):
        population.add(each)
    for name in ("w0", "n0", "stranger"):
        population.discard(name)
    assert ids(population) == ["w1", "n0"]


def test_islands_come_with_the_budget() -> None:
    assert [island_count(evaluations) for evaluations in (0, 50, 1999, 2000, 3500, 10**6)] == [1, 1, 1, 2, 3, 4]


def test_islands_take_turns_and_send_one_member_round_the_ring() -> None:
    islands, rng = Islands(3, CASES), random.Random(0)
    assert [islands.turn() for _ in range(4)] == [1, 2, 0, 1]
    for number in range(199):
        islands.settle(member(f"m{number % 3}", 1.0 + number % 3), number % 3, rng)
    assert [ids(population) for population in islands.populations] == [["m0"], ["m1"], ["m2"]]
    islands.settle(member("m1", 2.0), 1, rng)
    assert [ids(population) for population in islands.populations] == [["m0", "m2"], ["m1", "m0"], ["m2", "m1"]]
    assert {each.candidate.id for each in islands.everyone()} == {"m0", "m1", "m2"}
    twin = Islands(3, CASES)
    twin.restore(islands.state(), {each.candidate.id: each for each in islands.everyone()})
    assert twin.state() == islands.state()


def test_the_portfolio_holds_the_best_of_each_case() -> None:
    portfolio = Portfolio(CASES)
    assert portfolio.offer(member("x", 1.0, 2.0))
    assert portfolio.offer(member("y", 1.5, 1.0))
    assert not portfolio.offer(member("z", 1.2, 1.9))
    assert {case: best.candidate for case, best in portfolio.best().items()} == {"a": "y", "b": "x"}
    assert portfolio.rivals() == {"a": 1.5, "b": 2.0}


def test_luck_is_no_improvement_but_many_small_steps_are_one() -> None:
    portfolio = Portfolio(CASES)
    assert portfolio.offer(member("first", 1.0, error=0.05))
    steps = [portfolio.offer(member(f"s{step}", 1.0 + 0.02 * step, error=0.05)) for step in range(1, 6)]
    assert steps == [False, False, True, False, False]  # 1.06 * exp(-0.05) is above 1
    assert portfolio.rivals() == {"a": 1.1}


def test_finalists_are_few_and_cover_what_they_can() -> None:
    portfolio = Portfolio(CASES)
    for each in (member("a", 2.0, 1.0, 1.9), member("b", None, 1.005), member("c", 1.0, 1.0, 1.905)):
        portfolio.offer(each)
    assert {case: c.id for case, c in portfolio.finalists().items()} == {"a": "a", "b": "b", "c": "c"}
    assert {case: c.id for case, c in portfolio.finalists(2).items()} == {"a": "a", "b": "b", "c": "a"}
    assert {case: c.id for case, c in portfolio.finalists(1).items()} == {"a": "a", "b": "a", "c": "a"}


def test_no_case_loses_much_to_the_number_of_finalists() -> None:
    """Eleven rows with eight leaders: six finalists cost one of them 5 %."""
    portfolio = Portfolio(CASES)
    for each in (member("a", 2.0, 1.0, 1.9), member("b", None, 3.0), member("c", 1.0, 1.0, 2.0)):
        portfolio.offer(each)
    assert {case: c.id for case, c in portfolio.finalists(1).items()} == {"a": "a", "b": "b", "c": "c"}


def test_a_struck_candidate_is_followed_by_the_best_of_the_others_and_never_returns() -> None:
    portfolio = Portfolio(CASES)
    lucky, solid, third = member("lucky", 9.0, 9.0), member("solid", 1.5), member("third", 1.2, 1.1)
    portfolio.offer(lucky)
    portfolio.strike("lucky", [lucky, third, solid])
    assert {case: best.candidate for case, best in portfolio.best().items()} == {"a": "solid", "b": "third"}


def test_portfolio_state_reads_back() -> None:
    portfolio, twin = Portfolio(CASES), Portfolio(CASES)
    members = [member("x", 1.0, 2.0), member("y", 1.005, None, 3.0)]
    for each in members:
        portfolio.offer(each)
    twin.restore(portfolio.state(), {each.candidate.id: each for each in members})
    assert twin.state() == portfolio.state() == {"a": ("y", 1.0), "b": ("x", 2.0), "c": ("y", 3.0)}
    assert twin.best() == portfolio.best()

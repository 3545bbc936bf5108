"""Search: what is asked, in which order, and what is learned from verdicts."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from landscape import CASES, MUTATORS, RUN, SMALL, ask, candidates, drive, genome, problem, ratio, search, simulated

from evo.engine.search import Search
from evo.errors import GenomeError, UsageError
from evo.mutators.base import Context, Draft
from evo.records import (
    Candidate,
    State,
    Values,
    Verdict,
)


def nothing(_: Candidate, __: str) -> None:
    return None


def score(rivals: dict[str, float]) -> float:
    return sum(math.log(best) for best in rivals.values()) / len(rivals)


def random_sampling(seed: int, evaluations: int) -> float:
    source, rng = genome(), random.Random(seed)
    best = dict.fromkeys(CASES, 0.0)
    for _ in range(evaluations):
        values: Values = {name: rng.choice(gene.choices) for name, gene in source.genes.items()}
        candidate = problem().candidate(source, values)
        best = {case: max(known, ratio(candidate, case)) for case, known in best.items()}
    return score(best)


def test_search_beats_random_sampling_at_equal_evaluations() -> None:
    found, sampled = [], []
    for seed in range(6):
        run = search(seed)
        drive(run, 120)
        found.append(score(run.portfolio.rivals()))
        sampled.append(random_sampling(seed, 120))
    assert sum(found) / 6 > sum(sampled) / 6 + 0.2  # geometric means 20 % apart; the best possible is ln 2
    assert sum(a > b for a, b in zip(found, sampled, strict=True)) >= 5


def test_elites_come_first_then_seeds_and_known_candidates_never() -> None:
    seeds = (genome("wide"), genome("narrow", SMALL))
    earlier = drive(search(9), 12)
    elites = [proposal.candidate for proposal in earlier[1:4]]
    known = {proposal.candidate.id: "ok" for proposal in earlier}
    run = search(seeds=seeds, elites=[*elites, elites[0]], known=known)
    asked = drive(run, 80)
    assert [proposal.candidate for proposal in asked[:3]] == elites
    assert candidates(asked[3:5]) == [problem().candidate(source, {}).id for source in seeds]
    assert [proposal.author.kind for proposal in asked[:5]] == ["archive", "archive", "archive", "seed", "seed"]
    assert not set(candidates(asked[5:])) & set(known)
    assert len(set(candidates(asked))) == 80
    assert {proposal.author.kind for proposal in asked[5:]} == {mutator.name for mutator in MUTATORS}


def test_what_says_nothing_about_a_candidate_does_not_bar_it() -> None:
    barred: dict[str, str] = {}
    for number, proposal in enumerate(drive(search(seeds=(genome("narrow", SMALL),)), 6)[1:]):
        barred[proposal.candidate.id] = ["ok", "wrong_result", "evaluator_error", "unstable_timing", "timeout"][number]
    asked = candidates(drive(search(seeds=(genome("narrow", SMALL),), known=barred), 6))
    assert {barred[name] for name in asked[1:]} == {"evaluator_error", "unstable_timing"}


def test_an_elite_that_no_longer_reads_is_passed_over() -> None:
    old = replace(problem().candidate(genome(), {}), source="/* evo\nspecies = 1 */")
    assert candidates(drive(search(elites=[old]), 20)) == candidates(drive(search(), 20))


def test_a_search_needs_seeds_that_fit() -> None:
    with pytest.raises(UsageError, match="0 seeds"):
        search(seeds=())
    other = genome()
    with pytest.raises(GenomeError, match="another operator"):
        search(seeds=[type(other).parse(other.canonical.replace('"scale"', '"other"', 1), ".cpp")])


def test_equal_seeds_and_tells_give_equal_asks_and_leave_the_global_generator_alone() -> None:
    random.seed(7)
    before = random.getstate()
    first, second, other = (candidates(drive(search(seed), 60)) for seed in (3, 3, 4))
    assert first == second
    assert first != other
    assert random.getstate() == before


def test_a_weak_species_keeps_its_niche_and_its_share() -> None:
    def formula(candidate: Candidate, case: str) -> float:
        return ratio(candidate, case) * (0.01 if candidate.species == "weak" else 1.0)

    run = search(seeds=(genome("wide"), genome("weak")))
    asked = drive(run, 300, formula)
    (population,) = run.islands.populations
    assert len(population) == population.size
    assert len(population.niches()["weak"]) == population.floor
    assert 25 < Counter(proposal.candidate.species for proposal in asked)["weak"] < 90


def test_members_that_cover_nothing_do_not_stop_the_search() -> None:
    run = search(seeds=(genome("wide"), genome("narrow", SMALL)))
    asked = drive(run, 60, nothing)
    assert len(asked) == 60
    assert run.rejected == {"invalid_genome": 60}
    assert run.portfolio.best() == {}
    assert len(run.islands.everyone()) == 2  # the seeds: their species may work with other values


def test_a_failed_seed_is_tuned_until_it_works() -> None:
    def formula(candidate: Candidate, case: str) -> float | None:
        return ratio(candidate, case) if candidate.values["EEE"] == "more" else None

    run = search()
    drive(run, 60, formula)
    assert set(run.portfolio.rivals()) == set(CASES)


def test_a_spent_space_is_said_to_be_so() -> None:
    run = search(seeds=(genome("narrow", SMALL),))
    assert len(drive(run, 50, lambda candidate, case: 1.0)) == 6
    assert run.message == "every legal candidate was tried"


def test_a_duplicate_is_counted_apart_and_not_bred_from() -> None:
    run = search()
    evaluator = simulated()
    seed, child = drive(run, 1)[0], ask(run)
    assert child
    evaluation = replace(evaluator.verdict(child).evaluation, duplicate_of=seed.candidate.id)
    assert not run.tell(Verdict(child, evaluation, State.DUPLICATE))
    assert (run.evaluated, run.duplicates) == (1, 1)
    assert [member.candidate.id for member in run.islands.everyone()] == [seed.candidate.id]


def test_a_large_budget_has_islands_and_a_small_one_not() -> None:
    run = search(evaluations=4000)
    drive(run, 300)
    assert [len(population) > 20 for population in run.islands.populations] == [True] * 4
    assert len(search(evaluations=500).islands.populations) == 1


class Silent:
    """Has no ideas."""

    name = "silent"

    async def propose(self, context: Context, rng: random.Random) -> list[Draft]:
        return []


def test_no_run_ends_for_a_lack_of_ideas_while_something_is_left() -> None:
    """As when the bandit likes an arm that has nothing to say, try after try."""
    run = Search(problem(), RUN, (genome("narrow", SMALL),), (Silent(),), seed=1)
    assert len(drive(run, 20)) == 6
    assert run.message == "every legal candidate was tried"

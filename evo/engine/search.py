"""The search behind ask and tell: decides what to try next, and learns from verdicts.

It does no input or output and knows no clock, so the same seed and the same order of tells give the same asks.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from evo.engine import checkpoint
from evo.engine.islands import Islands, island_count
from evo.engine.population import Member
from evo.engine.portfolio import Portfolio
from evo.engine.problem import Problem
from evo.engine.result import Phase
from evo.engine.selection import pick_mate, pick_parent
from evo.errors import GenomeError, UsageError
from evo.genome import Genome
from evo.ids import digest, new_id
from evo.mutators.base import Context, Draft, Mutator, Parent
from evo.mutators.variation import scan
from evo.records import Author, Candidate, Evaluation, Proposal, State, Status, Verdict

WEIGHTS = {"creep-mutation": 3.0, "uniform-mutation": 2.0, "uniform-crossover": 3.0, "two-point-crossover": 2.0}
TRIES = 16  # parents and mutators that one ask goes through before it gives up
SECOND_LOOK = frozenset({Status.EVALUATOR_ERROR, Status.UNSTABLE_TIMING})  # say nothing lasting about a candidate
GIVEN = frozenset({"seed", "archive"})  # authors of what is there before the search proper


class Search:
    """One run's search.

    Args:
        seeds: the operator's genomes; each is asked for with its defaults, and its species keeps a niche.
        elites: candidates of earlier runs, asked for after the seeds.
        known: status by id of the candidates of earlier runs; they are not proposed again, save elites and those in
            `SECOND_LOOK`.
        mutators: picked by `WEIGHTS` by name; 1 for one that is not listed there.
        seed: of the run's random numbers.
        evaluations: the run's budget of them, 0 where unknown; says how many islands there are.

    Raises `UsageError` without seeds or mutators, and (a `GenomeError`) for a seed that does not fit the operator.
    """

    def __init__(
        self,
        problem: Problem,
        run: str,
        seeds: Sequence[Genome],
        mutators: Sequence[Mutator],
        *,
        seed: int,
        elites: Iterable[Candidate] = (),
        known: Mapping[str, str] | None = None,
        evaluations: int = 0,
    ) -> None:
        if not seeds or not mutators:
            raise UsageError(
                f"nothing to search with: {len(seeds)} seeds, {len(mutators)} mutators",
                fix=f"the operator {problem.operator.name} needs a seed for {problem.target}",
            )
        self.problem = problem
        self.run = run
        self.portfolio = Portfolio(problem.case_names)
        self.islands = Islands(island_count(evaluations), problem.case_names)
        self.evaluated = 0
        self.duplicates = 0
        self.rejected: Counter[str] = Counter()
        self.message = ""
        self._mutators = tuple(mutators)
        self._weights = [WEIGHTS.get(mutator.name, 1.0) for mutator in mutators]
        self._rng = random.Random(seed)
        self._genome: Callable[[str, str], Genome] = lru_cache(maxsize=256)(self._read)
        self._queue: deque[checkpoint.Queued] = deque()
        self._open: dict[str, tuple[Proposal, int | None]] = {}  # by proposal id, with the island that asked
        self._seen: set[int] = set()
        self._dry: set[str] = set()  # sources of which every legal point was proposed
        self._enqueue_given(seeds, elites)
        self._seen.update(_short(name) for name, status in (known or {}).items() if status not in SECOND_LOOK)

    async def ask(self) -> Proposal | None:
        """The next proposal; None when nothing new was found (`message` then says so)."""
        for _ in range(TRIES):
            if self._queue:
                break
            await self._breed()
        if self._queue:
            return self._issue(self._queue.popleft())
        spent = all(self._is_dry(member.genome) for member in self.islands.everyone())
        self.message = "every legal candidate was tried" if spent else "the mutators find nothing new"
        return None

    async def _breed(self) -> None:
        """Queues what one mutator makes of one choice of parents, on the island whose turn it is."""
        island = self.islands.turn()
        population = self.islands.populations[island]
        eligible = [member for member in population.members if not self._is_dry(member.genome)]
        if not eligible:
            return
        parent = pick_parent(population, eligible, self._rng)
        mate = pick_mate(population, parent, self._rng)
        mutator = self._rng.choices(self._mutators, self._weights)[0]
        context = self._context([parent, mate] if mate else [parent])
        drafts = await mutator.propose(context, self._rng)
        for draft in drafts:
            self._enqueue(draft, Author(mutator.name), island)
        if not drafts and scan(context, parent.genome, self._rng) is None:  # not just this mutator's lack of ideas
            self._dry.add(_source_key(parent.genome))

    def tell(self, verdict: Verdict) -> bool:
        """Learns from a verdict on one of its own proposals; whether the portfolio improved."""
        proposal, island = self._open.pop(verdict.proposal.id)
        candidate, evaluation = proposal.candidate, verdict.evaluation
        if verdict.state is State.DUPLICATE:
            self.duplicates += 1
            self.islands.discard(candidate.id)
            return False
        self.evaluated += 1
        member = Member.of(candidate, self._genome(candidate.source, candidate.suffix), evaluation)
        if evaluation.status is not Status.OK:
            self.rejected[evaluation.status] += 1
            if proposal.author.kind != "seed":
                return False  # a failed seed stays: its species may work with other gene values
        self.islands.settle(member, island, self._rng)
        return self.portfolio.offer(member)

    def open(self) -> list[Proposal]:
        """Proposals that were asked for and have no verdict yet, oldest first."""
        return [proposal for proposal, _ in self._open.values()]

    @property
    def phase(self) -> Phase:
        """ "seeds" until all that was given has its verdict."""
        queued = any(entry.author.kind in GIVEN for entry in self._queue)
        return "seeds" if queued or any(p.author.kind in GIVEN for p in self.open()) else "search"

    def state(self) -> dict[str, Any]:
        """Everything that the archive does not hold elsewhere, JSON-able."""
        return {
            "version": checkpoint.VERSION,
            "random": checkpoint.dump_random(self._rng),
            "islands": self.islands.state(),
            "portfolio": self.portfolio.state(),
            "queue": [entry.dump() for entry in self._queue],
            "homes": {name: island for name, (_, island) in self._open.items()},
            "dry": sorted(self._dry),
            "evaluated": self.evaluated,
            "duplicates": self.duplicates,
            "rejected": dict(self.rejected),
        }

    def restore(
        self,
        state: Mapping[str, Any],
        evaluations: Iterable[Evaluation],
        open_proposals: Iterable[Proposal],
        find: Callable[[str], Candidate],
    ) -> None:
        """Puts a new search of the same problem, seeds and mutators where the saved one was.

        Args:
            evaluations: all of this run.
            open_proposals: those of this run without a verdict; `open` then returns them.
            find: looks a candidate up by its id.
        """
        checkpoint.expect_version(state)
        wanted = checkpoint.wanted(state)
        measured: dict[str, Evaluation] = {}
        for evaluation in evaluations:
            self._seen.add(_short(evaluation.candidate))
            if checkpoint.counts(evaluation) and evaluation.candidate in wanted:
                measured[evaluation.candidate] = evaluation
        members = {member.candidate.id: member for member in self.islands.everyone()}  # seeds, not yet measured
        for name, evaluation in measured.items():
            candidate = find(name)
            members[name] = Member.of(candidate, self._genome(candidate.source, candidate.suffix), evaluation)
        self.islands.restore(state["islands"], members)
        self.portfolio.restore(state["portfolio"], members)
        checkpoint.load_random(self._rng, state["random"])
        self._queue = deque(checkpoint.Queued.load(entry) for entry in state["queue"])
        self._seen.update(_short(entry.candidate.id) for entry in self._queue)
        self._dry = set(state["dry"])
        self.evaluated, self.duplicates = state["evaluated"], state["duplicates"]
        self.rejected = Counter(state["rejected"])
        self._reopen(open_proposals, state["homes"])

    def _reopen(self, proposals: Iterable[Proposal], homes: Mapping[str, int | None]) -> None:
        still = {proposal.id: proposal for proposal in proposals}
        self._open = {name: (still[name], island) for name, island in homes.items() if name in still}
        self._seen.update(_short(proposal.candidate.id) for proposal in self.open())

    def _enqueue_given(self, seeds: Sequence[Genome], elites: Iterable[Candidate]) -> None:
        for genome in seeds:
            genome.contract(self.problem.operator)
            if self.problem.legal(genome, genome.defaults()):  # other genes of it may cover what its defaults do not
                self._enqueue(Draft(genome.canonical, genome.suffix, genome.defaults()), Author("seed"), None)
            member = Member(self.problem.candidate(genome, {}), genome)
            for population in self.islands.populations:
                population.add(member)
        for number, elite in enumerate(elites):
            island = number % len(self.islands.populations)
            self._enqueue(Draft(elite.source, elite.suffix, elite.values), Author("archive"), island)

    def _enqueue(self, draft: Draft, author: Author, island: int | None) -> None:
        """Queues a draft, unless it is known or cannot be read (an elite whose genome an older evo wrote)."""
        try:
            candidate = self.problem.candidate(self._genome(draft.source, draft.suffix), draft.values)
        except GenomeError:
            return
        if _short(candidate.id) not in self._seen:
            self._seen.add(_short(candidate.id))
            self._queue.append(checkpoint.Queued(candidate, author, island, draft.parents, draft.note))

    def _issue(self, entry: checkpoint.Queued) -> Proposal:
        proposal = Proposal(new_id(), self.run, entry.candidate, entry.parents, entry.author, entry.note)
        self._open[proposal.id] = (proposal, entry.island)
        self.message = ""
        return proposal

    def _read(self, source: str, suffix: str) -> Genome:
        genome = Genome.parse(source, suffix)
        genome.contract(self.problem.operator)
        return genome

    def _is_dry(self, genome: Genome) -> bool:
        return bool(self._dry) and _source_key(genome) in self._dry

    def _context(self, members: Sequence[Member]) -> Context:
        return Context(
            self.problem.operator.name,
            self.problem.target,
            tuple(Parent(m.candidate.id, m.genome, m.candidate.values, m.scores) for m in members),
            self.problem.facts,
            lambda candidate: _short(candidate) in self._seen,
            self.problem.legal,
        )


def _short(candidate: str) -> int:
    """64 bits of a candidate id: a set of millions of them fits, and a clash costs one untried candidate."""
    return int(candidate[:16], 16)


@lru_cache(maxsize=1024)
def _text_key(canonical: str, suffix: str) -> str:
    return digest([suffix, canonical])[:16]


def _source_key(genome: Genome) -> str:
    return _text_key(genome.canonical, genome.suffix)

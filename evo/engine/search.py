"""The search behind ask and tell: decides what to try next, and learns from verdicts.

It does no input or output and knows no clock, so the same seed and the same order of tells give the same asks.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from evo.engine import checkpoint
from evo.engine.bandit import Bandit, portfolio_gain
from evo.engine.islands import Islands, island_count
from evo.engine.pitfalls import Pitfalls
from evo.engine.population import Member
from evo.engine.portfolio import Portfolio
from evo.engine.problem import Problem
from evo.engine.result import Phase
from evo.engine.selection import pick_mate, pick_parent
from evo.errors import GenomeError, UsageError
from evo.exchange import Exchange, Outcome
from evo.genome import Genome
from evo.ids import digest, new_id
from evo.mutators.agents.jobs import Arrival
from evo.mutators.agents.swarm import Swarm
from evo.mutators.base import Context, Draft, Mutator, Parent
from evo.mutators.variation import scan
from evo.records import BLAMELESS, Author, Candidate, Evaluation, Proposal, Purpose, State, Status, Values, Verdict
from evo.wording import count

WEIGHTS = {
    "creep-mutation": 3.0, "uniform-mutation": 2.0, "uniform-crossover": 3.0, "two-point-crossover": 2.0,
    "gene-discovery": 0.5, "gene-freezing": 0.5,
}  # fmt: skip
AGENTS = 1.0  # the weight of all models together, in that of all other mutators together
TRIES = 16  # parents and mutators that one ask goes through before it gives up
GIVEN = frozenset({"seed", "archive"})  # authors of what is there before the search proper


class Search:
    """One run's search.

    Args:
        seeds: the operator's genomes; each is asked for with its defaults, and its species keeps a niche.
        elites: candidates of earlier runs, asked for before the seeds, so that a short run has looked at them.
        known: status by id of the candidates of earlier runs; they are not proposed again, save elites and those in
            `BLAMELESS`.
        mutators: arms of the bandit, at first by `WEIGHTS` by name; 1 for one that is not listed there.
        swarm: language models, arms too; at first all of them together get as much as `AGENTS` says.
        seed: of the run's random numbers.
        evaluations: the run's budget of them, 0 where unknown; says how many islands there are.
        pitfalls: what earlier runs failed on, mostly passed over.

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
        pitfalls: Pitfalls | None = None,
        swarm: Swarm | None = None,
    ) -> None:
        if not seeds or not mutators:
            raise UsageError(
                f"nothing to search with: {count(len(seeds), 'seed')}, {count(len(mutators), 'mutator')}",
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
        self.pitfalls = pitfalls or Pitfalls()
        self.swarm = swarm
        self.journal: list[str] = []  # what happened in which order, for replay; kept where there is a swarm
        self._mutators = {mutator.name: mutator for mutator in mutators}
        weights = {name: WEIGHTS.get(name, 1.0) for name in self._mutators}
        self.bandit = Bandit(weights | (swarm.weights(AGENTS * sum(weights.values())) if swarm else {}))
        self._rng = random.Random(seed)
        self._genome: Callable[[str, str], Genome] = lru_cache(maxsize=256)(self._read)
        self._queue: deque[checkpoint.Queued] = deque()
        self._open: dict[str, tuple[Proposal, int | None]] = {}  # by proposal id, with the island that asked
        self._seen: set[int] = set()
        self._dry: set[str] = set()  # sources of which every legal point was proposed
        self._banned: set[tuple[str, str]] = set()  # genes with the values that a person will not have
        self._enqueue_given(seeds, elites)
        self._seen.update(_short(name) for name, status in (known or {}).items() if status not in BLAMELESS)

    async def ask(self) -> Proposal | None:
        """The next proposal; None when nothing new was found (`message` then says so)."""
        self._collect()
        self._log("a")
        for left in reversed(range(TRIES)):
            if self._queue:
                break
            await self._breed(last=left == 0)
        if self._queue:
            return self._issue(self._queue.popleft())
        spent = all(self._is_dry(member.genome) for member in self.islands.everyone())
        self.message = "every legal candidate was tried" if spent else "the mutators find nothing new"
        return None

    async def _breed(self, *, last: bool) -> None:
        """Queues what one mutator makes of one choice of parents, on the island whose turn it is; at the last try any
        point that is left, if it has no idea."""
        island = self.islands.turn()
        population = self.islands.populations[island]
        eligible = [member for member in population.members if not self._is_dry(member.genome)]
        models = self.swarm.ready() if self.swarm and self.evaluated else []
        if not eligible and not models:
            return
        arm = self.bandit.choose([*(self._mutators if eligible else ()), *models], self._rng)
        self.bandit.pick(arm)
        parent = pick_parent(population, population.members if arm in models else eligible, self._rng)
        mate = pick_mate(population, parent, self._rng)
        context = self._context([parent, mate] if mate else [parent])
        if self.swarm and arm in models:
            self.swarm.start(arm, context.parents, self._elites(), island, self._rng)
            return
        mutator = self._mutators[arm]
        drafts = await mutator.propose(context, self._rng)
        for draft in drafts:
            self._enqueue(draft, Author(mutator.name), island)
        if drafts:
            return
        left = scan(replace(context, legal=self.problem.legal), parent.genome, self._rng)
        if left is None:  # not just this mutator's lack of ideas
            self._dry.add(_source_key(parent.genome))
        elif last or len(self.pitfalls):  # nothing else is left, or the bandit likes an arm that has run out of ideas
            draft = Draft(
                parent.genome.canonical, parent.genome.suffix, left, (parent.candidate.id,), "scan of what is left"
            )
            self._enqueue(draft, Author(mutator.name), island)

    def tell(self, verdict: Verdict) -> bool:
        """Learns from a verdict on one of its own proposals; whether the portfolio improved."""
        before = self.portfolio.rivals()
        improved = self._learn(verdict)
        self._log("t")
        gain = portfolio_gain(before, self.portfolio.rivals()) if improved else 0.0
        author, candidate = verdict.proposal.author, verdict.proposal.candidate
        self.bandit.credit(author.model or author.kind, gain, sum(verdict.evaluation.seconds.values()) or 1.0)
        if self.swarm:
            self.swarm.tell(verdict, self._genome(candidate.source, candidate.suffix), gain)
        return improved

    def _learn(self, verdict: Verdict) -> bool:
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

    def _collect(self) -> None:
        """Takes in what models have answered, and what a person has said of their plans."""
        if self.swarm is None:
            return
        for direction, ruling in self.swarm.rulings():
            self._log(f"v{direction}={ruling}")
            self.swarm.rule(direction, ruling)
        for arrival in self.swarm.collect():
            self._log(f"j{arrival.job.number}")
            self.bandit.credit(arrival.job.arm, 0.0, self.swarm.cost_s(arrival))
            if arrival.draft:
                self._place(self.swarm, arrival, arrival.draft)

    def _place(self, swarm: Swarm, arrival: Arrival, draft: Draft) -> None:
        candidate = self.problem.candidate(self._genome(draft.source, draft.suffix), draft.values)
        why = "proposed before" if _short(candidate.id) in self._seen else ""
        if self._is_banned(candidate.values):
            why = "it has a gene value that was banned"
        self._enqueue(draft, Author(arrival.job.kind, arrival.job.arm), arrival.job.island)
        swarm.place(arrival, candidate, refused=why)

    def _elites(self) -> list[Parent]:
        """The best member of every species, by the sum of its scores."""
        best: dict[str, Member] = {}
        for member in self.islands.everyone():
            rival = best.get(member.candidate.species)
            if rival is None or sum(member.scores.values()) > sum(rival.scores.values()):
                best[member.candidate.species] = member
        return [_parent(member) for member in best.values()]

    def _log(self, event: str) -> None:
        if self.swarm:
            self.journal.append(event)

    @property
    def busy(self) -> bool:
        """Whether a model is at work."""
        return self.swarm is not None and self.swarm.busy

    def exchanges(self) -> list[Exchange]:
        """Calls of models that ended since the last time; each is given once."""
        return self.swarm.drain() if self.swarm else []

    def outcomes(self) -> list[Outcome]:
        """What became of models' jobs since the last time; each is given once."""
        if self.swarm is None:
            return []
        ended, self.swarm.outcomes = self.swarm.outcomes, []
        return [replace(outcome, run=self.run) for outcome in ended]

    def adopt(self, proposal: Proposal) -> bool:
        """Takes in a candidate that somebody else proposes, for all islands; False for one that was seen before."""
        if _short(proposal.candidate.id) in self._seen:
            return False
        self._seen.add(_short(proposal.candidate.id))
        self._open[proposal.id] = (proposal, None)
        self._log(f"x{proposal.id}")
        return True

    def ban(self, gene: str, value: str) -> None:
        """From now on nothing is bred that has this gene value; what was given or measured stays."""
        self._banned.add((gene, value))
        self._log(f"b{gene}={quote(value, safe='')}")
        kept = (e for e in self._queue if e.author.kind in GIVEN or not self._is_banned(e.candidate.values))
        self._queue = deque(kept)

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
            "bandit": self.bandit.state(),
            "swarm": self.swarm.state() if self.swarm else None,
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
            if self.swarm and evaluation.purpose is Purpose.SEARCH:
                self.swarm.knowledge.remember(evaluation)
            if checkpoint.counts(evaluation) and evaluation.candidate in wanted:
                measured[evaluation.candidate] = evaluation
        members = {member.candidate.id: member for member in self.islands.everyone()}  # seeds, not yet measured
        for name, evaluation in measured.items():
            candidate = find(name)
            members[name] = Member.of(candidate, self._genome(candidate.source, candidate.suffix), evaluation)
        self.islands.restore(state["islands"], members)
        self.portfolio.restore(state["portfolio"], members)
        checkpoint.load_random(self._rng, state["random"])
        self.bandit.restore(state.get("bandit") or {})
        if self.swarm:
            self.swarm.restore(state.get("swarm") or self.swarm.state())
            self._log("r")
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
        for number, elite in enumerate(elites):
            island = number % len(self.islands.populations)
            self._enqueue(Draft(elite.source, elite.suffix, elite.values), Author("archive"), island)
        for genome in seeds:
            genome.contract(self.problem.operator)
            if self.problem.legal(genome, genome.defaults()):  # other genes of it may cover what its defaults do not
                self._enqueue(Draft(genome.canonical, genome.suffix, genome.defaults()), Author("seed"), None)
            member = Member(self.problem.candidate(genome, {}), genome)
            for population in self.islands.populations:
                population.add(member)

    def _enqueue(self, draft: Draft, author: Author, island: int | None) -> None:
        """Queues a draft, unless it is known or cannot be read (an elite whose genome an older evo wrote)."""
        try:
            candidate = self.problem.candidate(self._genome(draft.source, draft.suffix), draft.values)
        except GenomeError:
            return
        if _short(candidate.id) not in self._seen and not self._is_banned(candidate.values):
            self._seen.add(_short(candidate.id))
            # A seed whose defaults are not legal breeds without having been a candidate itself.
            parents = tuple(name for name in draft.parents if _short(name) in self._seen)
            self._queue.append(checkpoint.Queued(candidate, author, island, parents, draft.note))

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
            tuple(_parent(member) for member in members),
            self.problem.facts,
            lambda candidate: _short(candidate) in self._seen,
            self._worthwhile,
            tuple(_parent(other) for other in self.islands.everyone() if other.genome is members[0].genome),
        )

    def _worthwhile(self, genome: Genome, values: Values) -> bool:
        if self._banned and self._is_banned(values):
            return False
        return self.problem.legal(genome, values) and not self.pitfalls.avoids(genome, values)

    def _is_banned(self, values: Values) -> bool:
        return any((name, str(value)) in self._banned for name, value in values.items())


def _parent(member: Member) -> Parent:
    return Parent(member.candidate.id, member.genome, member.candidate.values, member.scores)


def _short(candidate: str) -> int:
    """64 bits of a candidate id: a set of millions of them fits, and a clash costs one untried candidate."""
    return int(candidate[:16], 16)


@lru_cache(maxsize=1024)
def _text_key(canonical: str, suffix: str) -> str:
    return digest([suffix, canonical])[:16]


def _source_key(genome: Genome) -> str:
    return _text_key(genome.canonical, genome.suffix)

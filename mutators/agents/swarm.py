"""The swarm: language models as arms of the search. It starts jobs, hands over what arrives, and learns from verdicts.

Jobs run beside the search on its event loop. Whatever it decides follows from the order in which it was told to start,
collect and learn, and from the answers: so a record of those replays the run.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evo.exchange import Exchange, Outcome, Request
from evo.genome import Genome
from evo.mutators.agents.directions import Direction, Directions, Ruling
from evo.mutators.agents.jobs import FRUITLESS, Arrival, Job, Kind, Tally
from evo.mutators.agents.knowledge import Knowledge, Recall, nothing_recalled
from evo.mutators.agents.worker import Worker
from evo.mutators.base import Parent
from evo.records import Candidate, Evaluation, State, Status, Verdict

CROSSOVER = 0.2  # of the jobs that have a second parent of another structure
HISTORY = 8  # verdicts that the historian reads at once
PLANS_FAILED = 3  # in a row, until nobody plans any more
REPAIRS_WAITING = 8
SECONDS_PER_USD = 900.0  # what an hour of a data-centre GPU costs, about 4 USD, tells how tokens compare with its time
FAILED = frozenset(Status) - {Status.OK, Status.EVALUATOR_ERROR, Status.UNSTABLE_TIMING, Status.UNCOVERED}

Learn = Callable[[Sequence[Mapping[str, Any]]], None]  # a historian's lessons: claim, cases, evidence
Tested = Callable[[Direction], None]  # a hypothesis whose tries are used up


def _to_nobody(_: object) -> None:
    """Where there is no memory to write to."""


@dataclass(frozen=True, slots=True)
class _Own:
    """A candidate that the swarm proposed and waits for."""

    job: Job
    idea: str


@dataclass(frozen=True, slots=True)
class _Repair:
    own: _Own
    parent: Parent
    diagnosis: str


class Swarm:
    """One run's agents.

    Args:
        arms: weights of the models by name.
        recall, learn, tested: the doors to lessons of earlier runs and of this one.
        rulings: what a person has said of directions since the last time.
        filed: exchanges that the desk has recorded and nobody has stored yet.
        hold: jobs arrive when `release` says so, not when they end (for replay).
    """

    def __init__(
        self, worker: Worker, arms: Mapping[str, float], *, recall: Recall = nothing_recalled,
        learn: Learn = _to_nobody, tested: Tested = _to_nobody, rulings: Callable[[], list[tuple[str, Ruling]]] = list,
        filed: list[Exchange] | None = None, hold: bool = False,
    ) -> None:  # fmt: skip
        self.worker = worker
        self.options = worker.options
        self.arms = tuple(arms)
        self.rulings = rulings
        self._weights = dict(arms)
        self._filed = [] if filed is None else filed
        self.tallies = {arm: Tally() for arm in arms}
        self.directions = Directions(approve=self.options.approve_plan)
        self.knowledge = Knowledge(worker.operator, worker.cases, worker.facts)
        self.notes: list[str] = []
        self.outcomes: list[Outcome] = []  # of jobs that ended and nobody has stored yet
        self.stopped = False  # the budget has no room for another call
        self._recall, self._learn, self._tested = recall, learn, tested
        self._hold = hold
        self._full = False  # what is in flight holds back all that the budget has left
        self._count = 0
        self._plans_failed = 0
        self._tasks: dict[int, asyncio.Task[Arrival]] = {}  # jobs that have not been collected, by number
        self._flight: dict[int, Job] = {}
        self._arrived: deque[int] = deque()
        self._news = asyncio.Event()
        self._repairs: list[_Repair] = []
        self._own: dict[str, _Own] = {}  # by candidate id

    def weights(self, total: float) -> dict[str, float]:
        """The arms' weights, which add up to `total`."""
        return {arm: total * weight / sum(self._weights.values()) for arm, weight in self._weights.items()}

    def drain(self) -> list[Exchange]:
        """Exchanges that ended since the last time."""
        filed, self._filed[:] = list(self._filed), []
        return filed

    # Starting

    def ready(self) -> list[str]:
        """The arms that take another job."""
        self._full = self._full and bool(self._flight)
        if self.stopped or self._full:
            return []
        busy = [job.arm for job in self._flight.values()]
        slots = self.options.slots
        return [arm for arm in self.arms if self.tallies[arm].mode != "off" and busy.count(arm) < slots]

    @property
    def busy(self) -> bool:
        """Whether something may still arrive."""
        return bool(self._flight)

    def start(
        self, arm: str, parents: Sequence[Parent], elites: Sequence[Parent], island: int | None, rng: random.Random
    ) -> None:
        """Sets the arm to the work that is most needed now; to be called on the event loop."""
        self._count += 1
        job = self._next_job(arm, parents, elites, island, rng)
        self.tallies[arm].jobs += 1
        self._flight[job.number] = job
        task = asyncio.get_running_loop().create_task(self.worker.work(job))
        self._tasks[job.number] = task
        if not self._hold:
            task.add_done_callback(lambda _, number=job.number: self._arrive(number))  # type: ignore[misc]

    def _next_job(
        self, arm: str, parents: Sequence[Parent], elites: Sequence[Parent], island: int | None, rng: random.Random
    ) -> Job:
        kinds = {job.kind for job in self._flight.values()}
        if self._repairs:
            return self._repair(arm, self._repairs.pop(0), island)
        if self.options.plan and "planner" not in kinds and self._plans_failed < PLANS_FAILED:
            if not self.directions.is_open():
                return self._plan(arm, elites)
        if self.options.history and "historian" not in kinds and len(self.knowledge.verdicts) >= HISTORY:
            return self._history(arm)
        return self._write(arm, parents, elites, island, rng)

    def _repair(self, arm: str, repair: _Repair, island: int | None) -> Job:
        attempt = repair.own.job.attempt
        values = self.knowledge.brief(
            parent=self.knowledge.parent_values(repair.parent), diagnosis=repair.diagnosis, idea=repair.own.idea,
            attempt=attempt, attempts=self.options.repairs, mode=self.tallies[arm].mode,
        )  # fmt: skip
        return self._job("repair", arm, values, repair.parent, island, "", repair.own.job.direction, attempt + 1)

    def _plan(self, arm: str, elites: Sequence[Parent]) -> Job:
        known, about = self.knowledge, " ".join(sorted({elite.genome.species for elite in elites}))
        memory = self._recall(self._count, about)
        values = known.brief(
            elites=known.elites(elites), failures="\n".join(known.recent), memory=memory, count=5,
            directions="\n".join(direction.outcome() for direction in self.directions),
        )  # fmt: skip
        return self._job("planner", arm, values, None, None, memory)

    def _history(self, arm: str) -> Job:
        memory = self._recall(self._count, "")
        values = self.knowledge.brief(verdicts="\n".join(self.knowledge.verdicts), memory=memory)
        self.knowledge.verdicts = []
        return self._job("historian", arm, values, None, None, memory)

    def _write(
        self, arm: str, parents: Sequence[Parent], elites: Sequence[Parent], island: int | None, rng: random.Random
    ) -> Job:
        parent, mate = parents[0], parents[-1]
        direction = self.directions.next()
        if direction:
            self.directions.start(direction.name)
        memory = self._recall(self._count, f"{parent.genome.species} {direction.text() if direction else ''}")
        others = [elite for elite in elites if elite.genome.species != parent.genome.species]
        values = self.writer_values(parent, others, direction.text() if direction else "", memory, arm)
        cross = mate.genome.canonical != parent.genome.canonical and rng.random() < CROSSOVER
        mates: tuple[str, ...] = ()
        if cross:
            values = {
                **values,
                "parent": self.knowledge.parent_values(parent, mate),
                "mate": self.knowledge.parent_values(mate, parent),
            }
            mates = (mate.candidate,)
        name = direction.name if direction else ""
        return self._job("crossover" if cross else "writer", arm, values, parent, island, memory, name, mates=mates)

    def writer_values(
        self, parent: Parent, others: Sequence[Parent], direction: str, memory: str, arm: str
    ) -> Mapping[str, Any]:
        """What the writer's template is filled with."""
        known = self.knowledge
        return known.brief(
            parent=known.parent_values(parent), elites=known.elites(others), direction=direction, memory=memory,
            failures=known.failures(parent.candidate), mode=self.tallies[arm].mode,
        )  # fmt: skip

    def _job(
        self, kind: Kind, arm: str, values: Mapping[str, Any], parent: Parent | None, island: int | None, memory: str,
        direction: str = "", attempt: int = 1, mates: tuple[str, ...] = (),
    ) -> Job:  # fmt: skip
        reviewer = ""
        if self.options.review:
            able = [name for name in self.arms if self.tallies[name].mode != "off"] or [arm]
            others = [name for name in able if name != arm]
            reviewer = others[self._count % len(others)] if others else arm
        return Job(
            self._count, kind, arm, values, parent, mates, self.tallies[arm].mode, direction, attempt, reviewer, memory,
            island,
        )  # fmt: skip

    def prompt(self, parent: Parent, elites: Sequence[Parent], memory: str = "") -> Request:
        """Exactly what a writer would be sent for this parent now."""
        direction = self.directions.next()
        others = [elite for elite in elites if elite.genome.species != parent.genome.species]
        values = self.writer_values(parent, others, direction.text() if direction else "", memory, self.arms[0])
        job = Job(0, "writer", self.arms[0], values, parent)
        return self.worker.first_prompt(job)

    # Collecting

    def _arrive(self, number: int) -> None:
        if number in self._tasks:
            self._arrived.append(number)
            self._news.set()

    async def release(self, number: int) -> None:
        """Lets a held job arrive, once it has ended."""
        if task := self._tasks.get(number):
            await asyncio.wait([task])
            self._arrive(number)

    async def wait(self, timeout_s: float) -> None:
        """Returns when something has arrived, at the latest after so long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            pass

    def collect(self) -> list[Arrival]:
        """What has arrived since the last time, in order. Raises what a job failed with: evo's own fault, or a user's
        template."""
        arrivals: list[Arrival] = []
        while self._arrived:
            number = self._arrived.popleft()
            job, arrival = self._flight.pop(number), self._tasks.pop(number).result()
            self._take_in(job, arrival)
            if arrival.draft is None:
                self._note(arrival, "", arrival.problem)
            arrivals.append(arrival)
        self._news.clear()
        return arrivals

    def _take_in(self, job: Job, arrival: Arrival) -> None:
        tally = self.tallies[job.arm]
        tally.tokens += arrival.tokens
        if arrival.spent:
            self._no_room(job)
            return
        if job.kind == "planner":
            added = self.directions.add(arrival.items)
            self._plans_failed = 0 if added else self._plans_failed + 1
        elif job.kind == "historian":
            self._learn([item for item in arrival.items if isinstance(item, dict)])
        if arrival.problem:
            tally.problem = arrival.problem
        if job.parent is not None:
            self._count_answer(job, arrival, tally)

    def _no_room(self, job: Job) -> None:
        self._judge(job, right=False, gain=0.0)
        self._full = True
        if not self._flight:
            self.stopped = True
            self.notes.append("the budget has no room for another call of a model: genes only from here on")

    def _count_answer(self, job: Job, arrival: Arrival, tally: Tally) -> None:
        if arrival.draft or arrival.idea:  # a source that a reviewer turned down was one
            tally.fruitless = 0
        else:
            tally.fruitless += max(1, arrival.answers)
            if tally.fruitless >= FRUITLESS and tally.mode == job.mode:
                self.notes.append(tally.fall_back(job.arm))
        if arrival.problem and job.parent is not None:
            if arrival.answers:
                self.knowledge.fail(job.parent.candidate, arrival.idea, arrival.problem)
            self._judge(job, right=False, gain=0.0)

    def place(self, arrival: Arrival, candidate: Candidate, *, refused: str) -> None:
        """What the search made of an arrival's draft: a proposal, or nothing (`refused` says why)."""
        tally = self.tallies[arrival.job.arm]
        self._note(arrival, candidate.id, refused)
        if refused:
            tally.known += 1
            self.knowledge.duplicates.append(f"- {arrival.idea} (candidate {candidate.id[:8]}: {refused})")
            self._judge(arrival.job, right=False, gain=0.0)
            return
        tally.drafts += 1
        self._own[candidate.id] = _Own(arrival.job, arrival.idea)

    def _note(self, arrival: Arrival, candidate: str, problem: str) -> None:
        job = arrival.job
        self.outcomes.append(
            Outcome("", job.number, job.kind, job.arm, job.direction, candidate, arrival.idea, problem)
        )

    # Learning

    def tell(self, verdict: Verdict, genome: Genome, gain: float) -> None:
        """Learns from a verdict on any proposal of the run; `gain` is the portfolio's."""
        evaluation, candidate = verdict.evaluation, verdict.proposal.candidate
        self.knowledge.remember(evaluation)
        own = self._own.pop(candidate.id, None)
        if own is None:
            return
        tally = self.tallies[own.job.arm]
        if verdict.state is State.DUPLICATE:
            tally.known += 1
            self.knowledge.duplicates.append(
                f"- {own.idea} (candidate {candidate.id[:8]}: the same machine code as {evaluation.duplicate_of[:8]})"
            )
            self._judge(own.job, right=False, gain=0.0)
            return
        right = evaluation.status is Status.OK
        tally.judged += 1
        tally.right += int(right)
        tally.gain += gain
        self.knowledge.note(own.job, own.idea, candidate, evaluation, gain)
        if evaluation.status in FAILED:
            self._failed(own, candidate, evaluation, genome)
        self._judge(own.job, right=right, gain=gain, evaluation=evaluation.id)

    def _failed(self, own: _Own, candidate: Candidate, evaluation: Evaluation, genome: Genome) -> None:
        diagnosis = self.knowledge.diagnosis(candidate, evaluation)
        if own.job.parent is not None:
            self.knowledge.fail(own.job.parent.candidate, own.idea, diagnosis)
        if own.job.attempt <= self.options.repairs and len(self._repairs) < REPAIRS_WAITING:
            self._repairs.append(_Repair(own, Parent(candidate.id, genome, candidate.values, {}), diagnosis))

    def _judge(self, job: Job, *, right: bool, gain: float, evaluation: str = "") -> None:
        if not job.direction:
            return
        self.directions.judge(job.direction, right=right, gain=gain, evaluation=evaluation)
        found = self.directions.get(job.direction)
        jobs = (*self._flight.values(), *(e.job for e in self._own.values()), *(e.own.job for e in self._repairs))
        awaited = any(each.direction == job.direction for each in jobs)  # a try, or the repair of one
        if found and not found.open and found.judged >= found.started and not awaited:
            self._tested(found)

    def rule(self, direction: str, ruling: Ruling) -> None:
        """A person approved or vetoed a direction."""
        self.directions.rule(direction, ruling)

    # Keeping

    def interrupt(self) -> None:
        """What a killed run loses: jobs in flight, repairs that wait, and whose the candidates in flight are."""
        for task in self._tasks.values():
            task.cancel()
        for job in self._flight.values():
            self._judge(job, right=False, gain=0.0)
        self._tasks, self._flight, self._repairs, self._own = {}, {}, [], {}
        self.stopped = self._full = False
        self._arrived.clear()

    async def close(self) -> None:
        """Ends what is in flight, and waits until it has ended."""
        tasks = list(self._tasks.values())
        self.interrupt()
        await asyncio.gather(*tasks, return_exceptions=True)

    def state(self) -> dict[str, Any]:
        return {
            "count": self._count, "plans_failed": self._plans_failed, "stopped": self.stopped, "notes": self.notes,
            "tallies": {arm: asdict(tally) for arm, tally in self.tallies.items()},
            "directions": self.directions.state(), "knowledge": self.knowledge.state(),
            "flight": [job.direction for job in self._flight.values()],
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave, as it is after `interrupt`."""
        self._count, self._plans_failed = state["count"], state["plans_failed"]
        self.stopped, self.notes = False, list(state["notes"])
        self.tallies.update({arm: Tally(**kept) for arm, kept in state["tallies"].items() if arm in self.tallies})
        self.directions.restore(state["directions"])
        self.knowledge.restore(state["knowledge"])
        for name in filter(None, state["flight"]):
            self.directions.judge(name, right=False, gain=0.0)

    def cost_s(self, arrival: Arrival) -> float:
        """What an arrival cost, as seconds of a device."""
        return arrival.usd * SECONDS_PER_USD

"""The roles: what a job says to its model, and what it makes of the answers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evo.exchange import Message, Reply, Request
from evo.genome import Genome
from evo.mutators.agents.answers import admit, find_idea, find_list, is_rejection, keeps
from evo.mutators.agents.desk import SPENT, Call, Desk
from evo.mutators.agents.edits import EditError, proposed_source
from evo.mutators.agents.jobs import Arrival, Job, Options
from evo.mutators.agents.prompts import Prompts
from evo.mutators.base import Draft, Parent
from evo.operator import Case, Operator
from evo.records import DeviceFacts, Value

LONGEST_DIFF = 10_000  # lines
UNKNOWN_USD = 1e-6  # a token of unknown price, for comparing arms


class _Talk:
    """The calls of one job, numbered and counted."""

    def __init__(self, desk: Desk, job: Job, max_tokens: int) -> None:
        self._desk = desk
        self._job = job
        self._max_tokens = max_tokens
        self._step = 0
        self.tokens = 0
        self.usd = 0.0

    async def ask(self, role: str, model: str, system: str, messages: list[Message]) -> Reply:
        self._step += 1
        memory = self._job.memory if self._step == 1 else ""
        call = Call(self._job.number, self._step, role, model, memory)
        reply, usd = await self._desk.ask(call, Request(system, tuple(messages), self._max_tokens))
        self.tokens += reply.usage.total
        self.usd += reply.usage.total * UNKNOWN_USD if usd is None else usd
        return reply


@dataclass(frozen=True, slots=True)
class _Proposed:
    answer: str
    source: str
    genome: Genome
    values: dict[str, Value]


@dataclass(frozen=True)
class Worker:
    """Does jobs, many at once. Holds no state: what a job does follows from the job and the answers alone."""

    desk: Desk
    prompts: Prompts
    options: Options
    operator: Operator
    arch: str
    cases: tuple[Case, ...]
    facts: DeviceFacts

    async def work(self, job: Job) -> Arrival:
        """What comes of a job. Raises `UsageError` only, for a user's template that fails."""
        talk = _Talk(self.desk, job, self.options.max_tokens)
        if job.parent is None:
            return await self._listed(job, talk)
        return await self._authored(job, job.parent, talk)

    def first_prompt(self, job: Job) -> Request:
        """What a job asks first."""
        message = Message("user", self.prompts.render(job.kind, job.values))
        return Request(self.prompts.system(job.kind), (message,), self.options.max_tokens)

    async def _listed(self, job: Job, talk: _Talk) -> Arrival:
        request = self.first_prompt(job)
        reply = await talk.ask(job.kind, job.arm, request.system, list(request.messages))
        items = tuple(find_list(reply.text)) if reply.finish in ("stop", "length") else ()
        problem = "" if reply.finish == "stop" and (items or job.kind == "historian") else _complaint(reply)
        return _end(job, talk, Arrival(job, items=items, problem=problem, spent=reply.error == SPENT))

    async def _authored(self, job: Job, parent: Parent, talk: _Talk) -> Arrival:
        request = self.first_prompt(job)
        system, messages = request.system, list(request.messages)
        problem, found = "", None
        answers = 0
        for answers in range(1, self.options.answers + 1):
            reply = await talk.ask(job.kind, job.arm, system, messages)
            if reply.finish in ("error", "refused"):
                spent = reply.error == SPENT
                return _end(job, talk, Arrival(job, problem=_complaint(reply), answers=answers - 1, spent=spent))
            try:
                found = self._proposed(reply, parent)
                break
            except EditError as error:
                problem = str(error)
            messages += _correction(reply.text, problem)
        if found is None:
            return _end(job, talk, Arrival(job, problem=problem, answers=answers))
        messages.append(Message("assistant", found.answer))
        found = await self._reviewed_by_itself(job, parent, talk, system, messages, found)
        idea = find_idea(found.answer) or "no reason given"
        if why := await self._reviewed(job, parent, talk, found, idea):
            return _end(job, talk, Arrival(job, idea=idea, problem=f"the reviewer rejected it: {why}", answers=answers))
        draft = Draft(found.genome.canonical, found.genome.suffix, found.values, (parent.candidate, *job.mates), idea)
        return _end(job, talk, Arrival(job, draft, idea=idea, answers=answers))

    def _proposed(self, reply: Reply, parent: Parent) -> _Proposed:
        """Raises `EditError`."""
        if reply.finish == "length":
            raise EditError("the answer was cut off at the limit of its length: answer with less")
        if reply.finish == "empty":
            raise EditError("the answer was empty")
        source = proposed_source(reply.text, parent.genome.canonical)
        genome, values = admit(source, parent, self.operator, self.arch, self.cases, self.facts)
        return _Proposed(reply.text, genome.canonical, genome, values)

    async def _reviewed_by_itself(
        self, job: Job, parent: Parent, talk: _Talk, system: str, messages: list[Message], found: _Proposed
    ) -> _Proposed:
        """The writer's second look, a bounded number of times. What does not fit changes nothing."""
        for _ in range(self.options.own_reviews):
            changed = difference(parent.genome.canonical, found.source)
            messages.append(Message("user", self.prompts.render("review_own", {"difference": changed})))
            reply = await talk.ask(job.kind, job.arm, system, messages)
            if reply.finish != "stop" or keeps(reply.text):
                break
            try:
                better = self._proposed(reply, parent)
            except EditError:
                break
            messages.append(Message("assistant", reply.text))
            found = better
        return found

    async def _reviewed(self, job: Job, parent: Parent, talk: _Talk, found: _Proposed, idea: str) -> str:
        """Why the reviewer is against it; "" lets it pass, and so does a reviewer that fails."""
        if not job.reviewer:
            return ""
        changed = difference(parent.genome.canonical, found.source)
        values = {**job.values, "idea": idea, "source": found.source, "difference": changed}
        message = Message("user", self.prompts.render("reviewer", values))
        reply = await talk.ask("reviewer", job.reviewer, self.prompts.system("reviewer"), [message])
        if reply.finish != "stop" or not is_rejection(reply.text):
            return ""
        return " ".join(reply.text.split())[:300]


def difference(old: str, new: str) -> str:
    """A unified diff, without file names; of what is too long to compare, only that it is."""
    if old.count("\n") + new.count("\n") > LONGEST_DIFF:
        return "too long to be shown"
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2)
    return "\n".join(list(lines)[2:])


def _correction(answer: str, problem: str) -> list[Message]:
    """The next turn after an answer that cannot be used; services refuse an empty turn of their own."""
    said = answer[:20_000].strip() or "(nothing)"
    return [
        Message("assistant", said),
        Message("user", f"That cannot be used: {problem}\n\nAnswer again, whole and in the form that was asked for.\n"),
    ]


def _complaint(reply: Reply) -> str:
    known = {"stop": "the answer holds no JSON list", "length": "it was cut off", "empty": "the answer was empty"}
    return known.get(reply.finish, reply.error or reply.finish)


def _end(job: Job, talk: _Talk, arrival: Arrival) -> Arrival:
    return replace(arrival, tokens=talk.tokens, usd=talk.usd)


def template_values(**values: Any) -> Mapping[str, Any]:
    """Every name that a template may use; what is not given is empty, since an unknown name is an error there."""
    empty = dict.fromkeys(
        ("memory", "notes", "elites", "failures", "duplicates", "direction", "directions", "diagnosis", "idea"), ""
    )
    return {**empty, "mode": "edits", **values}

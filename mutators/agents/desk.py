"""Where calls are made: bounded by the purse, recorded whatever becomes of them, free of keys."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol

from evo import codec
from evo.exchange import Exchange, Message, Reply, Request
from evo.ids import digest, new_id
from evo.mutators.agents.prices import Price
from evo.mutators.agents.providers.base import Provider, estimate_usage
from evo.mutators.agents.purse import Purse, SpentError

SPENT = "budget"  # the error of a call that was not made
LINE = 120  # characters of a differing line that are repeated
_MARK = re.compile(r"(\[\[(?:end of )?evidence) [0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Model:
    """One arm. `price` is that of its tokens; where it is not known, `assumed` is what a budget is charged."""

    provider: Provider
    price: Price | None
    assumed: Price
    weight: float = 1.0

    @property
    def name(self) -> str:
        return self.provider.name


@dataclass(frozen=True, slots=True)
class Call:
    """Which call of which job, by which model in which role."""

    job: int
    step: int
    role: str
    model: str
    memory: str = ""


class Desk(Protocol):
    async def ask(self, call: Call, request: Request) -> tuple[Reply, float | None]:
        """The reply and its price in USD, None where that is not known. Never raises for what a service does."""
        ...


class LiveDesk:
    """Asks the models. Every exchange, also a failed one, goes to `file`."""

    def __init__(
        self, run: str, models: Mapping[str, Model], purse: Purse, redact: Callable[[str], str],
        file: Callable[[Exchange], None],
    ) -> None:  # fmt: skip
        self._run = run
        self._models = models
        self._purse = purse
        self._redact = redact
        self._file = file

    async def ask(self, call: Call, request: Request) -> tuple[Reply, float | None]:
        model = self._models[call.model]
        request = redacted(request, self._redact)
        rate = model.price or model.assumed
        least = estimate_usage(request, "")
        most = replace(least, output=request.max_tokens)
        started_s, start = time.time(), time.perf_counter()
        reply = Reply("", "error", least, error="cancelled")  # nobody can say what had been written by then
        try:
            with self._purse.hold(most.total, rate.usd(most)):
                reply = await model.provider.complete(request)
        except SpentError:
            reply = Reply("", "error", attempts=0, error=SPENT)
        finally:
            usage = reply.usage
            self._purse.pay(usage.total, rate.usd(usage))
            usd = model.price.usd(usage) if model.price else None
            self._file(
                Exchange(
                    new_id(), self._run, call.job, call.step, call.role, call.model, request, reply,
                    request_digest(request), usd, rate.usd(usage), started_s, time.perf_counter() - start, call.memory,
                )
            )  # fmt: skip
        return reply, usd


class RecordedDesk:
    """Answers out of the archive: by job and step, at once. `strange` names prompts that are not those recorded,
    `differing` says where each of them begins to differ, and `missing` names calls that the record lacks."""

    def __init__(self, exchanges: Mapping[tuple[int, int], Exchange], redact: Callable[[str], str] = str) -> None:
        self._exchanges = exchanges
        self._redact = redact
        self.same = 0
        self.strange: list[tuple[int, int]] = []
        self.differing: list[str] = []
        self.missing: list[str] = []

    async def ask(self, call: Call, request: Request) -> tuple[Reply, float | None]:
        found = self._exchanges.get((call.job, call.step))
        if found is None:
            self.missing.append(_named(call))
            return Reply("", "error", attempts=0, error="not in the record"), None
        if found.digest == request_digest(redacted(request, self._redact)) and found.role == call.role:
            self.same += 1
        else:
            self.strange.append((call.job, call.step))
            self.differing.append(_difference(call, found, redacted(request, self._redact)))
        return found.reply, found.usd

    def memory(self, job: int) -> str:
        """What was recalled for a job."""
        found = self._exchanges.get((job, 1))
        return found.memory if found else ""


def request_digest(request: Request) -> str:
    return digest([codec.dumps(request)])


def _named(call: Call) -> str:
    return f"job {call.job}, step {call.step} ({call.role})"


def _difference(call: Call, found: Exchange, request: Request) -> str:
    """Which prompt it is, and its first line that is another one than in the record."""
    where = _named(call)
    if found.role != call.role:
        return f"{where}: it was for the {found.role}"
    for number, (was, now) in enumerate(zip_longest(_lines(found.request), _lines(request)), 1):
        if was != now:
            return f"{where}, line {number}: was {_quoted(was)}, is {_quoted(now)}"
    return f"{where}: the same text, with other bounds"


def _lines(request: Request) -> list[str]:
    """Without the marks' hashes: they differ wherever what they enclose does, one line before it."""
    text = "\n".join([request.system, *(message.text for message in request.messages)])
    return _MARK.sub(r"\1", text).split("\n")


def _quoted(line: str | None) -> str:
    return "not there" if line is None else repr(line[:LINE])


def redacted(request: Request, redact: Callable[[str], str]) -> Request:
    messages = tuple(Message(message.role, redact(message.text)) for message in request.messages)
    return replace(request, system=redact(request.system), messages=messages)

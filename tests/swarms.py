"""A swarm over a stand-in service, for tests of the engine and for its benchmark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from landscape import CASES, MUTATORS, RUN, genome, problem, ratio
from llm_server import Answer, Behaviour, LlmServer, Seen, chat

from evo.archive import Archive
from evo.engine.budget import Budget, Meter
from evo.engine.loop import evolve
from evo.engine.search import Search
from evo.engine.simulated import Formula, SimulatedEvaluator
from evo.exchange import Exchange
from evo.mutators.agents.desk import LiveDesk, Model
from evo.mutators.agents.jobs import Options
from evo.mutators.agents.prices import Price
from evo.mutators.agents.prompts import Prompts
from evo.mutators.agents.providers import open_provider, parse_llm
from evo.mutators.agents.providers.http import Poster
from evo.mutators.agents.providers.keys import Keys
from evo.mutators.agents.purse import Purse
from evo.mutators.agents.swarm import Swarm
from evo.mutators.agents.worker import Worker
from evo.records import Verdict

PAUSE_S = 0.03
PRICE = Price(1.0, 2.0, 0.5)
PLAIN = Options(answers=2, own_reviews=0, review=False, plan=False, history=False, repairs=1)


class Paced(SimulatedEvaluator):
    """Takes a little time, as a device does, so that answers come meanwhile."""

    async def finished(self, timeout_s: float) -> list[Verdict]:
        await asyncio.sleep(PAUSE_S)
        return await super().finished(timeout_s)


@dataclass
class Bench:
    """What a test needs of a run with agents."""

    swarm: Swarm
    search: Search
    purse: Purse
    client: httpx.AsyncClient
    filed: list[Exchange] = field(default_factory=list)

    def go(self, archive: Archive, budget: str, formula: Formula = ratio, kind: type[Paced] | None = None) -> Meter:
        meter = Meter(Budget.parse(budget))

        async def turn() -> None:
            evaluator = (kind or Paced)(CASES, formula, run=RUN)
            try:
                await evolve(self.search, evaluator, archive, meter, lambda _: None)
            finally:
                await self.client.aclose()

        asyncio.run(turn())
        return meter


def bench(
    urls: list[str], options: Options = PLAIN, purse: Purse | None = None, price: Price | None = PRICE, **more: Any
) -> Bench:
    """One model for each URL."""
    keys, purse = Keys({"OPENAI_API_KEY": "sk-test-0123456789abcdef"}), purse or Purse()
    client = httpx.AsyncClient(timeout=20.0, verify=False, limits=httpx.Limits(max_connections=2000))
    poster = Poster(client, keys.redact, first_pause_s=0.01)
    models = [Model(open_provider(parse_llm(f"openai:m@{url}"), keys, poster), price, Price(9, 9, 9)) for url in urls]
    filed: list[Exchange] = []
    desk = LiveDesk(RUN, {model.name: model for model in models}, purse, keys.redact, filed.append)
    where = problem()
    worker = Worker(desk, Prompts(), options, where.operator, "native", where.cases, where.facts)
    swarm = Swarm(worker, {model.name: 1.0 for model in models}, filed=filed, **more)
    search = Search(where, RUN, (genome(),), MUTATORS, seed=3, swarm=swarm)
    return Bench(swarm, search, purse, client, filed)


@contextmanager
def served(behaviour: Behaviour) -> Iterator[LlmServer]:
    with LlmServer(behaviour) as server:
        yield server


def prompt_of(seen: Seen) -> str:
    """The last message of a request."""
    return str(seen.body["messages"][-1]["content"])


HEAD = 'extern "C" void scale(long first, long last, int worker, const float* x, float* y, int n) {'


def new_idea(number: int) -> str:
    """Edits that make another source of any of the landscape's genomes."""
    return f"Idea {number}: say so.\n<<<<<<< SEARCH\n{HEAD}\n=======\n{HEAD}\n  // idea {number}\n>>>>>>> REPLACE\n"


def numbered(make: Callable[[int], Answer | str]) -> Behaviour:
    """Answers by the number of the request, from 1."""
    count = 0

    def behaviour(_: Seen) -> Answer:
        nonlocal count
        count += 1
        made = make(count)
        return chat(made) if isinstance(made, str) else made

    return behaviour

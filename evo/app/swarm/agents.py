"""Language models in a run: from what the user said to a swarm, and what is said of it in the end."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import platformdirs

from evo.app.memory.recalling import Memories
from evo.app.swarm.rulings import Rulings
from evo.archive import Archive
from evo.archive.exchanges import totals
from evo.engine.budget import Budget, written
from evo.engine.problem import Problem
from evo.engine.result import ArmSummary
from evo.engine.search import Search
from evo.errors import UsageError
from evo.exchange import Exchange
from evo.genome import Genome
from evo.mutators.agents.desk import Desk, LiveDesk, Model
from evo.mutators.agents.jobs import Options
from evo.mutators.agents.prices import Prices
from evo.mutators.agents.prompts import Prompts
from evo.mutators.agents.providers import connect, key_for, open_provider, parse_llm
from evo.mutators.agents.providers.base import estimate_usage
from evo.mutators.agents.providers.http import Poster
from evo.mutators.agents.providers.keys import Keys
from evo.mutators.agents.providers.spec import REPLAY
from evo.mutators.agents.purse import Purse
from evo.mutators.agents.swarm import Swarm
from evo.mutators.agents.worker import Worker
from evo.mutators.base import Parent
from evo.wording import count

APPROVALS = ("plan", "finalists")
ANSWER_TOKENS = 3000  # that a forecast takes for a usual answer


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What a user may say about agents; `approve` holds names of `APPROVALS`."""

    llm: tuple[str, ...] = ()
    approve: tuple[str, ...] = ()
    prompts: str = ""  # a folder whose templates go before evo's own
    slots: int = 4

    def words(self) -> list[str]:
        """As on the command line."""
        words = [word for model in self.llm for word in ("--llm", model)]
        words += ["--approve", ",".join(self.approve)] if self.approve else []
        words += ["--prompts", self.prompts] if self.prompts else []
        return words + (["--agents", str(self.slots)] if self.llm and self.slots != 4 else [])

    @classmethod
    def read(cls, command: str) -> AgentSettings:
        """Out of a run's command."""
        found: dict[str, list[str]] = {"--llm": [], "--approve": [], "--prompts": [], "--agents": []}
        words = shlex.split(command)
        for word, value in zip(words, words[1:], strict=False):
            if word in found:
                found[word].append(value)
        approve = tuple(filter(None, ",".join(found["--approve"]).split(",")))
        slots = int(found["--agents"][-1]) if found["--agents"] else 4
        return cls(tuple(found["--llm"]), approve, "".join(found["--prompts"][-1:]), slots)

    @property
    def replayed(self) -> bool:
        return any(text.startswith(f"{REPLAY}:") for text in self.llm)

    def options(self) -> Options:
        """Raises `UsageError` for an approval that there is not."""
        for name in self.approve:
            if name not in APPROVALS:
                raise UsageError(f"nothing called {name!r} can be approved", fix=f"there are: {', '.join(APPROVALS)}")
        return Options(slots=self.slots, approve_plan="plan" in self.approve)


@dataclass(frozen=True)
class Agents:
    """A run's swarm and what it needs; to be closed on the event loop that used it."""

    swarm: Swarm
    models: tuple[Model, ...]
    client: httpx.AsyncClient
    approve_finalists: bool = False

    async def close(self) -> None:
        await self.swarm.close()
        await self.client.aclose()


def own_keys() -> Keys:
    return Keys(os.environ, Path(".env"))


def own_prices() -> Prices:
    """The table that comes with evo, after the user's own where there is one."""
    named = os.environ.get("EVO_PRICES", "")
    usual = Path(platformdirs.user_config_dir("evo")) / "prices.toml"
    return Prices.load(Path(named) if named else usual if usual.exists() else None)


def check_agents(settings: AgentSettings) -> None:
    """Raises `UsageError` for what `open_agents` would refuse, before anything is started."""
    settings.options()
    keys = own_keys()
    for text in settings.llm:
        key_for(parse_llm(text), keys)
    Prompts(settings.prompts)
    own_prices()


def open_models(llm: Sequence[str], client: httpx.AsyncClient, keys: Keys) -> tuple[Model, ...]:
    """Raises `UsageError`: an unknown provider, a key that is missing, a model named twice."""
    prices, models = own_prices(), []
    for text in llm:
        spec = parse_llm(text)
        provider = open_provider(spec, keys, Poster(client, keys.redact))
        models.append(Model(provider, prices.of(spec), prices.dearest(), spec.weight))
    names = [model.name for model in models]
    if len(set(names)) < len(names):
        raise UsageError(f"--llm names a model twice: {', '.join(names)}", fix="give it a weight: --llm MODEL*2")
    return tuple(models)


def open_agents(
    settings: AgentSettings, problem: Problem, arch: str, archive: Archive, run: str, budget: Budget,
    spent: Mapping[str, float],
) -> Agents | None:  # fmt: skip
    """None where the user named no model. Raises `UsageError`."""
    options = settings.options()
    if not settings.llm:
        return None
    keys, client = own_keys(), connect(settings.slots * len(settings.llm))
    models = open_models(settings.llm, client, keys)
    purse = Purse(budget.tokens, budget.usd, int(spent.get("tokens", 0)), spent.get("usd", 0.0))
    filed: list[Exchange] = []
    desk = LiveDesk(run, {model.name: model for model in models}, purse, keys.redact, filed.append)
    memories = Memories(archive, problem, run)
    rulings = Rulings(archive, run)
    swarm = Swarm(
        worker(desk, settings, options, problem, arch), {model.name: model.weight for model in models},
        recall=memories.recall, learn=memories.learn, tested=memories.tested, rulings=rulings.poll, filed=filed,
    )  # fmt: skip
    rulings.watch(swarm.directions)
    return Agents(swarm, models, client, "finalists" in settings.approve)


def worker(desk: Desk, settings: AgentSettings, options: Options, problem: Problem, arch: str) -> Worker:
    prompts = Prompts(settings.prompts)
    return Worker(desk, prompts, options, problem.operator, arch, problem.cases, problem.facts)


def forecast(agents: Agents, seeds: Sequence[Genome], budget: Budget) -> str:
    """What the budget buys, before anything is spent."""
    seed = seeds[0]
    prompt = agents.swarm.prompt(Parent("0" * 64, seed, seed.defaults(), {}), ())
    calls = 2 + int(agents.swarm.options.review)
    usage = estimate_usage(prompt, "x" * ANSWER_TOKENS * 3)
    tokens, told = calls * usage.total, []
    if budget.tokens:
        told.append(f"tokens={budget.tokens} buys about {count(budget.tokens // tokens, 'proposal')} of a model")
    for model in agents.models:
        rate = model.price or model.assumed
        known = "" if model.price else " (price unknown: charged as the dearest known)"
        usd = calls * rate.usd(usage)
        if budget.usd:
            number = f"about {count(round(budget.usd / usd), 'proposal')}" if usd else "any number of proposals"
            told.append(f"usd={written(budget.usd)} buys {number} of {model.name}{known}")
        elif model.price:
            told.append(f"a proposal of {model.name} costs about {usd:.3f} USD")
    return "; ".join(told) or f"a proposal of a model takes about {tokens} tokens, and no budget limits them"


def arm_summaries(search: Search, archive: Archive) -> tuple[ArmSummary, ...]:
    """Every arm with its share; models with what they did and cost. USD only where every call's price is known."""
    if search.swarm is None:
        return ()
    spent: dict[str, list[dict[str, float]]] = {}
    for row in totals(archive, search.run):
        spent.setdefault(row["model"], []).append(row)
    rows = []
    for arm, share in search.bandit.shares().items():
        tally, mine = search.swarm.tallies.get(arm), spent.get(arm, [])
        if tally is None:
            rows.append(ArmSummary(arm, share))
            continue
        calls = int(sum(row["calls"] for row in mine))
        priced = mine and all(row["priced"] == row["calls"] for row in mine)
        rows.append(
            ArmSummary(
                arm, share, tally.jobs, tally.drafts, tally.right, tally.known, tally.gain, calls,
                int(sum(row["tokens_in"] + row["tokens_out"] for row in mine)),
                sum(row["usd"] for row in mine) if priced else None,
            )
        )  # fmt: skip
    return tuple(rows)

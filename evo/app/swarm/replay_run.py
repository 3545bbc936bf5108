"""`evo run --llm replay:RUN`: takes a past run's way again, from its record alone: no key, no network, no device.

Answers and verdicts come out of the archive in the order in which the run took them in; prompts and decisions are made
anew and compared. Nothing is written.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import text

from evo import codec
from evo.app.stand import find_target
from evo.app.swarm.agents import AgentSettings, worker
from evo.archive import Archive, RunRecord
from evo.archive.exchanges import exchanges, journal
from evo.archive.proposals import load_proposals
from evo.engine.budget import Budget
from evo.engine.problem import Problem
from evo.engine.replaying import Replay, Replayed
from evo.engine.search import GIVEN, Search
from evo.errors import RunError, UsageError
from evo.genome import Genome
from evo.mutators.agents.desk import RecordedDesk
from evo.mutators.agents.providers.spec import parse_llm
from evo.mutators.agents.swarm import Swarm
from evo.plugins.manager import Plugins
from evo.records import DeviceFacts, Purpose

if TYPE_CHECKING:
    from evo.app.running import Settings

_FACTS = text("SELECT facts_json FROM device WHERE id = :id")
_BEFORE = text(
    "SELECT e.candidate, e.status FROM evaluation e JOIN board b ON b.id = e.board WHERE b.operator = :operator"
    " AND b.target = :target AND b.evaluator = :evaluator AND e.filed_s < :start AND e.run <> :run"
    " ORDER BY e.status <> 'evaluator_error', e.filed_s, e.id"
)


def replay_run(settings: Settings) -> Replayed:
    """Raises `UsageError` for a run that has no journal or is of another operator, `UnknownNameError` for none."""
    if len(settings.agents.llm) > 1:
        raise UsageError("replay:RUN stands alone", fix="name no other --llm beside it")
    name = parse_llm(settings.agents.llm[0]).model
    with Archive.open(settings.archive, create=False, readonly=True) as archive:
        record = archive.run(name)
        if record.operator != settings.operator:
            raise UsageError(f"run {record.id} evolved {record.operator!r}", fix=f"say --operator {record.operator}")
        events = journal(archive, record.id)
        if not events:
            raise UsageError(f"run {record.id} had no agents: it kept no journal", fix="see: evo archive runs")
        return asyncio.run(_Past(archive, record, events).replayed())


class _Past:
    """What the archive holds of the run, and the search as it was at its start."""

    def __init__(self, archive: Archive, record: RunRecord, events: Sequence[str]) -> None:
        self.archive, self.record, self.events = archive, record, events
        with archive.reading() as connection:
            self.proposals = [view.proposal for view in load_proposals(connection, "run", record.id)]
        self.desk = RecordedDesk({(e.job, e.step): e for e in exchanges(archive, record.id)})

    async def replayed(self) -> Replayed:
        verdicts = [e for e in self.archive.evaluations(self.record.id) if e.purpose is Purpose.SEARCH]
        way = Replay(self._search(), self.events, self.proposals, verdicts)
        await way.go()
        other = tuple(self.desk.differing)
        recorded, made = way.hashes()
        return Replayed(
            self.record.id, len(way.made), way.told, self.desk.same + len(other), self.desk.same, other,
            tuple(self.desk.missing), recorded, made, way.parted,
        )  # fmt: skip

    def _search(self) -> Search:
        plugins, record = Plugins.load(), self.record
        operator, target = plugins.operator(record.operator), find_target(plugins, record.target)
        cases = tuple(case for case in operator.cases(target.name) if case.name in record.cases)
        problem = Problem(operator, target.name, cases, self._facts())
        genomes = [Genome.read(path) for path in operator.seeds(target.name)]
        seeds = [genome for genome in genomes if not genome.arch or target.arch in genome.arch]
        settings = AgentSettings.read(record.command)
        swarm = Swarm(
            worker(self.desk, settings, settings.options(), problem, target.arch),
            {spec.name: spec.weight for spec in map(parse_llm, settings.llm)},
            recall=lambda job, _: self.desk.memory(job), hold=True,
        )  # fmt: skip
        given = [p.candidate for p in self.proposals if p.author.kind in GIVEN and p.author.kind != "seed"]
        return Search(
            problem, record.id, seeds, [registered.item for registered in plugins.mutators()], seed=record.seed,
            elites=given, known={} if "--fresh" in shlex.split(record.command) else self._known(),
            evaluations=Budget.parse(record.budget).evaluations, swarm=swarm,
        )  # fmt: skip

    def _facts(self) -> DeviceFacts:
        name = next((event[1:] for event in self.events if event.startswith("d")), "")
        with self.archive.reading() as connection:
            found = connection.execute(_FACTS, {"id": name}).scalar()
        if found is None:
            raise RunError(f"the archive lacks the device of run {self.record.id}", fix="replay it where it ran")
        return codec.loads(DeviceFacts, found)

    def _known(self) -> dict[str, str]:
        record = self.record
        row = {
            "operator": record.operator, "target": record.target, "evaluator": record.evaluator,
            "start": record.started_s, "run": record.id,
        }  # fmt: skip
        with self.archive.reading() as connection:
            return {candidate: status for candidate, status in connection.execute(_BEFORE, row)}

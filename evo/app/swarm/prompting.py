"""`evo prompt CANDIDATE`: exactly what a writer would be sent for a candidate of the archive."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sqlalchemy import text

from evo import codec
from evo.app.memory.recalling import Memories
from evo.app.stand import find_target, select_cases
from evo.app.swarm.agents import AgentSettings, worker
from evo.archive import Archive, show
from evo.engine.population import Member
from evo.engine.problem import Problem
from evo.errors import UsageError
from evo.exchange import Request
from evo.genome import Genome
from evo.mutators.agents.desk import RecordedDesk
from evo.mutators.agents.swarm import Swarm
from evo.mutators.base import Parent
from evo.plugins.manager import Plugins
from evo.records import Candidate, DeviceFacts, Evaluation, Purpose

_FACTS = text(
    "SELECT facts_json FROM device WHERE target = :target AND device = :device ORDER BY first_seen_s DESC LIMIT 1"
)
ELITES = 8


def prompt(archive: str, candidate: str, folder: str = "", *, profiled: bool = False) -> Request:
    """`candidate` is an id or a unique beginning of one; `folder` holds templates that go before evo's own. With
    `profiled` Nsight Compute runs on it first, and its counters are part of what a model is told.

    Raises `UnknownNameError` and `UsageError`.
    """
    with Archive.open(archive, create=False, readonly=True) as store:
        found = show(store, candidate)
        if found.candidate is None:
            raise UsageError(f"{candidate} is a {found.kind}", fix="name a candidate: evo archive top")
        evaluations = [e for e in found.evaluations if e.purpose is Purpose.SEARCH] or list(found.evaluations)
        problem, arch = _problem(store, found.candidate, evaluations)
        settings = AgentSettings(prompts=folder)
        swarm = Swarm(worker(RecordedDesk({}), settings, settings.options(), problem, arch), {"": 1.0})
        for evaluation in evaluations:
            swarm.knowledge.remember(evaluation)
        if profiled:
            swarm.knowledge.counters[found.candidate.id] = _counters(archive, found.candidate.id)
        parent = _parent(found.candidate, evaluations)
        elites = store.elites(problem.operator.name, problem.target, limit=ELITES)
        others = [Parent(e.candidate.id, _genome(e.candidate), e.candidate.values, _logs(e.ratios)) for e in elites]
        memory = Memories(store, problem, "").recall(0, parent.genome.species)
        return swarm.prompt(parent, others, memory)


def _counters(archive: str, candidate: str) -> str:
    from evo.app.swarm.profiling import counters  # brings the CUDA bindings, which no other prompt needs

    found = counters(candidate, archive=archive)
    if found.missing:
        raise UsageError(f"there are no counters of {candidate[:8]}: {found.missing}", fix="leave out --profile")
    return found.text()


def _problem(store: Archive, candidate: Candidate, evaluations: list[Evaluation]) -> tuple[Problem, str]:
    plugins = Plugins.load()
    operator, target = plugins.operator(candidate.operator), find_target(plugins, candidate.target)
    cases = tuple(case for case in select_cases(operator, target.name, ()) if case.group != "check")
    facts = target.nominal()
    if evaluations:
        with store.reading() as connection:
            row = connection.execute(_FACTS, {"target": target.name, "device": evaluations[-1].device}).scalar()
            facts = codec.loads(DeviceFacts, row) if row else facts
    return Problem(operator, target.name, cases, facts), target.arch


def _parent(candidate: Candidate, evaluations: list[Evaluation]) -> Parent:
    genome = _genome(candidate)
    scores = Member.of(candidate, genome, evaluations[-1]).scores if evaluations else {}
    return Parent(candidate.id, genome, candidate.values, scores)


def _genome(candidate: Candidate) -> Genome:
    return Genome.parse(candidate.source, candidate.suffix)


def _logs(ratios: Mapping[str, float]) -> dict[str, float]:
    return {case: math.log(ratio) for case, ratio in ratios.items() if ratio > 0}

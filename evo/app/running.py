"""`evo run` and `evo resume`: wires a stand, a search and an archive, and lets the engine turn."""

from __future__ import annotations

import asyncio
import random
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

from evo import ids
from evo.app.buying import bought, pace
from evo.app.control import refuse_resuming
from evo.app.memory.hypotheses import weigh_told
from evo.app.memory.remembering import Memory, learned, remembered
from evo.app.provenance import versions, yardstick_hash
from evo.app.resumable import named, resumable
from evo.app.stand import Stand, choose_target, select_cases, stand
from evo.app.swarm.agents import Agents, AgentSettings, arm_summaries, check_agents, forecast, open_agents
from evo.app.swarm.rulings import hold_finalists
from evo.app.trust.holdout import run_holdout
from evo.app.trust.operator_doctor import refuse_weak_gate
from evo.app.winners import write_holdout, write_winners
from evo.archive import Archive, RunRecord, messages
from evo.engine.budget import Budget, Meter
from evo.engine.finals import Finals, run_finals, summarise
from evo.engine.loop import evolve, interruptible, progress
from evo.engine.problem import Problem
from evo.engine.result import Progress, Result
from evo.engine.search import Search
from evo.errors import UsageError
from evo.fitness.calibration import Calibration
from evo.fitness.evaluator import Evaluator
from evo.fitness.protocols import offered
from evo.mutators.agents.collector import rare_collections
from evo.plugins.manager import Plugins
from evo.wording import count

MOVED = "evaluator, operator or device changed since this run began: what it found before is ranked apart"
Observe = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may say about a run."""

    operator: str
    target: str = "auto"
    budget: str = "minutes=1"
    cases: tuple[str, ...] = ()
    seed: int | None = None
    fresh: bool = False
    archive: str = "evo.db"
    protocol: str = ""  # "": the target's default
    holdout: bool = False  # check and time the winners on the hold-out cases too
    agents: AgentSettings = AgentSettings()

    def command(self) -> str:
        words = ["evo", "run", "--operator", self.operator, "--target", self.target, "--budget", self.budget]
        words += [word for pattern in self.cases for word in ("--cases", pattern)]
        words += ["--fresh"] if self.fresh else []
        words += ["--protocol", self.protocol] if self.protocol else []
        words += ["--holdout"] if self.holdout else []
        words += self.agents.words()
        return shlex.join(words)


def run(settings: Settings, observe: Observe) -> Result:
    """A new run. Raises `UsageError`, `ArchiveError` or `RunError`; a candidate's fault is a row, never an error."""
    budget = Budget.parse(settings.budget)
    plugins = Plugins.load()
    operator = plugins.operator(settings.operator)  # what is refused should not leave an archive behind
    target, _, _ = choose_target(plugins, settings.target)
    offered(settings.protocol, target.protocols, f"target {target.name!r}")
    check_agents(settings.agents)
    refuse_weak_gate(operator, select_cases(operator, target.name, settings.cases))
    with (
        Archive.open(settings.archive) as archive,
        stand(plugins, settings.operator, settings.target, settings.cases, settings.protocol) as here,
    ):
        if not here.timed:
            raise UsageError(
                f"--cases {' '.join(settings.cases)} names only small check cases, of which none is timed",
                fix="name a case that is: `evo run` without --cases lists them in its table",
            )
        seed = settings.seed if settings.seed is not None else random.SystemRandom().getrandbits(48)
        record = RunRecord(
            id=ids.new_id(), operator=here.operator.name, target=here.target.name, device=here.facts.id,
            command=settings.command(), seed=seed, budget=str(budget), cases=here.timed, yardstick="",
            evaluator=yardstick_hash(here.operator, here.facts), started_s=time.time(), ended_s=None, state="running",
            versions=versions(here.facts),
        )  # fmt: skip
        with archive.claim(record.id):
            archive.record_device(here.facts)
            archive.start_run(record)
            with resumable(archive, record.id):
                search, agents = _search(plugins, here, record, archive, budget, {})
                return _turn(archive, here, record, search, agents, Meter(budget), observe)


def resume(run: str, archive: str, observe: Observe) -> Result:
    """Goes on with a stopped or killed run, by id or unique prefix; what was filed is not evaluated again."""
    plugins = Plugins.load()
    with Archive.open(archive, create=False) as store, store.claim(store.run(run).id):
        record = store.run(run)
        refuse_resuming(record)
        if record.state == "done":
            raise UsageError(f"run {record.id} has ended", fix=f"a new run starts from what it found: {record.command}")
        with (
            stand(plugins, record.operator, record.target, record.cases, _protocol(record)) as here,
            resumable(store, record.id),
        ):
            now = yardstick_hash(here.operator, here.facts)
            if now != record.evaluator:  # later rows are filed under what judges them
                record, here = replace(record, evaluator=now), replace(here, note=MOVED)
                store.update_run(record.id, evaluator=now)
            budget = Budget.parse(record.budget)
            state = store.load_state(record.id) or {}
            search, agents = _search(plugins, here, record, store, budget, state.get("meter") or {})
            if state.get("search"):
                proposals = [proposal for proposal, _ in store.open_proposals(record.id)]
                search.restore(state["search"], store.evaluations(record.id), proposals, store.candidate)
            store.update_run(record.id, state="running", ended_s=None)
            with store.writing() as connection:
                messages.say(connection, record.id, "resume")  # what asked it to stop before is done with
            meter = Meter(budget, spent=state.get("meter"))
            return _turn(store, here, record, search, agents, meter, observe)


def _protocol(record: RunRecord) -> str:
    words = shlex.split(record.command)
    return words[words.index("--protocol") + 1] if "--protocol" in words else ""


def _search(
    plugins: Plugins, here: Stand, record: RunRecord, archive: Archive, budget: Budget, spent: Mapping[str, float]
) -> tuple[Search, Agents | None]:
    problem = Problem(here.operator, here.target.name, tuple(c for c in here.cases if c.group != "check"), here.facts)
    fresh = "--fresh" in shlex.split(record.command)
    memory = Memory() if fresh else remembered(archive, problem, here.seeds(), record.evaluator, budget.evaluations)
    mutators = [registered.item for registered in plugins.mutators()]
    settings = AgentSettings.read(record.command)
    agents = open_agents(settings, problem, here.target.arch, archive, record.id, budget, spent)
    search = Search(
        problem, record.id, here.seeds(), mutators, seed=record.seed, elites=memory.candidates, known=memory.known,
        evaluations=budget.evaluations, pitfalls=memory.pitfalls, swarm=agents.swarm if agents else None,
    )  # fmt: skip
    return search, agents


def _turn(
    archive: Archive, here: Stand, record: RunRecord, search: Search, agents: Agents | None, meter: Meter,
    observe: Observe,
) -> Result:  # fmt: skip
    """Calibrates, evolves, measures the finalists again, and writes the winners; only then is the run done."""
    say = _sayer(search, meter, observe)
    say(here.note)
    here.executor.run = record.id
    calibration = here.calibrate(say)
    yardstick = ", ".join(sorted(set(calibration.yardsticks.values())))
    opponents = {report.name: report.version for report in calibration.reports if report.version}
    archive.update_run(record.id, yardstick=yardstick, versions={**record.versions, **opponents})
    evaluator = Evaluator(
        here.executor, here.operator, here.target, here.cases, calibration.yardsticks, run=record.id,
        protocol=here.protocol,
    )  # fmt: skip
    say(bought(meter.budget, pace(archive, record)))
    if agents:
        say(forecast(agents, here.seeds(), meter.budget))
        search.journal.append(f"d{archive.record_device(here.facts)}")
    finals = asyncio.run(_evolve(search, evaluator, archive, meter, observe, agents))
    weigh_told(archive, record.id)
    lessons = learned(archive, here.operator, here.target.name, search.pitfalls)
    notes = [note for note in (here.note, *_failures(calibration), *lessons, *_told(agents)) if note]
    result = summarise(
        search, finals, meter, device=here.facts.name, yardstick=yardstick, winner="", archive=str(archive.place),
        notes=notes,
    )  # fmt: skip
    result = replace(result, arms=arm_summaries(search, archive))
    candidates = {case.candidate: archive.candidate(case.candidate) for case in result.cases if case.candidate}
    folder = archive.folder / "evo-winners" / record.id
    if "--holdout" in shlex.split(record.command) and not meter.stopped:
        rows, more = run_holdout(here, candidates, say)
        result = replace(result, holdout=rows, notes=(*result.notes, *more))
    try:
        written = write_winners(folder, result, candidates)
        write_holdout(folder, result)
    except OSError as error:  # the result stands, and the archive has the sources
        archive.finish_run(record.id, "stopped")
        again = f"`evo resume {record.id}{named(archive)}` will"
        note = f"the winners could not be written to {folder}: {error.strerror or error}; {again}"
        return replace(result, notes=(*result.notes, note))
    archive.finish_run(record.id, "stopped" if meter.stopped else "done")
    return replace(result, winner=str(written) if written else "")


async def _evolve(
    search: Search, evaluator: Evaluator, archive: Archive, meter: Meter, observe: Observe, agents: Agents | None
) -> Finals:
    try:
        with interruptible(meter), rare_collections() if agents else nullcontext():
            await evolve(search, evaluator, archive, meter, observe)
            if agents and agents.approve_finalists and not meter.stopped and (why := hold_finalists(search, archive)):
                meter.stop(why)
            if meter.stopped:  # whoever pressed Ctrl-C waits for the table, not for measurements
                return Finals()
            return await run_finals(search, evaluator, archive, meter, observe)
    finally:
        if agents:
            await agents.close()


def _told(agents: Agents | None) -> list[str]:
    return agents.swarm.notes if agents else []


def _sayer(search: Search, meter: Meter, observe: Observe) -> Callable[[str], None]:
    def say(message: str) -> None:
        observe(replace(progress(search, meter, 0), message=message))

    return say


def _failures(calibration: Calibration) -> list[str]:
    """Baselines that failed somewhere are named, never left out silently."""
    notes = []
    for report in calibration.reports:
        if report.failures:
            case, reason = next(iter(report.failures.items()))
            notes.append(
                f"baseline {report.name} failed on {count(len(report.failures), 'case')}, e.g. {case}: {reason}"
            )
    return notes

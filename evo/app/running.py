"""`evo run` and `evo resume`: wires a stand, a search and an archive, and lets the engine turn."""

from __future__ import annotations

import asyncio
import random
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from evo import ids
from evo.app.provenance import evaluator_hash, versions
from evo.app.stand import Stand, stand
from evo.app.winners import write_winners
from evo.archive import Archive, RunRecord
from evo.engine.budget import Budget, Meter
from evo.engine.finals import Finals, run_finals, summarise
from evo.engine.loop import evolve, interruptible, progress
from evo.engine.problem import Problem
from evo.engine.result import Progress, Result
from evo.engine.search import Search
from evo.errors import UsageError
from evo.fitness.calibration import Calibration
from evo.fitness.evaluator import Evaluator
from evo.plugins.manager import Plugins

ELITES = 24  # of earlier runs that a new run looks at again
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

    def command(self) -> str:
        words = ["evo", "run", "--operator", self.operator, "--target", self.target, "--budget", self.budget]
        words += [word for pattern in self.cases for word in ("--cases", pattern)]
        words += ["--fresh"] if self.fresh else []
        return shlex.join(words)


def run(settings: Settings, observe: Observe) -> Result:
    """A new run. Raises `UsageError`, `ArchiveError` or `RunError`; a candidate's fault is a row, never an error."""
    budget = Budget.parse(settings.budget)
    plugins = Plugins.load()
    plugins.operator(settings.operator)  # a wrong name should not leave an archive behind
    with (
        Archive.open(settings.archive) as archive,
        stand(plugins, settings.operator, settings.target, settings.cases) as here,
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
            evaluator=evaluator_hash(here.operator, here.facts), started_s=time.time(), ended_s=None, state="running",
            versions=versions(here.facts),
        )  # fmt: skip
        archive.record_device(here.facts)
        archive.start_run(record)
        search = _search(plugins, here, record, archive, budget, fresh=settings.fresh)
        return _turn(archive, here, record, search, Meter(budget), observe)


def resume(run: str, archive: str, observe: Observe) -> Result:
    """Goes on with a stopped or killed run, by id or unique prefix; what was filed is not evaluated again."""
    plugins = Plugins.load()
    with Archive.open(archive, create=False) as store:
        record = store.run(run)
        if record.state == "done":
            raise UsageError(f"run {record.id} has ended", fix=f"a new run starts from what it found: {record.command}")
        with stand(plugins, record.operator, record.target, record.cases) as here:
            budget = Budget.parse(record.budget)
            state = store.load_state(record.id) or {}
            fresh = "--fresh" in shlex.split(record.command)
            search = _search(plugins, here, record, store, budget, fresh=fresh)
            if state.get("search"):
                proposals = [proposal for proposal, _ in store.open_proposals(record.id)]
                search.restore(state["search"], store.evaluations(record.id), proposals, store.candidate)
            store.update_run(record.id, state="running", ended_s=None)
            meter = Meter(budget, spent=state.get("meter"))
            return _turn(store, here, record, search, meter, observe)


def _search(
    plugins: Plugins, here: Stand, record: RunRecord, archive: Archive, budget: Budget, *, fresh: bool
) -> Search:
    problem = Problem(here.operator, here.target.name, tuple(c for c in here.cases if c.group != "check"), here.facts)
    elites, known = [], {}
    if not fresh:
        elites = [e.candidate for e in archive.elites(here.operator.name, here.target.name, limit=ELITES)]
        known = archive.known(here.operator.name, here.target.name, record.evaluator)
    mutators = [registered.item for registered in plugins.mutators()]
    return Search(
        problem, record.id, here.seeds(), mutators, seed=record.seed, elites=elites, known=known,
        evaluations=budget.evaluations,
    )  # fmt: skip


def _turn(archive: Archive, here: Stand, record: RunRecord, search: Search, meter: Meter, observe: Observe) -> Result:
    """Calibrates, evolves, measures the finalists again, and writes the winners."""
    try:
        say = _sayer(search, meter, observe)
        say(here.note)
        calibration = here.calibrate(say)
        yardstick = ", ".join(sorted(set(calibration.yardsticks.values())))
        archive.update_run(record.id, yardstick=yardstick)
        evaluator = Evaluator(
            here.executor, here.operator, here.target, here.cases, calibration.yardsticks, run=record.id
        )
        finals = asyncio.run(_evolve(search, evaluator, archive, meter, observe))
    except KeyboardInterrupt:
        archive.finish_run(record.id, "stopped")
        raise KeyboardInterrupt(f"`evo resume {record.id}` goes on with it") from None
    except BaseException:
        archive.finish_run(record.id, "failed")  # `evo resume` may still go on with it
        raise
    archive.finish_run(record.id, "stopped" if meter.stopped else "done")
    notes = [note for note in (here.note, *_failures(calibration)) if note]
    result = summarise(
        search, finals, meter, device=here.facts.name, yardstick=yardstick, winner="", archive=str(archive.path),
        notes=notes,
    )  # fmt: skip
    candidates = {case.candidate: archive.candidate(case.candidate) for case in result.cases if case.candidate}
    folder = Path(archive.path).parent / "evo-winners" / record.id
    try:
        written = write_winners(folder, result, candidates)
    except OSError as error:  # the result stands, and the archive has the sources
        note = f"the winners could not be written to {folder}: {error.strerror or error}"
        return replace(result, notes=(*result.notes, note))
    return replace(result, winner=str(written) if written else "")


async def _evolve(search: Search, evaluator: Evaluator, archive: Archive, meter: Meter, observe: Observe) -> Finals:
    with interruptible(meter):
        await evolve(search, evaluator, archive, meter, observe)
        if meter.stopped:  # whoever pressed Ctrl-C waits for the table, not for measurements
            return Finals()
        return await run_finals(search, evaluator, archive, meter, observe)


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
            notes.append(f"baseline {report.name} failed on {len(report.failures)} cases, e.g. {case}: {reason}")
    return notes

"""`evo evaluate --pending`: judges what was told and nobody evaluates, on this machine's device.

Each proposal is leased while it is in work, so that several machines or processes may share an archive; a lease that
runs out (a killed process) sets its proposal free again. A verdict is filed only while its lease is held: once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from evo import ids
from evo.app.memory.hypotheses import weigh_notes
from evo.app.provenance import versions, yardstick_hash
from evo.app.stand import Stand, find_target, stand
from evo.app.swarm.asked import SCHEMA, Answer, case_views
from evo.app.telling import Say
from evo.archive import Archive, ProposalView, RunRecord
from evo.archive.messages import holds, starved, take
from evo.archive.proposals import load_proposals
from evo.engine.evaluator import Evaluator as Judge
from evo.engine.retries import Retries
from evo.fitness.evaluator import Evaluator
from evo.plugins.manager import Plugins
from evo.records import BLAMELESS, Proposal, State, Status, Verdict
from evo.report import notation

COMMAND = "evo evaluate --pending"
LEASE_S = 900.0  # far beyond what one candidate takes
TURN_S = 0.5


@dataclass(frozen=True, slots=True)
class Batch:
    """What was told for one operator, target and set of cases, oldest first."""

    operator: str
    target: str
    cases: tuple[str, ...]
    proposals: tuple[str, ...]


@dataclass(slots=True)
class Judged:
    """What came of it: answers in the order of filing, and what had to be left, with the reason."""

    answers: list[Answer] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def evaluate_pending(archive: str, *, target: str = "", protocol: str = "", say: Say = lambda message: None) -> Judged:
    """Evaluates all that waits and that this machine can run; `target` limits it to one target.

    Raises `ArchiveError` and, when evo itself fails again and again, `RunError`; a candidate's fault is a row.
    """
    plugins, judged = Plugins.load(), Judged()
    only = find_target(plugins, target).name if target else ""
    with Archive.open(archive, create=False) as store:
        for batch in _batches(store):
            count = f"{len(batch.proposals)} of {batch.operator} for {batch.target}"
            if only and batch.target != only:
                judged.left.append(f"{count}: another target than {only}")
                continue
            if not plugins.target(batch.target).devices():
                judged.left.append(f"{count}: there is no such device on this machine")
                continue
            with stand(plugins, batch.operator, batch.target, batch.cases, protocol) as here:
                _judge(store, here, batch, judged, say)
    return judged


def _batches(store: Archive) -> list[Batch]:
    """What waits and is not for a run that is going on: that one takes it up itself."""
    with store.reading() as connection:
        views = [view for name in starved(connection) for view in load_proposals(connection, "id", name)]
    found: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    live: dict[str, bool] = {}
    for view in views:
        run = view.proposal.run
        if run not in live:
            live[run] = store.is_claimed(run)
        if not live[run]:
            record = store.run(run)
            found.setdefault((record.operator, record.target, record.cases), []).append(view.proposal.id)
    return [Batch(*key, tuple(names)) for key, names in found.items()]


def _judge(store: Archive, here: Stand, batch: Batch, judged: Judged, say: Say) -> None:
    """One batch, as a run of its own: what it files ranks under the evaluator that measured it."""
    evaluator_name = yardstick_hash(here.operator, here.facts)
    record = RunRecord(
        id=ids.new_id(), operator=here.operator.name, target=here.target.name, device=here.facts.id, seed=0, budget="",
        command=COMMAND, cases=here.timed, yardstick="", evaluator=evaluator_name, started_s=time.time(),
        versions=versions(here.facts),
    )  # fmt: skip
    store.record_device(here.facts)
    store.start_run(record)
    with store.claim(record.id):
        try:
            here.executor.run = record.id
            calibration = here.calibrate(say)
            yardstick = ", ".join(sorted(set(calibration.yardsticks.values())))
            store.update_run(record.id, yardstick=yardstick)
            evaluator = Evaluator(
                here.executor, here.operator, here.target, here.cases, calibration.yardsticks, run=record.id,
                protocol=here.protocol, known=judged_machines(store, record),
            )  # fmt: skip
            filed: list[Verdict] = []
            judged.answers += asyncio.run(drain(store, evaluator, record, batch.proposals, say, filed))
            if count := weigh_notes(store, filed):
                tested = notation.count(count, "hypothesis", "hypotheses")
                say(f"{tested} tested; see: evo lessons")
        except BaseException:
            store.finish_run(record.id, "stopped")
            raise
        store.finish_run(record.id, "done")


def judged_machines(store: Archive, record: RunRecord) -> dict[str, tuple[str, Status]]:
    """What earlier runs under the same evaluator have judged: by machine set a candidate and its status."""
    found = store.known(record.operator, record.target, record.evaluator)
    machines = store.machine_ids(record.operator, record.target, record.evaluator)
    statuses = ((machine, name, Status(found[name])) for machine, name in machines.items() if name in found)
    return {machine: (name, status) for machine, name, status in statuses if status not in BLAMELESS}


async def drain(
    store: Archive, evaluator: Judge, record: RunRecord, proposals: Sequence[str], say: Say,
    filed: list[Verdict] | None = None,
) -> list[Answer]:  # fmt: skip
    """Leases, evaluates and files the proposals, as many at a time as keep the evaluator busy. What is not finished
    when this ends in an error is given back. `filed` gets the verdicts whose answers are returned."""
    waiting, leases, retries = list(proposals), dict[str, float](), Retries()
    answers: list[Answer] = []
    try:
        while waiting or evaluator.in_flight():
            while waiting and evaluator.room() > 0:
                if proposal := _take(store, waiting.pop(0), leases):
                    evaluator.start(proposal, {})
            verdicts, again = retries.sort(await evaluator.finished(TURN_S))
            for proposal in again:
                evaluator.start(proposal, {})
            for verdict in verdicts:
                answer = _file(store, record, verdict, leases.pop(verdict.proposal.id))
                if answer:
                    answers.append(answer)
                    if filed is not None:
                        filed.append(verdict)
                    said = f"equals {answer.of[:12]}" if answer.of else str(answer.status)
                    say(f"{answer.candidate[:12]}: {said}")
    finally:
        evaluator.cancel()
        _give_back(store, leases)
    return answers


def _take(store: Archive, proposal: str, leases: dict[str, float]) -> Proposal | None:
    """Leases a proposal; None when somebody else has it by now."""
    until = time.time() + LEASE_S
    with store.writing() as connection:
        if not take(connection, proposal, until):
            return None
        view: ProposalView = load_proposals(connection, "id", proposal)[0]
    leases[proposal] = until
    return view.proposal


def _file(store: Archive, record: RunRecord, verdict: Verdict, until_s: float) -> Answer | None:
    """Files a verdict while its lease is held; None when another process has taken the proposal over."""
    evaluation = replace(verdict.evaluation, run=record.id)
    with store.batch(), store.writing() as connection:
        if not holds(connection, verdict.proposal.id, until_s):
            return None
        store.file(evaluation, verdict.proposal.id, verdict.state)
    duplicate = evaluation.duplicate_of if verdict.state is State.DUPLICATE else ""
    return Answer(
        SCHEMA, evaluation.candidate, verdict.state, Status(evaluation.status), evaluation.diagnosis,
        case_views([evaluation], record.cases), duplicate,
    )  # fmt: skip


def _give_back(store: Archive, leases: dict[str, float]) -> None:
    for proposal, until in leases.items():
        with store.batch(), store.writing() as connection:
            if holds(connection, proposal, until):
                store.set_state(proposal, State.PENDING)

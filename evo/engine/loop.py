"""The evolution loop: asynchronous, steady-state."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evo.archive import niches
from evo.archive.exchanges import keep_turn
from evo.engine.budget import Meter
from evo.engine.evaluator import Evaluator
from evo.engine.niche import niche
from evo.engine.outside import Outside
from evo.engine.result import Phase, Progress
from evo.engine.retries import Retries
from evo.engine.search import Search
from evo.records import Proposal, Stage, State, Status, Verdict

if TYPE_CHECKING:
    from evo.archive import Archive

TURN_S = 0.25  # longest wait before the budget and the stop flag are looked at again
SECOND_S = 1.0  # a SIGTERM sooner after another is the same: `timeout` sends one to the process and one to its group
Observe = Callable[[Progress], None]


async def evolve(search: Search, evaluator: Evaluator, archive: Archive, meter: Meter, observe: Observe) -> None:
    """Searches until the budget is spent, somebody stops it, or nothing new is left.

    Every turn is one transaction: what came in, what goes out, and the state that led to it. So a run that is killed
    at any point goes on from its last turn. Proposals still in flight stay pending when the run was stopped.
    """
    waiting = deque(search.open())  # in flight when the run was killed
    retries, verdicts, outside = Retries(), list[Verdict](), Outside(archive, search, meter)
    try:
        while True:
            waiting.extend(outside.heed())
            room = min(evaluator.room(), meter.room(evaluator.in_flight() + len(waiting))) - len(waiting)
            asked = [] if meter.exhausted() else await _ask(search, room)
            await _record(archive, search, meter, verdicts, asked)
            waiting.extend(asked)
            while waiting and evaluator.room() > 0 and not meter.exhausted():
                evaluator.start(waiting.popleft(), search.portfolio.rivals())
            observe(progress(search, meter, evaluator.in_flight()))
            if meter.exhausted() or not (waiting or evaluator.in_flight() or search.busy):
                break
            verdicts, again = retries.sort(await _next(search, evaluator))
            waiting.extend(again)
            for verdict in verdicts:
                _learn(search, meter, verdict)
    finally:
        evaluator.cancel()
        if search.swarm:
            await search.swarm.close()
            await _record(archive, search, meter, [], [])
    if not meter.stopped:
        _close(archive, search)


async def _next(search: Search, evaluator: Evaluator) -> list[Verdict]:
    """Verdicts, or none after a while; where only models are at work, what they answer comes with the next ask."""
    if search.swarm is None or evaluator.in_flight():
        return await evaluator.finished(TURN_S)
    await search.swarm.wait(TURN_S)
    return []


async def _ask(search: Search, room: float) -> list[Proposal]:
    asked: list[Proposal] = []
    while len(asked) < room and (proposal := await search.ask()):
        asked.append(proposal)
    return asked


def _learn(search: Search, meter: Meter, verdict: Verdict) -> None:
    seconds = verdict.evaluation.seconds
    meter.charge(
        evaluations=int(verdict.state is not State.DUPLICATE),
        device_s=seconds.get(Stage.CHECK, 0.0) + seconds.get(Stage.TIME, 0.0),
        improved=search.tell(verdict),
    )


async def _record(
    archive: Archive, search: Search, meter: Meter, verdicts: Sequence[Verdict], asked: Sequence[Proposal]
) -> None:
    """Files a turn, in a thread: what models answer is read meanwhile, and nothing else goes on."""
    exchanges = search.exchanges()
    if not (verdicts or asked or exchanges):
        return
    for exchange in exchanges:
        meter.charge(tokens=exchange.reply.usage.total, usd=exchange.charged_usd)
    journal, search.journal = search.journal, []
    outcomes, state = search.outcomes(), {"search": search.state(), "meter": meter.state()}

    def write() -> None:
        with archive.batch():
            for verdict in verdicts:
                _file(archive, search, verdict)
            for proposal in asked:
                archive.propose(proposal, State.PENDING)
            keep_turn(archive, search.run, journal, exchanges, outcomes)
            archive.save_state(search.run, state)

    await asyncio.to_thread(write)


def _file(archive: Archive, search: Search, verdict: Verdict) -> None:
    archive.file(verdict.evaluation, verdict.proposal.id, verdict.state)
    if verdict.evaluation.status is Status.OK:
        name = niche(search.problem.operator, verdict.proposal.candidate, verdict.evaluation.builds)
        with archive.writing() as connection:
            niches.keep(connection, verdict.evaluation.id, name)


def _close(archive: Archive, search: Search) -> None:
    """The run is over: what is still in flight will not be measured."""
    with archive.batch():
        for proposal in search.open():
            archive.set_state(proposal.id, State.CANCELLED)


def progress(search: Search, meter: Meter, in_flight: int, phase: Phase | None = None) -> Progress:
    """A snapshot of the run."""
    return Progress(
        search.run, phase or search.phase, search.evaluated, search.duplicates, in_flight, dict(search.rejected),
        search.portfolio.best(), meter.seconds, meter.left(), meter.fraction(), meter.stopped or search.message,
    )  # fmt: skip


@contextmanager
def interruptible(meter: Meter) -> Iterator[None]:
    """In the body the first Ctrl-C or SIGTERM stops the run cleanly; the second one does as before the body.

    To be entered on the event loop of the main thread.
    """
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)

    def as_before(number: signal.Signals) -> None:
        if loop.remove_signal_handler(number) and number is signal.SIGTERM and before is not None:
            signal.signal(number, before)  # the loop leaves the system's own, which kills

    def stop() -> None:
        meter.stop()
        as_before(signal.SIGINT)
        loop.call_later(SECOND_S, as_before, signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            as_before(number)

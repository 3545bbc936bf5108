"""One life of an `evo` process under faults: the real command line in a forked child, with what it announces on file.

A simulated life has everything real but the evaluator: no worker processes, verdicts within milliseconds.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from evo import app, cli
from evo.app import running
from evo.app.stand import Stand
from evo.archive import Archive
from evo.cli import root as _root  # noqa: F401  # before the fork: what a child then imports is imported once
from evo.engine.result import Progress, Result
from evo.engine.simulated import SIMULATED, SimulatedEvaluator
from evo.fitness.calibration import Calibration
from evo.records import Candidate, Diagnosis, Proposal, Stage, State, Status, Verdict

HANG_S = {True: 25.0, False: 290.0}
BUSY_S = 0.3  # of simulated lives; real ones wait as long as users do


class Simulated(SimulatedEvaluator):
    """Verdicts in any order after milliseconds, some of them duplicates, some of them evo's own faults at first."""

    def __init__(
        self, executor: Any, operator: Any, target: Any, cases: Any, yardsticks: Any, *, run: str, **others: Any
    ) -> None:
        names = [case.name for case in cases if case.group != "check"]
        super().__init__(names, _ratio, run=run)
        self._rng = random.Random()
        self._failed: set[str] = set()

    async def finished(self, timeout_s: float) -> list[Verdict]:
        await asyncio.sleep(self._rng.uniform(0.0, 0.01))
        ready = [proposal for proposal in self._flight if self._rng.random() < 0.6]
        for proposal in ready:
            self._flight.remove(proposal)
        return [self.verdict(proposal) for proposal in ready]

    def verdict(self, proposal: Proposal) -> Verdict:
        self.judged.append(proposal.candidate.id)
        found = super().verdict(proposal)
        if proposal.id not in self._failed and self._rng.random() < 0.1:
            self._failed.add(proposal.id)
            fault = Diagnosis(Stage.BUILD, "simulated fault of evo")
            return Verdict(
                proposal, replace(found.evaluation, status=Status.EVALUATOR_ERROR, cases=(), diagnosis=fault)
            )
        if len(self.judged) > 4 and self._rng.random() < 0.1:
            twin = replace(found.evaluation, cases=(), duplicate_of=self.judged[0])
            return Verdict(proposal, twin, State.DUPLICATE)
        return found


def _ratio(candidate: Candidate, case: str) -> float:
    return 0.5 + int(candidate.id[:8], 16) / 2**32


@contextmanager
def simulation() -> Iterator[None]:
    """In the body runs are simulated, and wait less long for a locked archive."""

    def calibrate(here: Stand, say: Callable[[str], None], *arguments: Any) -> Calibration:
        return Calibration(dict.fromkeys(here.timed, SIMULATED), ())

    with ExitStack() as stack:
        stack.enter_context(patch.object(running, "Evaluator", Simulated))
        stack.enter_context(patch.object(Stand, "calibrate", calibrate))
        stack.enter_context(patch.dict(Archive.open.__func__.__kwdefaults__, busy_s=BUSY_S))  # type: ignore[attr-defined]
        yield


def _tell(action: Callable[..., Result], log: int) -> Callable[..., Result]:
    """The same verb, which also writes what it announces to a file: a killed process cannot take that back."""

    def told(*arguments: Any) -> Result:
        *rest, observe = arguments

        def both(progress: Progress) -> None:
            counts = f"{progress.evaluated} {progress.duplicates} {progress.in_flight}"
            os.write(log, f"{progress.run} {counts} {os.getpid()}\n".encode())
            observe(progress)

        return action(*rest, both)

    return told


def _live(*arguments: Any) -> None:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _evo(*arguments)
    except KeyboardInterrupt:  # before evo itself has begun
        sys.exit(130)


def _evo(words: Sequence[str], folder: Path, environment: Mapping[str, str], simulated: bool) -> None:
    os.setsid()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{environment['LOGS']}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    faulthandler.dump_traceback_later(HANG_S[simulated])  # where it hangs, should it ever
    log = os.open(f"{environment['LOGS']}/announced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    app.run, app.resume = _tell(app.run, log), _tell(app.resume, log)
    sys.argv = ["evo", *words]
    with ExitStack() as stack:
        if simulated:
            stack.enter_context(simulation())
        cli.main()


def warm(folder: Path) -> None:
    """Imports all that a run needs, so that a forked child starts at once."""
    with simulation():
        app.run(app.Settings("rmsnorm", "cpu", "evaluations=3", archive=str(folder / "warm.db")), lambda progress: None)
    gc.collect()
    gc.freeze()  # else every child's first collection clears up after this run, and may swallow a Ctrl-C meanwhile


class Life:
    """A process that runs `evo WORDS` in `folder`; `logs` is a folder that no fault touches."""

    def __init__(self, words: Sequence[str], folder: Path, logs: Path, cache: Path, *, simulated: bool) -> None:
        self.words, self.folder, self.logs, self.simulated = tuple(words), folder, logs, simulated
        environment = {"LOGS": str(logs), "EVO_CACHE": str(cache), "COLUMNS": "200"}
        self._process = multiprocessing.get_context("fork").Process(
            target=_live, args=(words, folder, environment, simulated)
        )
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the child can take one
        self._process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def alive(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        if self.alive():
            os.kill(self.pid, number)

    def end(self, limit_s: float = 60.0) -> int | None:
        """The exit code; None when it did not end in time (it is then killed)."""
        self._process.join(limit_s)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
        return code

    def said(self) -> str:
        """What it wrote to its standard error."""
        return (self.logs / "err").read_text(errors="replace") if (self.logs / "err").exists() else ""

    def busy(self) -> bool:
        """Whether this very process has said that it evaluates something."""
        log = self.logs / "announced"
        lines = log.read_text().splitlines() if log.exists() else []
        return any(int(words[4]) == self.pid and int(words[3]) > 0 for words in map(str.split, lines))

    def announced(self) -> dict[str, int]:
        """By run the largest number of verdicts that this process or an earlier one with the same logs told of."""
        found: dict[str, int] = {}
        if (self.logs / "announced").exists():
            for line in (self.logs / "announced").read_text().splitlines():
                run, evaluated, duplicates, _, _ = line.split()
                found[run] = max(found.get(run, 0), int(evaluated) + int(duplicates))
        return found

"""The inside of a worker process: one task at a time, every outcome an answer."""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from evo import codec, ids
from evo.errors import EvoError
from evo.fitness import exclusive, sandbox
from evo.fitness.cache import BuildCache
from evo.fitness.exclusive import Owner, building, owner, timing
from evo.fitness.process import BUILDER_FOLDER, RUN
from evo.fitness.proof import prove
from evo.fitness.session import Session
from evo.fitness.tasks import STAGES, BuildTask, CalibrateTask, CheckTask, Outcome, Task, TimeTask
from evo.operator import Operator
from evo.records import Build, CaseResult, Diagnosis, Status
from evo.target import Rejected, Target

WAITING = "waiting for the device, which another process is timing on"
LOOK_S = 0.1  # before it is looked again who has the device: the other's clock runs meanwhile
SOURCES = (".py", ".h", ".cu", ".cpp")


@functools.cache
def builder_hash() -> str:
    """Of the code that compiles and inspects: what another version of it built or accepted is built again."""
    folder = Path(__file__).resolve().parent
    files = sorted(path for path in folder.rglob("*") if path.suffix in SOURCES)
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def judged(task: CheckTask | TimeTask, cases: tuple[CaseResult, ...]) -> Outcome:
    """The cases' verdict: what failed, and before all what is the candidate's fault. Where a search could only not time
    some cases, the others are its number."""
    bad = [case for case in cases if case.status is not Status.OK]
    failed = next((case for case in bad if case.status is not Status.UNSTABLE_TIMING), None)
    searching = isinstance(task, TimeTask) and not task.fixed and len(bad) < len(cases)
    if failed is None and (searching or not bad):
        return Outcome(task.id, Status.OK, 0.0, cases=cases)
    worst = failed or bad[0]
    return Outcome(task.id, worst.status, 0.0, cases=cases, diagnosis=worst.diagnosis)


class Worker:
    """`target` and `operator` look names up; `answers` is the pipe to the parent."""

    def __init__(self, target: Callable[[str], Target], operator: Callable[[str], Operator], answers: BinaryIO) -> None:
        self.target = target
        self.operator = operator
        self.answers = answers
        self.cache = BuildCache()
        self.session: Session | None = None
        self._proved, self._free_bytes = False, 0
        self._waited = self._looked = 0.0
        self._began = 0.0
        self._me = Owner(os.getppid(), os.environ.pop(RUN, ""))
        self._told = set[str]()

    def serve(self, tasks: BinaryIO) -> None:
        """Until the parent closes the pipe, or the device is lost."""
        try:
            for line in tasks:
                if self._answer(codec.loads(Task, line)):  # type: ignore[arg-type]  # a union is no class
                    break
        finally:
            if self.session is not None:
                self.session.close()

    def beat(self, what: str, **more: object) -> None:
        self.answers.write(json.dumps({"beat": what, **more}).encode() + b"\n")

    def _tell(self, news: str) -> None:
        """What the user should know, once; it says nothing of what is being done."""
        if news and news not in self._told:
            self._told.add(news)
            self.beat("", news=news)

    def _wait(self, device: str) -> None:
        """While another process has the device: alive, but nothing that counts as a task's time. Each other evo that
        has it is told of."""
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            other = owner(device)
            if other is not None and other.pid != self._me.pid:
                process = f"process {other.pid}" + (f", run {other.run}" if other.run else "")
                self._tell(f"{device} is used by another evo too, {process}: each waits while the other measures")
        if now - self._waited > 1.0:
            self._waited = now
            self.beat(WAITING)

    def _answer(self, task: Task) -> bool:
        """Does one task and sends its outcome; true when this process must not be used again."""
        self._began = time.perf_counter()
        lost = False
        try:
            outcome = self._do(task)
        except Rejected as error:
            lost = error.fatal
            diagnosis = Diagnosis(STAGES[task.kind], error.message, detail=error.detail)
            outcome = Outcome(task.id, error.status, 0.0, diagnosis=diagnosis)
        except Exception as error:  # evo's own fault: reported with its traceback, never the candidate's
            lost = task.kind == "build"  # a builder whose cache was cleared away cannot make it anew: it is locked in
            message = str(error) if isinstance(error, EvoError) else f"{type(error).__name__}: {error}"
            diagnosis = Diagnosis(STAGES[task.kind], message, detail=traceback.format_exc())
            outcome = Outcome(task.id, Status.EVALUATOR_ERROR, 0.0, diagnosis=diagnosis)
        self.answers.write(codec.dumps(replace(outcome, seconds=time.perf_counter() - self._began, last=lost)) + b"\n")
        return lost

    def _do(self, task: Task) -> Outcome:
        if isinstance(task, BuildTask):
            build = self._build(task)
            return Outcome(task.id, build.status, 0.0, build=build, diagnosis=build.diagnosis)
        if isinstance(task, CalibrateTask):
            self._open(task)
        session = self.session
        if session is None:
            raise RuntimeError(f"{task.kind} task before the calibration of this worker")
        gc.disable()  # a collection inside a timed block would be timed
        try:
            device = session.machine.facts.id
            with timing(device, functools.partial(self._wait, device), self._me) as apart:
                self._tell(apart)
                self._began = time.perf_counter()
                if isinstance(task, CalibrateTask):
                    return self._calibrate(session, task)
                cases = session.check(task) if isinstance(task, CheckTask) else session.time(task)
        finally:
            gc.enable()
        return judged(task, cases)

    def _open(self, task: CalibrateTask) -> None:
        if self.session is None:
            self.beat("opening the device")
            machine = self.target(task.target).open(task.device)
            self.session = Session(machine, self.operator(task.operator), self.cache, self.beat)

    def _calibrate(self, session: Session, task: CalibrateTask) -> Outcome:
        if not self._proved:
            self.beat("proving the device")
            self._free_bytes = prove(session.machine, task.free_bytes)
            self._proved = True
        baselines = session.calibrate(task)
        return Outcome(task.id, Status.OK, 0.0, baselines=baselines, free_bytes=self._free_bytes)

    def _build(self, task: BuildTask) -> Build:
        target = self.target(task.target)
        key = ids.digest([codec.dumps(task.request), target.toolchain(), builder_hash()])
        if self.session is None:
            self._lock_in()
        build = self.cache.get(key)
        if build is None:
            with building(functools.partial(self._wait, "cpu:0"), shared=task.target == "cpu") as apart:
                self._tell(apart)
                self._began = time.perf_counter()
                build = replace(target.build(task.request, self.cache.blobs), key=key)
            if build.status not in (Status.TIMEOUT, Status.EVALUATOR_ERROR):  # these may not happen again
                self.cache.put(build)
        if task.examine and build.status is Status.OK and not any(kernel.opcodes for kernel in build.kernels):
            build = target.examine(build, self.cache.blobs)
            self.cache.put(build)
        return build

    def _lock_in(self) -> None:
        """Before the first build: by then the compiler's libraries are loaded, and no stranger's text was read."""
        sandbox.limit_resources()
        folder = os.environ.pop(BUILDER_FOLDER, "")
        if folder:
            os.environ["TMPDIR"] = tempfile.tempdir = folder
            exclusive.prepare()  # what does not exist yet cannot be allowed
            sandbox.lock_in([Path(folder), self.cache.root, *exclusive.folders()])

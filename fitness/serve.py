"""The inside of a worker process: one task at a time, every outcome an answer."""

from __future__ import annotations

import gc
import json
import resource
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO

from evo import codec, ids
from evo.errors import EvoError
from evo.fitness.cache import BuildCache
from evo.fitness.exclusive import building, timing
from evo.fitness.session import Session
from evo.fitness.tasks import STAGES, BuildTask, CalibrateTask, CheckTask, Outcome, Task
from evo.operator import Operator
from evo.records import Build, Diagnosis, Status
from evo.target import Rejected, Target

BUILDER_BYTES = 4 << 30  # address space of a builder; an ordinary build takes well under one


class Worker:
    """`target` and `operator` look names up; `answers` is the pipe to the parent."""

    def __init__(self, target: Callable[[str], Target], operator: Callable[[str], Operator], answers: BinaryIO) -> None:
        self.target = target
        self.operator = operator
        self.answers = answers
        self.cache = BuildCache()
        self.session: Session | None = None
        self._waited = 0.0
        self._began = 0.0

    def serve(self, tasks: BinaryIO) -> None:
        """Until the parent closes the pipe, or the device is lost."""
        try:
            for line in tasks:
                if self._answer(codec.loads(Task, line)):  # type: ignore[arg-type]  # a union is no class
                    break
        finally:
            if self.session is not None:
                self.session.close()

    def beat(self, what: str) -> None:
        self.answers.write(json.dumps({"beat": what}).encode() + b"\n")

    def _wait(self) -> None:
        """While another process has the device: alive, but nothing that counts as a task's time."""
        if time.monotonic() - self._waited > 1.0:
            self._waited = time.monotonic()
            self.beat("waiting for the device, which another process is timing on")

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
            with timing(session.machine.facts.id, self._wait):
                self._began = time.perf_counter()
                if isinstance(task, CalibrateTask):
                    return Outcome(task.id, Status.OK, 0.0, baselines=session.calibrate(task))
                cases = session.check(task) if isinstance(task, CheckTask) else session.time(task)
        finally:
            gc.enable()
        bad = next((case for case in cases if case.status is not Status.OK), None)
        if bad is None:
            return Outcome(task.id, Status.OK, 0.0, cases=cases)
        return Outcome(task.id, bad.status, 0.0, cases=cases, diagnosis=bad.diagnosis)

    def _open(self, task: CalibrateTask) -> None:
        if self.session is None:
            self.beat("opening the device")
            machine = self.target(task.target).open(task.device)
            self.session = Session(machine, self.operator(task.operator), self.cache, self.beat)

    def _build(self, task: BuildTask) -> Build:
        if self.session is None:  # a builder: a source that makes the compiler eat memory ends this process only
            resource.setrlimit(resource.RLIMIT_AS, (BUILDER_BYTES, BUILDER_BYTES))
        target = self.target(task.target)
        key = ids.digest([codec.dumps(task.request), target.toolchain()])
        build = self.cache.get(key)
        if build is None:
            with building(self._wait, shared=task.target == "cpu"):
                self._began = time.perf_counter()
                build = replace(target.build(task.request, self.cache.blobs), key=key)
            if build.status not in (Status.TIMEOUT, Status.EVALUATOR_ERROR):  # these may not happen again
                self.cache.put(build)
        if task.examine and build.status is Status.OK and not any(kernel.opcodes for kernel in build.kernels):
            build = target.examine(build, self.cache.blobs)
            self.cache.put(build)
        return build

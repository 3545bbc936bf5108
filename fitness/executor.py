"""Runs tasks on this machine: builders in parallel, one worker process a device.

`poll` never raises for a candidate's fault: a crashed, hung or killed worker becomes an outcome, and the next task gets
a fresh process, which first proves the device and takes in the calibration that its predecessor had. A device that
fails this several times in a row is lost, and `poll` says so.
"""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from evo import ids
from evo.errors import DeviceLostError
from evo.fitness.cache import BuildCache
from evo.fitness.keeping import Keeper
from evo.fitness.process import WorkerProcess
from evo.fitness.tasks import BuildTask, CalibrateTask, Outcome, Task
from evo.records import DeviceFacts, Status

PROOFS = 3  # failed in a row, by processes that replace dead ones, before the device counts as lost
PAUSE_S = 2.0  # before another process tries: a driver that resets a device takes a while


class Pool:
    """Workers of one kind with their queue."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.queue: deque[Task] = deque()
        self.workers: list[WorkerProcess] = []
        self.calibration: CalibrateTask | None = None
        self.rests_until = 0.0


class LocalExecutor:
    """Not thread-safe. `devices` are this machine's; only the first is used."""

    def __init__(self, devices: Sequence[DeviceFacts], *, builders: int = 0) -> None:
        self._devices = tuple(devices)
        self._cache = BuildCache()
        self._keeper = Keeper(self._cache)
        self._build = Pool(builders or len(os.sched_getaffinity(0)))
        self._device = Pool(1)
        self._selector = selectors.DefaultSelector()
        self._done: list[Outcome] = []
        self._failed: list[str] = []  # why, of the proofs that failed in a row
        self._free_bytes = 0
        self._begun: deque[str] = deque(maxlen=1000)
        self.run = ""  # what workers say to others who wait for the device; set before the first task
        self.say: Callable[[str], None] = lambda message: None
        self._news: deque[str] = deque()  # from workers, which do not know what others have said
        self._told = set[str]()

    def devices(self) -> tuple[DeviceFacts, ...]:
        return self._devices

    @property
    def builders(self) -> int:
        return self._build.size

    def submit(self, task: Task) -> str:
        """Queues a task; returns its id."""
        pool = self._build if isinstance(task, BuildTask) else self._device
        pool.queue.append(task)
        self._dispatch(pool)
        return task.id

    def poll(self, timeout_s: float) -> list[Outcome]:
        """Outcomes since the last call; waits at most `timeout_s` for the first.

        Raises `DeviceLostError` when all outcomes are delivered and no process can use the device any more.
        """
        until = time.monotonic() + timeout_s
        while not self._done:
            if len(self._failed) >= PROOFS:
                raise self._device_lost()
            left = until - time.monotonic()
            self._turn(max(0.0, min(left, 0.1)))
            if left <= 0:
                break
        done, self._done = self._done, []
        return done

    def begun(self) -> list[str]:
        """What the device's worker began to do since the last call, in order, such as "time bf16-n1024"."""
        begun, self._begun = list(self._begun), deque(maxlen=1000)
        return begun

    def tell(self) -> None:
        """Says, each once, what workers found of the device: who else uses it, or that not all keep off it. Apart from
        `poll`, which may run in another thread."""
        while self._news:
            if (message := self._news.popleft()) not in self._told:
                self._told.add(message)
                self.say(message)

    def cancel(self, task_id: str) -> bool:
        """Removes a queued task, or kills the worker that has it. True when it was found; it has no outcome."""
        for pool in (self._build, self._device):
            for task in pool.queue:
                if task.id == task_id:
                    pool.queue.remove(task)
                    return True
            for worker in list(pool.workers):
                if worker.task is not None and worker.task.id == task_id:
                    self._drop(pool, worker)
                    return True
        return False

    def renew(self) -> None:
        """The next device task runs in a fresh process: other addresses, other heat."""
        for worker in list(self._device.workers):
            if worker.idle:
                self._drop(self._device, worker, gently=True)

    def close(self) -> None:
        for pool in (self._build, self._device):
            pool.queue.clear()
            for worker in list(pool.workers):
                self._drop(pool, worker, gently=worker.idle)
        self._selector.close()

    def _turn(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            pool, worker = key.data
            outcomes, alive = worker.read()
            news, worker.news = worker.news, []
            self._news.extend(news)
            begun, worker.begun = worker.begun, []
            self._begun.extend(begun if pool is self._device else [])
            for outcome in outcomes:
                self._deliver(outcome)
            if any(outcome.last for outcome in outcomes):
                self._drop(pool, worker)
            elif not alive:
                self._lose(pool, worker, timed_out=False)
        for pool in (self._build, self._device):
            for worker in [w for w in pool.workers if w.late()]:
                self._lose(pool, worker, timed_out=True)
            self._dispatch(pool)

    def _deliver(self, outcome: Outcome) -> None:
        calibration = self._device.calibration
        if calibration is not None and outcome.task == calibration.id:
            if outcome.status is Status.OK:
                self._failed.clear()
                self._free_bytes = self._free_bytes or outcome.free_bytes
            if not calibration.measure:  # a replacement; nobody asked
                if outcome.status is not Status.OK:
                    self._failed.append(outcome.diagnosis.message if outcome.diagnosis else str(outcome.status))
                    self._device.rests_until = time.monotonic() + PAUSE_S
                return
        if outcome.build is not None:
            self._keeper.keep(outcome.build)
        self._done.append(outcome)

    def _device_lost(self) -> DeviceLostError:
        device = self._devices[0]
        return DeviceLostError(
            f"{device.id} ({device.name}) is lost: {len(self._failed)} new processes in a row could not use it; "
            f"the last one said: {self._failed[-1]}",
            fix="look for Xid errors in the kernel's log (dmesg) and at nvidia-smi; what was measured is filed",
        )

    def _lose(self, pool: Pool, worker: WorkerProcess, *, timed_out: bool) -> None:
        outcome = worker.lost(timed_out=timed_out)
        self._drop(pool, worker)
        if outcome is not None:
            self._deliver(outcome)

    def _drop(self, pool: Pool, worker: WorkerProcess, *, gently: bool = False) -> None:
        self._selector.unregister(worker)
        pool.workers.remove(worker)
        if gently:
            worker.close()
        else:
            worker.kill()
            worker.close(wait_s=0)

    def _dispatch(self, pool: Pool) -> None:
        while pool.queue and len(self._failed) < PROOFS:
            if not self._cache.intact():
                self._cache.renew()
            self._give_up_builders()
            worker = next((w for w in pool.workers if w.idle), None)
            if worker is None:
                if len(pool.workers) >= pool.size or time.monotonic() < pool.rests_until:
                    return
                worker = self._start(pool)
                if not worker.idle:
                    continue
            task = pool.queue.popleft()
            if isinstance(task, CalibrateTask):
                pool.calibration = task
            self._keeper.restore(task)
            worker.give(task)

    def _start(self, pool: Pool) -> WorkerProcess:
        worker = WorkerProcess(builder=pool is self._build, run=self.run, folder=self._cache.folder)
        pool.workers.append(worker)
        self._selector.register(worker, selectors.EVENT_READ, (pool, worker))
        if pool.calibration is not None and not isinstance(pool.queue[0], CalibrateTask):
            pool.calibration = replace(pool.calibration, id=ids.new_id(), measure=False, free_bytes=self._free_bytes)
            self._keeper.restore(pool.calibration)
            worker.give(pool.calibration)
        return worker

    def _give_up_builders(self) -> None:
        """Those that are locked in with a cache folder that is gone: what they build they could keep nowhere."""
        for worker in list(self._build.workers):
            if worker.idle and worker.folder != self._cache.folder:
                self._drop(self._build, worker, gently=True)

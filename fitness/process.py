"""The parent's side of a worker process: starts it, talks to it, and kills it with all its children when it is late."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import evo
from evo import codec
from evo.fitness.cache import default_root
from evo.fitness.tasks import STAGES, Outcome, Task
from evo.records import Diagnosis, Status

PASSED = (
    "PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "CXX", "EVO_CACHE", "EVO_DISABLE_PLUGINS",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME", "VIRTUAL_ENV",
)  # fmt: skip
PRIVATE = ("HOME", "XDG_CACHE_HOME")  # for libraries that keep caches there, as baselines do; builders need neither
BUILDER_FOLDER = "EVO_BUILDER_FOLDER"  # tells a worker that it is a builder, and where its temporary files go
RUN = "EVO_RUN"  # tells a worker its run
KILLED = (-signal.SIGKILL, -signal.SIGTERM)
HERE = Path(evo.__file__).resolve().parent.parent
GRACE_S = 60.0  # a worker's first answer: starting Python and opening the device


class WorkerProcess:
    """One worker with at most one task in flight. Reading never blocks; register `fileno` with a selector.

    A `builder` gets a folder of its own and locks itself in before its first build (see `evo.fitness.sandbox`), with
    the cache folder that `folder` numbers.
    """

    def __init__(self, *, builder: bool = False, run: str = "", folder: int = 0) -> None:
        self.folder = folder
        self.task: Task | None = None
        self.doing = ""
        self.begun: list[str] = []  # what it did since somebody took this out
        self.news: list[str] = []  # that the user should be told, since somebody took this out
        self.deadline = float("inf")
        self._tail = b""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()
        environment = {name: os.environ[name] for name in PASSED if name in os.environ}
        self._folder = tempfile.TemporaryDirectory(prefix="evo-builder-") if builder else None
        if self._folder is not None:
            environment = {name: value for name, value in environment.items() if name not in PRIVATE}
            environment |= {BUILDER_FOLDER: self._folder.name, "EVO_CACHE": str(default_root().absolute())}
        path = [str(HERE), *filter(None, [environment.get("PYTHONPATH")])]  # also from a checkout that is not installed
        environment["PYTHONPATH"] = os.pathsep.join(path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evo.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", RUN: run},
            start_new_session=True,  # its own process group, so that it dies as a group
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._fresh = True

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def idle(self) -> bool:
        return self.task is None

    def give(self, task: Task) -> None:
        """Sends a task. A worker that is already dead is noticed at the next `read`."""
        self.task, self.doing = task, "starting"
        self.deadline = time.monotonic() + task.limit_s + (GRACE_S if self._fresh else 0.0)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(codec.dumps(task) + b"\n")
            self._process.stdin.flush()

    def read(self) -> tuple[list[Outcome], bool]:
        """Outcomes that have arrived, and whether the worker is still there."""
        alive = True
        while True:
            try:
                data = os.read(self.fileno(), 1 << 20)
            except BlockingIOError:
                break
            if not data:
                alive = False
                break
            self._tail += data
        *lines, self._tail = self._tail.split(b"\n")
        outcomes = [outcome for line in lines if (outcome := self._line(line)) is not None]
        return outcomes, alive

    def _line(self, line: bytes) -> Outcome | None:
        self._fresh = False
        if line.startswith(b'{"beat"'):
            said = json.loads(line)
            if said["beat"] not in ("", self.doing):
                self.doing = str(said["beat"])
                self.begun.append(self.doing)
            if "news" in said:
                self.news.append(str(said["news"]))
            if self.task is not None:
                self.deadline = time.monotonic() + self.task.limit_s
            return None
        self.task, self.deadline = None, float("inf")
        return codec.loads(Outcome, line)

    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def lost(self, *, timed_out: bool) -> Outcome | None:
        """Kills the process group; the outcome of the task that was in flight, if any."""
        task = self.task
        self.kill()
        if task is None:
            return None
        code = self._process.returncode
        if timed_out:
            status, message = Status.TIMEOUT, f"no sign of life for {task.limit_s:.0f} s during: {self.doing}"
        else:
            name = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
            status, message = Status.CRASH, f"the worker process died ({name}) during: {self.doing}"
        if status is Status.CRASH and code in KILLED:
            status = Status.EVALUATOR_ERROR  # somebody, or a lack of memory, killed it: not known to be this candidate
        elif status is Status.CRASH and task.kind == "build":
            status = Status.BUILD_ERROR  # the compiler died on this source
        elif task.kind == "calibrate":
            status = Status.EVALUATOR_ERROR
        case = self.doing.split(" ", 1)[1] if self.doing.startswith(("check ", "time ")) else ""
        return Outcome(task.id, status, 0.0, diagnosis=Diagnosis(STAGES[task.kind], message, case, self.stderr()))

    def stderr(self, limit: int = 4000) -> str:
        """The end of what the worker wrote to its standard error."""
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), limit, max(0, size - limit)).decode(errors="replace")

    def kill(self) -> None:
        pid = self._process.pid
        for group in (*children_of(pid), pid):  # a compiler or a runner leads a group of its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self._process.wait()
        self.task, self.deadline = None, float("inf")

    def close(self, *, wait_s: float = 2.0) -> None:
        """Lets the worker end by itself, then kills what is left of its group."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if self.idle:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        self.kill()
        self._process.stdout.close()
        self._stderr.close()
        if self._folder is not None:
            with contextlib.suppress(OSError):  # a leftover in the temporary folder harms nobody
                self._folder.cleanup()


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended, or this kernel does not say
        return []

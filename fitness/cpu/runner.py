"""The runner process seen from its parent: started, told what to call, watched by the clock, killed, started again.

The parent owns the shared memory, so a new runner finds buffers and code as they were. `runner.cpp` has the lock-down.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evo.errors import TargetError
from evo.fitness.cache import default_root
from evo.fitness.cpu import compiler
from evo.fitness.cpu.arena import Arena
from evo.fitness.cpu.elf import SUPPLIED
from evo.ids import digest
from evo.records import Status
from evo.target import Rejected

MAX_WORDS, MAX_FLOATS = 24, 8  # arguments of a kernel by class
MAX_CALLS, MAX_STEPS = 1 << 14, 1 << 16  # of one table
CODE_SLOTS, CODE_SLOT_BYTES = 128, 1 << 20

CODE_BASE = 0x2000_0000  # low, so that code built with -mcmodel=small may use 32-bit addresses
OUTPUTS_BASE, INPUTS_BASE = 0x1000_0000_0000, 0x2000_0000_0000  # nothing else is mapped within terabytes
JUMPS = {name: CODE_BASE - 4096 + 16 * number for number, name in enumerate(("evo_clear", "evo_copy", *SUPPLIED))}

STEP = np.dtype(
    [("entry", "<u8"), ("items", "<i8"), ("block", "<i8"), ("words", "<u8", MAX_WORDS), ("floats", "<u8", MAX_FLOATS)]
)  # `floats` holds bit patterns
_COMMAND, _FRESH, _FIRST, _COUNT, _CALLS, _START = 0, 1, 2, 3, 4, 16  # 32-bit words of `orders`
_STEPS_OFFSET = -(-4 * (_START + MAX_CALLS + 1) // 64) * 64
_ARRIVED_OFFSET = 128
_SPINS = 1 << 21  # about 50 ms of waiting before a worker sleeps
_ATTEND_NS, _PROMPT_NS = 1_000_000, 20_000
_START_LIMIT_S = 10.0
_FUTEX, _FUTEX_WAKE = 202, 1


def binary() -> Path:
    """The runner's executable, compiled once for this source and compiler and kept in the user's cache folder."""
    cxx = compiler.find()
    if not cxx:
        raise TargetError("the cpu target found no C++ compiler", fix="install g++ or clang++, or set CXX")
    source = Path(__file__).with_name("runner.cpp")
    flags = ["-O2", "-std=c++17", "-fno-exceptions", "-Wall", "-Wno-psabi", "-pthread", *_macros()]
    name = "cpu-runner-" + digest([source.read_bytes(), compiler.version(cxx), *flags])[:16]
    folder = default_root()
    if (folder / name).exists():
        return folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        build = Path(tempfile.mkdtemp(prefix="runner-", dir=folder))
    except OSError as error:
        raise TargetError(f"cannot write the cache folder {folder}: {error}", fix="set EVO_CACHE") from error
    try:
        code, said = compiler.run([cxx, *flags, str(source), "-o", name, "-lm"], build)
        if code != 0:
            raise TargetError(f"{cxx} cannot build the cpu target's runner:\n{said}", fix="try another CXX")
        os.replace(build / name, folder / name)
    finally:
        shutil.rmtree(build)
    return folder / name


def _macros() -> list[str]:
    words, floats = range(MAX_WORDS), range(MAX_FLOATS)
    values = {
        "MAX_WORDS": MAX_WORDS, "MAX_FLOATS": MAX_FLOATS, "MAX_CALLS": MAX_CALLS, "MAX_STEPS": MAX_STEPS,
        "CODE_BASE": f"{CODE_BASE:#x}UL", "OUTPUTS_BASE": f"{OUTPUTS_BASE:#x}UL", "INPUTS_BASE": f"{INPUTS_BASE:#x}UL",
        "STEP_BYTES": STEP.itemsize, "STEPS_OFFSET": _STEPS_OFFSET, "ARRIVED_OFFSET": _ARRIVED_OFFSET,
        "SPINS": _SPINS, "SUPPLIED(F)": " ".join(f"F({name})" for name in SUPPLIED),
        "WORD_TYPES": ",".join("uint64_t" for _ in words), "FLOAT_TYPES": ",".join("double" for _ in floats),
        "WORD_VALUES": ",".join(f"w[{i}]" for i in words), "FLOAT_VALUES": ",".join(f"f[{i}]" for i in floats),
    }  # fmt: skip
    return [f"-DEVO_{name}={value}" for name, value in values.items()]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Steps of several calls one after another: call i is `steps[starts[i]:starts[i + 1]]`."""

    steps: np.ndarray[tuple[int], np.dtype[np.void]]
    starts: np.ndarray[tuple[int], np.dtype[np.uint32]]

    @classmethod
    def of(cls, calls: Sequence[np.ndarray[tuple[int], np.dtype[np.void]]]) -> Table:
        """Raises `Rejected(RESOURCE_LIMIT)` when there are too many calls or steps."""
        idle = np.zeros(1, STEP)  # one more call, of no items: it wakes the workers
        starts = np.cumsum([0, *(len(call) for call in calls), 1]).astype(np.uint32)
        if len(calls) >= MAX_CALLS or starts[-1] > MAX_STEPS:
            raise Rejected(Status.RESOURCE_LIMIT, f"{starts[-1]} launches in {len(calls)} calls are too many")
        return cls(np.concatenate([*calls, idle]), starts)

    @property
    def calls(self) -> int:
        return len(self.starts) - 2


class Runner:
    """`locate` says what lies at an address of the runner's, for diagnoses."""

    def __init__(self, inputs: Arena, outputs: Arena, workers: int, locate: Callable[[int], str]) -> None:
        self.workers = workers
        self._inputs, self._outputs, self._locate = inputs, outputs, locate
        self._orders = Arena("orders", _STEPS_OFFSET + MAX_STEPS * STEP.itemsize)
        self._report = Arena("report", 4096)
        self._code = Arena("code", CODE_SLOTS * CODE_SLOT_BYTES)
        self._words = self._orders.bytes.data.cast("I")
        self._arrived = self._report.bytes.data.cast("Q")
        self._process: subprocess.Popen[bytes] | None = None
        self._table: Table | None = None
        self._met = 0  # what `arrived` will read once the last command is done
        self._schedules: list[int] = []  # of this thread and the runner's: files of the kernel's accounts
        self._lone = len(os.sched_getaffinity(0)) == 1
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._wake_word = ctypes.c_void_p(self._orders.bytes.ctypes.data)

    def write_code(self, slot: int, image: bytes) -> None:
        """Puts an image linked for `CODE_BASE + slot * CODE_SLOT_BYTES` in its place."""
        start = slot * CODE_SLOT_BYTES
        self._code.bytes[start : start + len(image)] = np.frombuffer(image, np.uint8)
        self._words[_FRESH] = 1

    def run(self, table: Table, first: int, count: int, deadline_s: float, *, knocks: int = 1) -> tuple[int, int]:
        """Makes `count` calls of the table from number `first` on, going round.

        Nanoseconds from order to last arrival, and how many of them threads were ready to run but had no core. Before,
        the workers are woken by empty calls, up to `knocks` until one is answered so fast that all have their cores.

        Raises `Rejected`: TIMEOUT after `deadline_s`, CRASH, FORBIDDEN for a system call. The runner is then gone and
        the next run starts another.
        """
        if self._process is None:
            self._start()
        if self._table is not table:
            self._upload(table)
        for _ in range(knocks):
            if self._command(table.calls, 1, table.calls + 1, 1, _START_LIMIT_S, patience_ns=20_000) < _PROMPT_NS:
                break
        self._words[_FRESH] = 0
        lengths = np.diff(table.starts[:-1]).astype(np.int64)
        steps = int(lengths.sum()) * (count // table.calls)
        steps += int(np.take(lengths, np.arange(first, first + count % table.calls), mode="wrap").sum())
        waited = self._waited()
        took = self._command(first, count, table.calls, steps, deadline_s)
        return took, self._waited() - waited

    def close(self) -> None:
        self._kill()
        self._words.release()
        self._arrived.release()
        for arena in (self._orders, self._report, self._code):
            arena.close()

    def _command(
        self, first: int, count: int, calls: int, steps: int, deadline_s: float, patience_ns: int = _ATTEND_NS
    ) -> int:
        words, arrived, clock = self._words, self._arrived, time.perf_counter_ns
        words[_FIRST], words[_COUNT], words[_CALLS] = first, count, calls
        self._met += steps * self.workers
        target, place, number = self._met, _ARRIVED_OFFSET // 8, (words[_COMMAND] + 1) & 0xFFFF_FFFF
        start = now = clock()
        words[_COMMAND] = number
        attend = start + patience_ns
        while arrived[place] < target:
            now = clock()
            if now >= attend:
                self._attend(now - start, deadline_s)
                attend = now + _ATTEND_NS
            if self._lone:  # the one worker needs this core
                os.sched_yield()
        return clock() - start

    def _waited(self) -> int:
        return sum(int(os.pread(fd, 64, 0).split()[1]) for fd in self._schedules)

    def _attend(self, waited_ns: int, deadline_s: float) -> None:
        """Once a millisecond: wakes workers that went to sleep, sees whether the runner lives and is in time."""
        self._libc.syscall(_FUTEX, self._wake_word, _FUTEX_WAKE, self.workers, None, None, 0)
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            self._kill()
            raise self._death(code)
        if waited_ns > deadline_s * 1e9:
            self._kill()
            raise Rejected(Status.TIMEOUT, f"no end after {deadline_s:g} s; the runner was killed")

    def _death(self, code: int) -> Rejected:
        number, address = self._report.bytes.data.cast("I")[1], self._arrived[1]
        if code == -signal.SIGSYS:
            return Rejected(Status.FORBIDDEN, "SIGSYS: a system call; a kernel may make none")
        if code > 0 and number:
            where = (
                self._locate(address) if address != (1 << 64) - 1 else "rdtsc, a privileged instruction or no address"
            )
            return Rejected(Status.CRASH, f"{signal.Signals(number).name}: {where}")
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Rejected(Status.CRASH, f"{name}: the runner process ended")

    def _upload(self, table: Table) -> None:
        self._words[_START : _START + len(table.starts)] = table.starts.data
        data = table.steps.view(np.uint8)
        self._orders.bytes[_STEPS_OFFSET : _STEPS_OFFSET + data.size] = data
        self._table = table

    def _start(self) -> None:
        self._report.bytes[:] = 0
        self._words[_COMMAND] = 0
        self._met = 0
        shared = (self._orders, self._report, self._inputs, self._outputs, self._code)
        numbers = (*(arena.fd for arena in shared), self.workers)
        sizes = (self._outputs.size, self._inputs.size, self._code.size)
        self._process = subprocess.Popen(
            [binary(), *map(str, (*numbers, *sizes))], env={}, pass_fds=[arena.fd for arena in shared],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        limit = time.monotonic() + _START_LIMIT_S
        while self._report.bytes.data.cast("I")[0] == 0:
            if self._process.poll() is not None or time.monotonic() > limit:
                stderr = self._process.stderr
                said = stderr.read().decode(errors="replace") if stderr and self._process.poll() is not None else ""
                self._kill()
                raise TargetError(f"the cpu target's runner did not start: {said.strip() or 'no answer'}",
                                  fix="it needs Linux 5.9 or newer on x86-64, with seccomp and memfd")  # fmt: skip
            time.sleep(0.0002)
        tasks = Path(f"/proc/{self._process.pid}/task").iterdir()
        files = [Path("/proc/thread-self/schedstat"), *(task / "schedstat" for task in tasks)]
        self._schedules = [os.open(file, os.O_RDONLY) for file in files if file.exists()]

    def _kill(self) -> None:
        """Ends the runner and its whole process group, if it runs."""
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()
        for fd in self._schedules:
            os.close(fd)
        self._process, self._schedules = None, []

"""The runner process seen from its parent: started, told what to call, watched by the clock, killed, started again.

The parent owns the shared memory, so a new runner finds buffers and code as they were. `runner.cpp` has the lock-down.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evo.errors import TargetError
from evo.fitness.cpu import executable
from evo.fitness.cpu.arena import Arena
from evo.fitness.cpu.elf import SUPPLIED
from evo.records import Status
from evo.target import Rejected

MAX_WORDS, MAX_FLOATS = 24, 8  # arguments of a kernel by class
MAX_CALLS, MAX_STEPS, MAX_OUTPUTS = 1 << 14, 1 << 16, 1 << 16  # of one table
SPOILS = 4  # elements of an output that are changed between two timed calls
CODE_SLOTS, CODE_SLOT_BYTES = 128, 1 << 20

CODE_BASE = 0x2000_0000  # low, so that code built with -mcmodel=small may use 32-bit addresses
OUTPUTS_BASE, INPUTS_BASE = 0x1000_0000_0000, 0x2000_0000_0000  # nothing else is mapped within terabytes
JUMPS = {name: CODE_BASE - 4096 + 16 * number for number, name in enumerate(("evo_clear", "evo_copy", *SUPPLIED))}

STEP = np.dtype(
    [("entry", "<u8"), ("items", "<i8"), ("block", "<i8"), ("words", "<u8", MAX_WORDS), ("floats", "<u8", MAX_FLOATS)]
)  # `floats` holds bit patterns
OUTPUT = np.dtype([("address", "<u8"), ("elements", "<u8"), ("itemsize", "<u8")])
# 32-bit words of `orders`
_COMMAND, _FRESH, _FIRST, _COUNT, _CALLS, _ONLY_SPOIL, _KEY, _START = 0, 1, 2, 3, 4, 5, 6, 16
_OUTPUT_START = _START + MAX_CALLS + 1
_STEPS_OFFSET = -(-4 * (_OUTPUT_START + MAX_CALLS + 1) // 64) * 64
_OUTPUTS_OFFSET = _STEPS_OFFSET + -(-MAX_STEPS * STEP.itemsize // 64) * 64
_ARRIVED_OFFSET = 128
_PAGE = 4096
_OTHER_KEY = 0x5DEE_CE66_D1B5_4A32  # even, so that a key stays odd, never 0
_SPINS = 1 << 21  # about 50 ms of waiting before a worker sleeps
_ATTEND_NS, _PROMPT_NS = 1_000_000, 20_000
_START_LIMIT_S = 10.0
_FUTEX, _FUTEX_WAKE = 202, 1
_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP})

Records = np.ndarray[tuple[int], np.dtype[np.void]]


def _macros() -> list[str]:
    words, floats = range(MAX_WORDS), range(MAX_FLOATS)
    values = {
        "MAX_WORDS": MAX_WORDS, "MAX_FLOATS": MAX_FLOATS, "MAX_CALLS": MAX_CALLS, "MAX_STEPS": MAX_STEPS,
        "CODE_BASE": f"{CODE_BASE:#x}UL", "OUTPUTS_BASE": f"{OUTPUTS_BASE:#x}UL", "INPUTS_BASE": f"{INPUTS_BASE:#x}UL",
        "STEP_BYTES": STEP.itemsize, "STEPS_OFFSET": _STEPS_OFFSET, "ARRIVED_OFFSET": _ARRIVED_OFFSET,
        "OUTPUT_BYTES": OUTPUT.itemsize, "OUTPUTS_OFFSET": _OUTPUTS_OFFSET, "MAX_OUTPUTS": MAX_OUTPUTS,
        "SPOILS": SPOILS,
        "SPINS": _SPINS, "SUPPLIED(F)": " ".join(f"F({name})" for name in SUPPLIED),
        "WORD_TYPES": ",".join("uint64_t" for _ in words), "FLOAT_TYPES": ",".join("double" for _ in floats),
        "WORD_VALUES": ",".join(f"w[{i}]" for i in words), "FLOAT_VALUES": ",".join(f"f[{i}]" for i in floats),
    }  # fmt: skip
    return [f"-DEVO_{name}={value}" for name, value in values.items()]


def binary() -> Path:
    """The runner's executable, made when it is not there."""
    return executable.make(_macros())


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Steps of several calls one after another: call i is `steps[starts[i]:starts[i + 1]]`."""

    steps: Records
    starts: np.ndarray[tuple[int], np.dtype[np.uint32]]
    outputs: Records  # likewise, by `output_starts`
    output_starts: np.ndarray[tuple[int], np.dtype[np.uint32]]

    @classmethod
    def of(cls, calls: Sequence[Records], outputs: Sequence[Records] = ()) -> Table:
        """`outputs` of each call are what `Runner.block` spoils between calls.

        Raises `Rejected(RESOURCE_LIMIT)` when there are too many calls, steps or outputs.
        """
        idle = np.zeros(1, STEP)  # one more call, of no items: it wakes the workers
        none = np.zeros(0, OUTPUT)
        outputs = [*(outputs or [none for _ in calls]), none]
        starts = np.cumsum([0, *(len(call) for call in calls), 1]).astype(np.uint32)
        output_starts = np.cumsum([0, *map(len, outputs)]).astype(np.uint32)
        if len(calls) >= MAX_CALLS or starts[-1] > MAX_STEPS or output_starts[-1] > MAX_OUTPUTS:
            raise Rejected(Status.RESOURCE_LIMIT, f"{starts[-1]} launches in {len(calls)} calls are too many")
        return cls(np.concatenate([*calls, idle]), starts, np.concatenate(outputs), output_starts)

    @property
    def calls(self) -> int:
        return len(self.starts) - 2


class Runner:
    """`locate` says what lies at an address of the runner's, for diagnoses."""

    def __init__(self, inputs: Arena, outputs: Arena, workers: int, locate: Callable[[int], str]) -> None:
        self.workers = workers
        self._inputs, self._outputs, self._locate = inputs, outputs, locate
        self._binary = binary()
        self._sizes = (_PAGE, _PAGE)
        self._orders = Arena("orders", _OUTPUTS_OFFSET + MAX_OUTPUTS * OUTPUT.itemsize)
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

    def expose(self, inputs: int, outputs: int) -> None:
        """From now on a runner reaches only so many bytes of the arenas, and it is a new process, with nothing left in
        it by what ran before."""
        self._kill()
        self._sizes = (max(_PAGE, -(-inputs // _PAGE) * _PAGE), max(_PAGE, -(-outputs // _PAGE) * _PAGE))

    def run(self, table: Table, first: int, count: int, deadline_s: float) -> None:
        """Makes `count` calls of the table from number `first` on, going round.

        Raises `Rejected`: TIMEOUT after `deadline_s`, CRASH, FORBIDDEN for a system call, IMPLAUSIBLE for a forged
        count, EVALUATOR_ERROR when something else killed the runner. It is then gone and the next run starts another.
        """
        self._ready(table, 1)
        self._command(first, count, table.calls, self._count(table, first, count), deadline_s)

    def block(self, table: Table, first: int, count: int, deadline_s: float, *, knocks: int) -> tuple[int, int]:
        """Like `run`, timed, and no call finds its outputs done: they are spoiled before the block and after every call
        but a slot's last.

        Nanoseconds from order to last arrival, and how many of them threads were ready to run but had no core. Before,
        the workers are woken by empty calls, up to `knocks` until one is answered so fast that all have their cores.
        """
        self._ready(table, knocks)
        key = secrets.randbits(64) | 1
        self._command(first, min(count, table.calls), table.calls, 1, _START_LIMIT_S, key=key, only_spoil=True)
        steps, waited = self._count(table, first, count), self._waited()
        took = self._command(first, count, table.calls, steps, deadline_s, key=key ^ _OTHER_KEY)
        return took, self._waited() - waited

    def _ready(self, table: Table, knocks: int) -> None:
        if self._process is None:
            self._start()
        if self._table is not table:
            self._upload(table)
        for _ in range(knocks):
            if self._command(table.calls, 1, table.calls + 1, 1, _START_LIMIT_S, patience_ns=20_000) < _PROMPT_NS:
                break
        self._words[_FRESH] = 0

    def _count(self, table: Table, first: int, count: int) -> int:
        """Steps of so many calls."""
        lengths = np.diff(table.starts[:-1]).astype(np.int64)
        rest = np.take(lengths, np.arange(first, first + count % table.calls), mode="wrap")
        return int(lengths.sum()) * (count // table.calls) + int(rest.sum())

    def close(self) -> None:
        self._kill()
        self._words.release()
        self._arrived.release()
        for arena in (self._orders, self._report, self._code):
            arena.close()

    def _command(
        self, first: int, count: int, calls: int, steps: int, deadline_s: float, *, patience_ns: int = _ATTEND_NS,
        key: int = 0, only_spoil: bool = False,
    ) -> int:  # fmt: skip
        """Gives an order and waits for its last arrival, of `steps` by every worker; nanoseconds."""
        words, arrived, clock, place = self._words, self._arrived, time.perf_counter_ns, _ARRIVED_OFFSET // 8
        self._believe(arrived[place])
        words[_FIRST], words[_COUNT], words[_CALLS], words[_ONLY_SPOIL] = first, count, calls, only_spoil
        words[_KEY], words[_KEY + 1] = key & 0xFFFF_FFFF, key >> 32
        self._met += steps * self.workers
        target, number = self._met, (words[_COMMAND] + 1) & 0xFFFF_FFFF
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
        took = clock() - start
        self._believe(arrived[place])
        return took

    def _believe(self, arrived: int) -> None:
        if arrived != self._met:
            self._kill()
            raise Rejected(
                Status.IMPLAUSIBLE, f"the workers announced {arrived:,} arrivals where they can have made {self._met:,}"
            )

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
            return Rejected(Status.CRASH, f"{_name(number)}: {where}")
        if code < 0 and -code not in _FAULTS:  # no system call but those of the filter: it cannot have been the kernel
            return Rejected(Status.EVALUATOR_ERROR, f"{_name(-code)}: something outside killed the runner process")
        name = _name(-code) if code < 0 else f"exit code {code}"
        return Rejected(Status.CRASH, f"{name}: the runner process ended")

    def _upload(self, table: Table) -> None:
        self._words[_START : _START + len(table.starts)] = table.starts.data
        self._words[_OUTPUT_START : _OUTPUT_START + len(table.output_starts)] = table.output_starts.data
        for records, offset in ((table.steps, _STEPS_OFFSET), (table.outputs, _OUTPUTS_OFFSET)):
            data = records.view(np.uint8)
            self._orders.bytes[offset : offset + data.size] = data
        self._table = table

    def _start(self) -> None:
        self._report.bytes[:] = 0
        self._words[_COMMAND] = 0
        self._met = 0
        shared = (self._orders, self._report, self._inputs, self._outputs, self._code)
        numbers = (*(arena.fd for arena in shared), self.workers)
        inputs, outputs = self._sizes
        sizes = (outputs, inputs, self._code.size)
        if not os.access(self._binary, os.X_OK):  # someone emptied the cache folder
            self._binary = binary()
        self._process = subprocess.Popen(
            [self._binary, *map(str, (*numbers, *sizes, os.getpid()))], env={}, pass_fds=[arena.fd for arena in shared],
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


def _name(number: int) -> str:
    """A signal's name; a number that a hostile report made up stays one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

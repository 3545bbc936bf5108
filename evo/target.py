"""Where candidates run: the small interfaces that the CPU and CUDA targets implement.

The trust logic (what is filled, poisoned, compared, paired) is written once, in `evo.fitness.check` and
`evo.fitness.clock`, on top of a `Machine`'s primitives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from evo.operator import Fill
from evo.plan import LaunchPlan
from evo.records import Build, CompileRequest, Deviation, DeviceFacts, Status

if TYPE_CHECKING:
    import numpy as np


class Rejected(Exception):
    """A candidate's fault, on its way from the device to the record; never leaves `evo.fitness`.

    `fatal` says that the device context is lost and the worker process must end.
    """

    def __init__(self, status: Status, message: str, *, detail: str = "", fatal: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.detail = detail
        self.fatal = fatal


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """`input` buffers may be mapped read-only where the target can; "scratch" and "output" may be written.

    `readonly`: programs get an address at which a write faults, where the target can.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Literal["input", "output", "scratch"]
    align: int = 256  # the start is exactly this aligned (not more), so that lucky alignment is not relied on
    readonly: bool = False


class Buffer(Protocol):
    """Device memory with guard bands on both sides. Void after the next `Machine.allocate`."""

    @property
    def spec(self) -> BufferSpec: ...

    @property
    def nbytes(self) -> int: ...


class Program(Protocol):
    """Loaded machine code with its launch plan."""

    @property
    def plan(self) -> LaunchPlan: ...

    def close(self) -> None: ...


class Call(Protocol):
    """A program (or a baseline) bound to its buffers: everything that one timed call needs."""


class Stopwatch(Protocol):
    """A timed sequence of calls, prepared once and sampled many times. Every sample runs every call at least once."""

    @property
    def protocol(self) -> str: ...

    @property
    def method(self) -> str:
        """How this sequence is measured: "graph", "events", "stream" or "block"."""
        ...

    @property
    def readings(self) -> Mapping[str, float]:
        """What else the samples so far have shown: bracket_us, power_w, energy_uj (a call) where the protocol tells."""
        ...

    def sample(self) -> float:
        """Runs the sequence; microseconds per call. Raises `Rejected`."""
        ...

    def close(self) -> None: ...


class Machine(Protocol):
    """One device, owned by this process, single-threaded. Every method may raise `Rejected`."""

    @property
    def facts(self) -> DeviceFacts: ...

    @property
    def protocols(self) -> tuple[str, ...]:
        """How calls can be timed here, by name; the first is the default."""
        ...

    def allocate(self, specs: Sequence[BufferSpec]) -> list[Buffer]:
        """Lays all buffers out at random places of one arena, with guard bands; earlier buffers become void.
        Raises `Rejected(RESOURCE_LIMIT)` when they do not fit."""
        ...

    def load(self, build: Build, code: bytes, plan: LaunchPlan) -> Program:
        """Loads and verifies a plan against the code: kernel names, argument count and sizes, threads, shared memory,
        cluster. Raises `Rejected` (INVALID_GENOME, RESOURCE_LIMIT, LAUNCH_ERROR)."""
        ...

    def bind(self, program: Program, buffers: Mapping[str, Buffer]) -> Call:
        """Binds by name; tensor maps are encoded here."""
        ...

    def adopt(
        self, run: Callable[[Mapping[str, Any], int], Mapping[str, Any] | None], buffers: Mapping[str, Buffer]
    ) -> Call:
        """A baseline's callable as a Call over the same buffers; outputs that it returns are copied into ours untimed
        (by the next `run`)."""
        ...

    def fill(self, buffer: Buffer, data: Fill | np.ndarray[Any, Any], seed: int) -> None:
        """Writes contents, reproducibly from the seed."""
        ...

    def poison(self, buffer: Buffer, key: int, scale: float = 1.0) -> None:
        """Overwrites the contents with what `evo.fitness.poison` says for `key`; results are about as large as
        `scale`."""
        ...

    def perturb(self, buffer: Buffer, key: int) -> None:
        """One element, which `key` chooses, gets the value of another one."""
        ...

    def zero(self, buffer: Buffer) -> None: ...

    def is_zero(self, *buffers: Buffer) -> bool: ...

    def guard(self, buffers: Sequence[Buffer], key: int) -> None:
        """Writes the guard bands of these buffers with a pattern that depends on `key`."""
        ...

    def breach(self, buffers: Sequence[Buffer], key: int) -> str:
        """ "" when all guard bands still hold the pattern, else which one does not and where."""
        ...

    def run(self, call: Call) -> None:
        """One call, waited for. Raises `Rejected` (LAUNCH_ERROR, CRASH, TIMEOUT, ...)."""
        ...

    def read(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        """A host copy in the buffer's dtype and shape."""
        ...

    def digest(self, buffer: Buffer, key: int) -> int:
        """A keyed 64-bit digest of the contents; equal contents give equal digests under one key."""
        ...

    def digests(self, buffers: Sequence[Buffer], key: int) -> list[int]:
        """Of each one, waited for once."""
        ...

    def lanes(self, estimate_us: float, protocol: str = "") -> int:
        """How many calls a sample of the stopwatch makes at most, where it writes no output twice if it gets so many
        calls with outputs of their own; 1 where the machine itself sees to it that no call finds its work done."""
        ...

    def compare(self, actual: Buffer, expected: Buffer, row_floor: float = 0.0) -> Deviation:
        """Deviation of `actual` from `expected` (any float dtypes), both on the device; see `Tolerance.row_floor`."""
        ...

    def stopwatch(self, calls: Sequence[Call], estimate_us: float, protocol: str = "") -> Stopwatch:
        """A stopwatch of the named protocol ("": the default) for `calls`, one a slot. `estimate_us` is a rough time of
        one call, which picks graph lengths or block sizes. Raises `UsageError` for a protocol that is not offered."""
        ...

    def tempo(self) -> float:
        """The processor's clock now, in MHz, counted against the device's timer by a short kernel of evo's own; 0 where
        there is no such thing. Waits for it (about 0.05 ms)."""
        ...

    def clocks(self) -> Mapping[str, float]:
        """sm_mhz, memory_mhz, temperature_c, power_w, event_reasons (bit mask) where the target can tell."""
        ...

    def copy_rate(self, nbytes: int) -> float:
        """Measured bytes per second (read plus written) of a plain copy of a size like `nbytes`, cached."""
        ...

    def close(self) -> None: ...


class BlobStore:
    """Files named by the SHA-256 of their contents, in one folder; safe for many processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def put(self, data: bytes) -> str:
        import hashlib
        import os
        import tempfile

        name = hashlib.sha256(data).hexdigest()
        path = self.root / name
        if not path.exists():
            self.root.mkdir(parents=True, exist_ok=True)  # somebody may have deleted it since
            with tempfile.NamedTemporaryFile(dir=self.root, delete=False) as file:
                file.write(data)
            os.replace(file.name, path)
        return name

    def get(self, name: str) -> bytes:
        """Raises `FileNotFoundError` when there is none, or when it is not what its name says (it is then removed)."""
        import hashlib

        path = self.root / name
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != name:
            path.unlink(missing_ok=True)
            raise FileNotFoundError(f"{path} was damaged")
        return data


class Target(Protocol):
    """A place where genomes can be built and, where there is a device, run. Cheap to construct; imports CUDA lazily."""

    @property
    def name(self) -> str:
        """ "sm_90", "cpu"."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]: ...

    @property
    def protocols(self) -> tuple[str, ...]:
        """As its machines'; known without opening one."""
        ...

    @property
    def arch(self) -> str:
        """What genomes name in `arch` and the compiler builds for: "sm_90a", "native"."""
        ...

    def describe(self) -> str:
        """One line for `evo targets`: what it is and whether it can build and run here, and why not."""
        ...

    def missing(self) -> str:
        """ "" when it can build here, else what to install."""
        ...

    def devices(self) -> tuple[DeviceFacts, ...]:
        """Usable devices of this target on this machine; must be callable without creating a device context."""
        ...

    def nominal(self) -> DeviceFacts:
        """The architecture's facts, for building and constraint checks with no device."""
        ...

    def toolchain(self) -> str:
        """Compiler and version, part of every build's key and machine identity."""
        ...

    def build(self, request: CompileRequest, blobs: BlobStore) -> Build:
        """Compiles and inspects; never raises for the candidate's fault. Runs in a builder process."""
        ...

    def examine(self, build: Build, blobs: BlobStore) -> Build:
        """The build with opcode histograms, which may cost more than the build itself."""
        ...

    def open(self, device: str) -> Machine:
        """Takes the device for this process."""
        ...

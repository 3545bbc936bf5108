"""What the stages exchange: frozen, typed, JSON-able. Arrays and machine code travel as blobs named by their hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Value = int | str
Values = Mapping[str, Value]


class Status(StrEnum):
    """What became of an evaluation, and (with `uncovered`) of one of its cases."""

    OK = "ok"
    UNCOVERED = "uncovered"  # cases only: the candidate does not claim this case
    BUILD_ERROR = "build_error"
    FORBIDDEN = "forbidden"
    RESOURCE_LIMIT = "resource_limit"
    LAUNCH_ERROR = "launch_error"
    TIMEOUT = "timeout"
    CRASH = "crash"
    WRONG_RESULT = "wrong_result"
    OUT_OF_BOUNDS = "out_of_bounds"
    INPUT_MUTATED = "input_mutated"
    NONDETERMINISTIC = "nondeterministic"
    IMPLAUSIBLE = "implausible"
    UNSTABLE_TIMING = "unstable_timing"
    INVALID_GENOME = "invalid_genome"
    EVALUATOR_ERROR = "evaluator_error"  # evo's own fault; never counts against the candidate


# Evo's own fault, or a clock that moved: no number, and nothing said of the candidate, which is tried again.
BLAMELESS = frozenset({Status.EVALUATOR_ERROR, Status.UNSTABLE_TIMING})


class State(StrEnum):
    """Where a proposal is."""

    PENDING = "pending"
    BUILDING = "building"
    EVALUATING = "evaluating"
    DONE = "done"
    CANCELLED = "cancelled"
    DUPLICATE = "duplicate"
    QUARANTINED = "quarantined"


class Stage(StrEnum):
    PLAN = "plan"
    BUILD = "build"
    INSPECT = "inspect"
    CHECK = "check"
    TIME = "time"


class Purpose(StrEnum):
    SEARCH = "search"
    FINAL = "final"
    CERTIFY = "certify"


STRENGTH = {Purpose.SEARCH: 0, Purpose.FINAL: 1, Purpose.CERTIFY: 2}  # how much an evaluation's numbers are worth


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why something was rejected, for a person: where, a sentence, and the long text (log, first wrong element)."""

    stage: Stage
    message: str
    case: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    fmad: bool = True
    ftz: bool = False
    maxrregcount: int = 0  # 0: the compiler's choice
    std: str = "c++17"


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """All that a build depends on, save the toolchain (which the target adds to the key)."""

    target: str  # "sm_90", "cpu"
    arch: str  # "sm_90a"; "native" on the CPU
    suffix: Literal[".cu", ".ptx", ".cpp"]
    source: str
    defines: tuple[tuple[str, str], ...]
    options: BuildOptions
    kernels: tuple[str, ...]  # that the launch plan will look up


@dataclass(frozen=True, slots=True)
class Kernel:
    """Facts about one kernel's machine code."""

    name: str
    parameters: tuple[int, ...] = ()  # sizes in bytes, in order; empty where the target cannot tell
    registers: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0  # static
    max_threads: int = 0  # launch bound; 0: none
    opcodes: Mapping[str, int] = field(default_factory=dict)  # SASS or x86 histogram
    flags: tuple[str, ...] = ()  # what a person should know of its code: uses local memory, a claim not proved, ...


@dataclass(frozen=True, slots=True)
class Build:
    """The outcome of one compilation; `status` other than ok carries a diagnosis and no code."""

    key: str
    status: Status
    toolchain: str
    seconds: float
    diagnosis: Diagnosis | None = None
    blob: str = ""  # SHA-256 of the binary, which lies in the blob store
    code_hash: str = ""  # SHA-256 of the machine code alone, without names or notes that do not execute
    kernels: tuple[Kernel, ...] = ()
    log: str = ""  # the compiler's notices


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device, as found, or an architecture's nominal facts where there is none (`id` is then "")."""

    id: str  # "cuda:0", "cpu:0"
    name: str
    target: str  # "sm_90", "cpu"
    sms: int  # worker threads on the CPU
    smem_block: int  # bytes; 0 on the CPU
    smem_sm: int
    l2_bytes: int
    memory_bytes: int
    peak_bytes_per_s: float = 0.0  # 0: unknown
    peak_flops: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)  # driver, runtime, compiler, ...

    def names(self) -> dict[str, int]:
        """The device names of the small language."""
        return {
            "SMS": self.sms, "SMEM_BLOCK": self.smem_block, "SMEM_SM": self.smem_sm, "L2_BYTES": self.l2_bytes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far an output is from the truth.

    rms: ||out - ref|| / ||ref|| over the tensor. row: the largest such ratio of any row (last axis).
    max: the largest |out - ref| / max(|ref|, rms of its row). A non-finite element where the truth is finite (or the
    reverse) counts as infinity in all three. `index` is the flat index of the worst element.
    """

    __pydantic_config__ = {"ser_json_inf_nan": "strings"}  # plain JSON has no infinity

    rms: float
    max: float
    row: float = 0.0
    index: int = 0
    got: float = 0.0
    expected: float = 0.0
    scale: float = 0.0  # RMS of the truth's finite elements


@dataclass(frozen=True, slots=True)
class Timing:
    """One case timed against an opponent under one protocol.

    `ratio` is opponent time over candidate time (above 1: the candidate is faster), with the anytime-valid interval
    `low`..`high` at `level`. `samples` are (candidate_us, opponent_us) pairs, raw.
    """

    protocol: str
    opponent: str
    time_us: float  # median
    opponent_us: float  # median
    ratio: float
    low: float
    high: float
    level: float
    pairs: int
    stopped: Literal["resolved", "fixed", "behind", "budget", "self"]
    samples: tuple[tuple[float, float], ...] = ()
    clocks: Mapping[str, float] = field(default_factory=dict)  # sm_mhz, memory_mhz, temperature_c, ... before and after
    light_us: float = 0.0  # roofline at the device's measured copy rate; 0 unknown
    method: str = ""  # how the two sides were measured, "graph/stream": stream includes a library's host time
    opponent_rms: float = 0.0  # the opponent's own relative RMS error on such inputs; 0 unknown
    sessions: tuple[int, ...] = ()  # pairs of each fresh process, in the order of `samples`; () is a single one


@dataclass(frozen=True, slots=True)
class CaseResult:
    case: str
    status: Status
    deviation: Deviation | None = None
    timing: Timing | None = None
    diagnosis: Diagnosis | None = None
    machine_id: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A genome with one set of gene values. `id` is the hash of (operator, target, canonical source, values)."""

    id: str
    operator: str
    target: str
    species: str
    suffix: str
    source: str  # canonical text
    values: Values


@dataclass(frozen=True, slots=True)
class Author:
    """Who proposed: "seed", "archive", "person", a mutator's name, or a model's."""

    kind: str
    model: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    id: str
    run: str
    candidate: Candidate
    parents: tuple[str, ...] = ()  # candidate ids
    author: Author = Author("seed")
    note: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One row, whatever happened. `status` is ok when at least one case is covered and all covered ones are right and
    timed."""

    id: str
    run: str
    candidate: str
    purpose: Purpose
    yardstick: str
    device: str  # DeviceFacts.id
    status: Status
    diagnosis: Diagnosis | None = None
    builds: tuple[Build, ...] = ()
    cases: tuple[CaseResult, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage
    duplicate_of: str = ""  # candidate id with the same machine identity in every case


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an evaluator says of a proposal. State duplicate: the machine code and plans equal those of the candidate
    `evaluation.duplicate_of`, so nothing was timed."""

    proposal: Proposal
    evaluation: Evaluation
    state: State = State.DONE

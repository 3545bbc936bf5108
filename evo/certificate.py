"""What is certified, and what became of a replay: the JSON that travels, as records.

A certificate names everything that its numbers depend on (sources and machine code, launch plans, evaluator, operator,
baselines, device, versions) and carries the raw samples. It lists every tune case, lost, failed and uncovered ones too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Literal

from evo.plan import LaunchPlan
from evo.records import Deviation, Status, Values

SCHEMA = "evo.certificate/1"

Pairs = tuple[tuple[float, float], ...]  # (candidate_us, opponent_us)


@dataclass(frozen=True, slots=True)
class Opponent:
    """Whom a case was timed against. Of a genome file, `version` is a hash of its source."""

    name: str
    version: str
    configuration: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times in microseconds; `ratio` is opponent over candidate with its interval at `level`, over all sessions."""

    time_us: float
    opponent_us: float
    ratio: float
    low: float
    high: float
    level: float
    pairs: int
    light_us: float  # roofline at the device's measured copy rate; 0 unknown
    method: str
    clocks: Mapping[str, float]
    samples: tuple[Pairs, ...]  # one a session
    opponent_rms: float = 0.0  # the opponent's own relative RMS error; 0 unknown


@dataclass(frozen=True, slots=True)
class CertifiedCase:
    """One case. `status` ok has everything; others say in `why` what is missing; `not_measured`: not asked for."""

    case: str
    group: Literal["tune", "holdout"]
    status: Status | Literal["not_measured"]
    why: str = ""
    code_hash: str = ""  # of the machine code
    machine_id: str = ""
    plan: LaunchPlan | None = None
    opponent: Opponent | None = None
    deviation: Deviation | None = None  # from the oracle, which stands for the float64 reference at this size
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """One build: facts of its machine code, and what the compiler said of each kernel."""

    code_hash: str
    key: str
    options: Mapping[str, bool | int | str]
    kernels: tuple[Mapping[str, int | str], ...]  # name, registers, spill_bytes, stack_bytes, shared_bytes


@dataclass(frozen=True, slots=True)
class Device:
    """`facts`: what else could be told, such as uuid and ECC mode."""

    name: str
    target: str
    arch: str
    sms: int
    memory_bytes: int
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Genome:
    """The candidate: its whole source and the values of its genes."""

    id: str
    species: str
    suffix: str
    source: str
    source_hash: str  # SHA-256 of the text
    values: Values


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the tune cases; geometric mean, smallest and largest ratio are over the ok ones (0 where there is none)."""

    cases: int
    covered: int
    uncovered: int
    failed: int
    not_measured: int
    losses: int  # whole interval below 1
    geomean: float
    smallest: float
    largest: float


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A time that an opponent was seen to take by the same protocol on such a device, not measured here."""

    opponent: str
    case: str
    time_us: float
    provenance: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """`digest` is the SHA-256 of the canonical JSON of all the rest."""

    schema: str
    created: str  # UTC, ISO 8601
    command: str
    operator: str
    operator_version: str
    operator_hash: str
    evaluator_hash: str
    target: str
    device: Device
    toolchain: str
    versions: Mapping[str, str]
    protocol: str
    sessions: int
    pairs: int  # of a session
    candidate: Genome
    code: tuple[Code, ...]
    checks: Mapping[str, Deviation]  # of small check cases, from the float64 reference itself
    cases: tuple[CertifiedCase, ...]
    summary: Summary
    sanitizer: tuple[str, ...] | None = None  # findings; None: no sanitizer was run
    digest: str = ""
    recorded: tuple[Elsewhere, ...] = ()  # for comparison; part of no number of this certificate


class Outcome(StrEnum):
    """Of a case, and of a whole replay."""

    HOLDS = "holds"
    FAILS = "does not hold"
    INCOMPARABLE = "cannot be compared"


@dataclass(frozen=True, slots=True)
class ReplayedCase:
    """The certificate's numbers beside the new ones; zeros where nothing was measured."""

    case: str
    outcome: Outcome
    why: str
    opponent: str
    was_us: float
    was: tuple[float, float, float]  # ratio, low, high
    time_us: float = 0.0
    now: tuple[float, float, float] = (0.0, 0.0, 0.0)
    same_code: bool | None = None  # whether the new machine code is the certificate's; None: not known


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a certificate. `reasons`: what keeps all of it from being compared."""

    outcome: Outcome
    certificate: str  # digest
    operator: str
    candidate: str
    protocol: str
    was_on: str
    now_on: str  # "" where nothing was measured
    cases: tuple[ReplayedCase, ...]
    reasons: tuple[str, ...] = ()


def canonical(data: Any) -> bytes:
    """JSON with sorted keys and no blanks; raises `ValueError` on NaN and infinities."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def content_digest(data: Mapping[str, Any]) -> str:
    """Of a certificate as plain data, without its own digest."""
    return sha256(canonical({name: value for name, value in data.items() if name != "digest"})).hexdigest()

"""What crosses the process boundary: tasks go to workers, outcomes come back. JSON-able; code travels by blob name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from evo.operator import Case
from evo.records import Build, CaseResult, CompileRequest, Diagnosis, Stage, Status, Values


@dataclass(frozen=True, slots=True)
class BuildTask:
    id: str
    target: str
    request: CompileRequest
    examine: bool = False  # count opcodes too
    limit_s: float = 60.0
    kind: Literal["build"] = "build"


@dataclass(frozen=True, slots=True)
class Subject:
    """A candidate as a worker needs it; `builds` maps every case (and neighbour) name to its build's key in `code`."""

    operator: str
    target: str
    suffix: str
    source: str
    values: Values
    builds: Mapping[str, str]
    code: Mapping[str, Build]


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Checks the cases, their neighbours, and `drawn` cases, which no list has. `seed` is secret: drawn fresh by the
    run, never shown to a candidate."""

    id: str
    subject: Subject
    cases: tuple[str, ...]
    seed: int
    drawn: tuple[Case, ...] = ()
    limit_s: float = 20.0  # between two signs of life
    kind: Literal["check"] = "check"


@dataclass(frozen=True, slots=True)
class TimeTask:
    """Times checked cases, each against its yardstick.

    `rivals` holds the incumbent's ratio by case (racing stops once the candidate is surely behind it); fixed: take
    exactly `pairs_max` pairs and do not stop early.
    """

    id: str
    subject: Subject
    cases: tuple[str, ...]
    yardsticks: Mapping[str, str]
    seed: int
    rivals: Mapping[str, float] = field(default_factory=dict)
    fixed: bool = False
    pairs_min: int = 8
    pairs_max: int = 60
    seconds_max: float = 0.0  # of a case's race, once it has `pairs_min`; 0: no limit
    protocol: str = ""  # the target's default
    limit_s: float = 20.0
    kind: Literal["time"] = "time"


@dataclass(frozen=True, slots=True)
class CalibrateTask:
    """First task of every worker: hands over the oracle and the genome-file opponents, by name. The worker proves its
    device first (see `evo.fitness.proof`); `free_bytes` is the memory that must be free, as of the first proof.

    `measure`: also check the oracle against float64, and check and time the baselines and opponents that `names` names,
    all where it is None (a worker that replaces a dead one need not).
    """

    id: str
    operator: str
    target: str
    device: str
    cases: tuple[str, ...]
    oracle: Subject | None
    opponents: Mapping[str, Subject]
    seed: int
    measure: bool = True
    names: tuple[str, ...] | None = None
    protocol: str = ""  # that the yardsticks are chosen under
    free_bytes: int = 0
    limit_s: float = 120.0
    kind: Literal["calibrate"] = "calibrate"


Task = BuildTask | CheckTask | TimeTask | CalibrateTask
STAGES = {"build": Stage.BUILD, "check": Stage.CHECK, "time": Stage.TIME, "calibrate": Stage.CHECK}


@dataclass(frozen=True, slots=True)
class BaselineReport:
    """One baseline: by case its median time in microseconds and relative RMS error, or why it failed."""

    name: str
    version: str
    times_us: Mapping[str, float]
    errors: Mapping[str, float]
    failures: Mapping[str, str]
    configuration: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task. `status` is evaluator_error, crash or timeout when the worker itself was lost."""

    task: str
    status: Status
    seconds: float
    build: Build | None = None
    cases: tuple[CaseResult, ...] = ()
    baselines: tuple[BaselineReport, ...] = ()
    diagnosis: Diagnosis | None = None
    last: bool = False  # the worker has lost its device and ends after this
    free_bytes: int = 0  # calibrations: device memory that the proof found free; 0 unknown

"""What an operator is: a precise description that evo can check and time candidates against.

A third party subclasses `Operator` and registers an instance through the `evo_operators` hook.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the launch contract. `shape` holds expressions of the small language over dims and flags."""

    name: str
    role: Literal["in", "out", "inout"]
    dtypes: tuple[str, ...]
    shape: tuple[str, ...]
    optional: bool = False
    align: int = 16  # bytes that a candidate may rely on
    layout: Literal["contiguous"] = "contiguous"
    prepack: bool = False  # static weights: a re-layout of it is not timed


@dataclass(frozen=True, slots=True)
class Scalar:
    name: str
    dtype: Literal["i32", "i64", "f32", "f64"]


@dataclass(frozen=True, slots=True)
class Case:
    """One shape, dtype and data combination.

    Group `tune` is searched and reported, `check` only gates correctness, `holdout` is kept from search and prompts
    unless a user names it.
    """

    name: str
    group: Literal["tune", "check", "holdout"]
    dims: Mapping[str, int]
    dtypes: Mapping[str, str]  # of every tensor that is present
    present: frozenset[str] = frozenset()  # optional tensors that this case has
    scalars: Mapping[str, int | float] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
    distribution: str = "normal"


@dataclass(frozen=True, slots=True)
class Fill:
    """How a tensor's contents are made, on the host or on the device, from a seed.

    value = law(a, b) * 2 ** U(*row_log2), the exponent drawn once a row (last axis); then with probability
    `outlier_rate` an element is multiplied by `outlier_scale`. Laws: normal (mean a, standard deviation b), uniform
    (from a to b), constant (a).
    """

    law: Literal["normal", "uniform", "constant"] = "normal"
    a: float = 0.0
    b: float = 1.0
    row_log2: tuple[float, float] = (0.0, 0.0)
    outlier_rate: float = 0.0
    outlier_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest accepted `Deviation.rms`, `.max` and (0: not judged) `.row`."""

    rms: float
    max: float
    row: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Compulsory work of one call: bytes read, bytes written, floating-point operations."""

    bytes_read: int
    bytes_written: int
    flops: int


class Baseline(Protocol):
    """An opponent from a library that the user has installed.

    `prepare` is called once a case, in the worker process, before any timing; the callable that it returns is timed.
    It gets every present tensor by name as an object with `__dlpack__` (numpy arrays on the CPU target) and the raw
    CUDA stream handle (0 on the CPU), writes the outputs in place or returns them by name, and must not allocate
    device memory by other means than its own caching allocator. May raise anything: a baseline that fails a case is
    listed as failed there.
    """

    name: str

    def missing(self) -> str:
        """ "" when usable here, else what to install."""
        ...

    def version(self) -> str: ...

    def configuration(self, case: Case) -> str:
        """How it is called for this case, for the record."""
        ...

    def prepare(self, case: Case) -> Callable[[Mapping[str, Any], int], Mapping[str, Any] | None]: ...


class Operator(ABC):
    """The launch contract, its cases and its truth. Instances are stateless and safe to share between processes."""

    name: str
    version: str = "1"
    summary: str = ""
    dims: tuple[str, ...]
    flags: tuple[str, ...] = ()
    tensors: tuple[Tensor, ...]
    scalars: tuple[Scalar, ...] = ()
    deterministic: bool = True  # two calls on the same inputs give the same bits
    numerics: tuple[str, ...] = ("accurate",)
    distributions: tuple[str, ...] = ("normal",)

    @abstractmethod
    def cases(self, target: str) -> tuple[Case, ...]:
        """All cases for a target ("cpu", "sm_90", ...), names unique."""

    @abstractmethod
    def neighbours(self, case: Case) -> tuple[Case, ...]:
        """Small cases (group `check`) that share the case's likely static dimensions and dtypes, so that they need no
        build of their own; small enough for `reference`."""

    @abstractmethod
    def inputs(
        self, case: Case, rng: np.random.Generator, distribution: str
    ) -> Mapping[str, Fill | np.ndarray[Any, Any]]:
        """Contents for every present `in` and `inout` tensor: arrays (of the case's dtype) where structure matters,
        fills where the device may make them."""

    @abstractmethod
    def reference(
        self, inputs: Mapping[str, np.ndarray[Any, Any]], case: Case
    ) -> Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """Every present output in float64, unrounded."""

    @abstractmethod
    def tolerance(self, case: Case) -> Tolerance: ...

    @abstractmethod
    def cost(self, case: Case) -> Cost: ...

    @abstractmethod
    def seeds(self, target: str) -> tuple[Path, ...]:
        """Genome files to start from; the first is the plain one."""

    @abstractmethod
    def oracle(self, target: str) -> Path | None:
        """A trusted genome file for any legal shape, itself checked against `reference`."""

    def baselines(self, target: str) -> Sequence[Baseline]:
        return ()

    def genome_baselines(self, target: str) -> Mapping[str, Path]:
        """Genome files that serve as baselines, by name, with default genes (say, a plain loop)."""
        return {}

    def notes(self) -> str:
        """Markdown for engineers and agents: what was tried, predicted and seen."""
        return ""

"""What an operator is: a precise description that evo can check and time candidates against.

A third party subclasses `Operator` and registers an instance through the `evo_operators` hook.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from evo.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from evo.records import Kernel, Values


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
    data: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # what shapes the contents: sequence lengths, say
    distribution: str = "normal"


ROW_KINDS = (
    "plain",  # as the law draws it
    "zeros",
    "constant",  # one drawn value everywhere
    "tiny", "huge",  # the law times a power of two
    "heavy",  # Student's t with two degrees of freedom, cut at 2**14
    "outlier",  # one element of this value
    "first", "last",  # zero but for one element
    "alternating",  # +3, -3
    "subnormal",  # numbers below the least normal one of the type
    "nan",  # one element is NaN
    "inf",  # one element is infinite
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fill:
    """How a tensor's contents are made, on the host or on the device, from a seed.

    value = law(a, b) * 2 ** U(*row_log2), the exponent drawn once a row (last axis); then with probability
    `outlier_rate` an element is multiplied by `outlier_scale`. Laws: normal (mean a, standard deviation b), uniform
    (from a to b), constant (a).

    With `kinds` (names of `ROW_KINDS`) rows of several kinds lie side by side, dealt in turn in an order that the seed
    gives; then `row_log2` holds the exponents of the tiny and the huge rows, and `outlier_scale` is the outlier.
    """

    law: Literal["normal", "uniform", "constant"] = "normal"
    a: float = 0.0
    b: float = 1.0
    row_log2: tuple[float, float] = (0.0, 0.0)
    outlier_rate: float = 0.0
    outlier_scale: float = 1.0
    kinds: tuple[str, ...] = ()

    def deal(self, seed: int) -> tuple[int, int]:
        """(stride, shift): row r is of kind `kinds[(r * stride + shift) % len(kinds)]`."""
        count = len(self.kinds)
        strides = [n for n in range(1, count + 1) if gcd(n, count) == 1]
        return strides[seed % len(strides)], seed // len(strides) % count


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest accepted `Deviation.rms`, `.max` and (0: not judged) `.row`.

    A row's errors are scaled by the row's own size, but by no less than `row_floor` times the tensor's: where rows
    cancel to almost nothing, their relative error says nothing.
    """

    rms: float
    max: float
    row: float = 0.0
    row_floor: float = 0.0


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
    listed as failed there. One with an attribute `on_request = True` is measured only where it is named.
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


@dataclass(frozen=True, slots=True)
class Recorded:
    """A time that an opponent was once seen to take, by its own protocol. Shown beside results, never part of one."""

    case: str
    opponent: str  # name and version
    protocol: str
    time_us: float
    provenance: str  # device, driver, versions, date


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

    def validate(self, case: Case) -> None:
        """Raises `UsageError` for a case that the contract does not allow. Operators add what is special to them."""
        check_case(self, case)

    @abstractmethod
    def neighbours(self, case: Case) -> tuple[Case, ...]:
        """Small cases (group `check`) that share the case's likely static dimensions and dtypes, so that they need no
        build of their own; small enough for `reference`."""

    def drawn_near(self, case: Case, rng: np.random.Generator) -> tuple[Case, ...]:
        """Like `neighbours`, but drawn anew for every check, so that no candidate can be fitted to them: other sizes of
        the declared domain, its edges included. Those whose static dimensions differ are left out for genomes that have
        these compiled in."""
        return ()

    def drawn(self, cases: Sequence[Case], rng: np.random.Generator) -> tuple[Case, ...]:
        """Small cases (group `check`, names of their own) drawn anew for every candidate from the domain of `cases`,
        with dtypes and optional tensors as some of these have them. Each may cost a build, so there should be few."""
        return ()

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

    def output_tolerance(self, case: Case, output: str) -> Tolerance:
        """Of one output, where they differ (a sum over many rows, say)."""
        return self.tolerance(case)

    @abstractmethod
    def cost(self, case: Case) -> Cost: ...

    def niche(self, species: str, values: Values, kernels: Sequence[Kernel]) -> str:
        """A candidate's niche by its behaviour: elites of every niche live on in later runs. "": evo's own, which is
        species, load path, synchronisation and resource class."""
        return ""

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

    def recorded(self, target: str) -> Sequence[Recorded]:
        """What opponents took elsewhere, also those that cannot be installed."""
        return ()

    def notes(self) -> str:
        """Markdown for engineers and agents: what was tried, predicted and seen."""
        return ""


def check_case(operator: Operator, case: Case) -> None:
    """What every operator asks of a case: names, sizes and element types fit. Raises `UsageError`."""

    def wrong(what: str, fix: str) -> UsageError:
        return UsageError(f"case {case.name!r} of {operator.name}: {what}", fix=fix)

    if set(case.dims) != set(operator.dims):
        raise wrong(f"its dimensions are {sorted(case.dims)}", f"give {', '.join(operator.dims)}")
    for name, size in case.dims.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise wrong(f"{name} is {size!r}", "sizes are integers from 1 on")
    optional = {tensor.name for tensor in operator.tensors if tensor.optional}
    if strange := case.present - optional:
        raise wrong(f"{min(strange)!r} is no optional tensor", f"there are: {', '.join(sorted(optional)) or 'none'}")
    there = [tensor for tensor in operator.tensors if not tensor.optional or tensor.name in case.present]
    if unequal := set(case.dtypes) ^ {tensor.name for tensor in there}:
        raise wrong(f"{min(unequal)!r} has an element type or is there, not both", "give one for every present tensor")
    for tensor in there:
        if case.dtypes[tensor.name] not in tensor.dtypes:
            raise wrong(f"{tensor.name} is {case.dtypes[tensor.name]}", f"it may be {', '.join(tensor.dtypes)}")
    if set(case.scalars) != {scalar.name for scalar in operator.scalars}:
        raise wrong(
            f"its scalars are {sorted(case.scalars)}", f"give {', '.join(s.name for s in operator.scalars) or 'none'}"
        )
    if unknown := set(case.flags) - set(operator.flags):
        raise wrong(f"{min(unknown)!r} is no flag", f"there are: {', '.join(operator.flags) or 'none'}")
    if operator.distributions and case.distribution not in operator.distributions:
        raise wrong(f"no distribution {case.distribution!r}", f"there are: {', '.join(operator.distributions)}")

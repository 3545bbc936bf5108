"""What the names in a header's expressions stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evo.dtypes import ITEMSIZE
from evo.errors import GenomeError
from evo.genome.places import Term
from evo.genome.tables import Table
from evo.operator import Case, Operator, Tensor
from evo.records import DeviceFacts, Value, Values

if TYPE_CHECKING:
    from evo.genome.genome import Genome


@dataclass(frozen=True, slots=True, eq=False)
class Let:
    """A derived integer; `leaves` are the names that it depends on in the end, through other lets too."""

    term: Term
    leaves: frozenset[str]


def read_lets(table: Table) -> dict[str, Let]:
    """The lets in file order. Raises `GenomeError` for one that uses itself or a later one."""
    lets: dict[str, Let] = {}
    for name in table.data:
        term = table.term(name)
        for used in term.names:
            if used in table.data and used not in lets:
                raise term.error(f"{used} is defined only below", fix="put it above: a let may use earlier ones")
        leaves = (lets[used].leaves if used in lets else frozenset({used}) for used in term.names)
        lets[name] = Let(term, frozenset().union(*leaves))
    return lets


class Scope(dict[str, Value]):
    """Given names plus every let that they suffice for. A let that fails does so where it is used, not before."""

    def __init__(self, given: Mapping[str, Value], lets: Mapping[str, Let]) -> None:
        super().__init__(given)
        self.failures: dict[str, GenomeError] = {}
        available = given.keys()
        for name, let in lets.items():
            if let.leaves <= available:
                try:
                    self[name] = let.term.integer(self)
                except GenomeError as error:
                    self.failures[name] = error

    def __missing__(self, name: str) -> Value:
        if name in self.failures:
            raise self.failures[name]
        raise KeyError(name)


def dtype_of(tensor: Tensor, case: Case) -> str:
    """The tensor's element type in a case; the first legal one where the case lacks the tensor."""
    return case.dtypes.get(tensor.name, tensor.dtypes[0])


def shape_names(operator: Operator, case: Case) -> dict[str, Value]:
    """Dimensions and flags: what the shapes of tensors are written in."""
    names: dict[str, Value] = {dim: int(case.dims[dim]) for dim in operator.dims}
    names.update({flag: int(case.flags.get(flag, False)) for flag in operator.flags})
    return names


def case_names(operator: Operator, case: Case) -> dict[str, Value]:
    """All that a case gives names to: dimensions, flags, `has_x`, `itemsize_x`, `dtype_x`."""
    names = shape_names(operator, case)
    for tensor in operator.tensors:
        dtype = dtype_of(tensor, case)
        names[f"dtype_{tensor.name}"] = dtype
        names[f"itemsize_{tensor.name}"] = ITEMSIZE[dtype]
        if tensor.optional:
            names[f"has_{tensor.name}"] = int(tensor.name in case.present)
    return names


def vocabulary(operator: Operator) -> frozenset[str]:
    """The names of `case_names`, for any case."""
    names = {*operator.dims, *operator.flags}
    for tensor in operator.tensors:
        names |= {f"dtype_{tensor.name}", f"itemsize_{tensor.name}"}
        if tensor.optional:
            names.add(f"has_{tensor.name}")
    return frozenset(names)


def gene_scope(genome: Genome, values: Values, facts: DeviceFacts) -> Scope:
    """Genes and device: what decides whether gene values are legal at all."""
    return Scope({**genome.values(values), **facts.names()}, genome.lets)


def case_scope(genome: Genome, operator: Operator, case: Case, values: Values, facts: DeviceFacts) -> Scope:
    """Every name that an expression of the header may use, for one case."""
    return Scope({**genome.values(values), **facts.names(), **case_names(operator, case)}, genome.lets)


def holding(names: Iterable[str], scope: Scope) -> str:
    """The names with their values, for a message."""
    return ", ".join(f"{name} = {scope[name]!r}" for name in sorted(names) if name in scope)

"""Whether a header fits its operator: everything that can be said before a case or a gene value is known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from evo.dtypes import ITEMSIZE
from evo.genome.genes import DEVICE_NAMES, abridged
from evo.genome.launches import ArgumentSpec
from evo.genome.names import all_terms, declared
from evo.genome.places import Term
from evo.genome.scope import vocabulary
from evo.operator import Operator

if TYPE_CHECKING:
    from evo.genome.genome import Genome


def check_contract(genome: Genome, operator: Operator) -> None:
    """Raises `GenomeError` for the first thing that does not fit."""
    if genome.operator != operator.name:
        raise genome.place("operator").error(
            f"this genome is for another operator than {operator.name!r}", genome.operator, "use it with that one"
        )
    for index, dim in enumerate(genome.static):
        if dim not in operator.dims:
            raise genome.header.place(("static", index), dim).error(
                f"{operator.name} has no such dimension", dim, f"it has {', '.join(operator.dims)}"
            )
    _check_declared(genome, operator)
    _check_expressions(genome, operator)
    _check_maps(genome, operator)
    for launch in genome.launches:
        for argument in launch.args:
            _check_argument(genome, operator, argument)
    _check_outputs(genome, operator)


def _check_declared(genome: Genome, operator: Operator) -> None:
    taken = vocabulary(operator) | {tensor.name for tensor in operator.tensors} | _scalars(operator)
    for name, place, kind in declared(genome):
        if name in taken:
            raise place.error(f"is a name of operator {operator.name}, not free for {kind}", name, "rename it")


def _scalars(operator: Operator) -> set[str]:
    return {scalar.name for scalar in operator.scalars}


def _check_expressions(genome: Genome, operator: Operator) -> None:
    known = vocabulary(operator) | genome.genes.keys() | genome.lets.keys() | set(DEVICE_NAMES)
    scalars = _scalars(operator)
    arguments = {id(argument.term): argument for launch in genome.launches for argument in launch.args}
    dtypes = {f"dtype_{tensor.name}" for tensor in operator.tensors}
    for term, repeated in all_terms(genome):
        argument = arguments.get(id(term))
        if argument is not None and argument.name in scalars:
            continue
        for name in sorted(term.names - known):
            if name != "ITER" or not repeated:
                raise _unknown_name(term, name, known | {"ITER"} if repeated else known, scalars)
        for equality in term.expression.equalities:
            if equality.name in dtypes and equality.literal not in ITEMSIZE:
                raise term.error(f"{equality.literal!r} is no element type", fix=f"there are {', '.join(ITEMSIZE)}")


def _unknown_name(term: Term, name: str, known: Iterable[str], scalars: set[str]) -> Exception:
    if name == "ITER":
        return term.error("ITER outside of a repeated launch", fix="add repeat to the launch, or leave ITER out")
    if name in scalars:
        return term.error(f"{name} is a scalar, of no use in expressions", fix=f'pass it: args = [..., "{name}"]')
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known here: {', '.join(sorted(known))}"
    column = term.expression.text.find(name) + 1
    return term.error(f"unknown name {name!r} at column {column}", fix=hint)


def _check_maps(genome: Genome, operator: Operator) -> None:
    tensors = {tensor.name for tensor in operator.tensors}
    for spec in genome.tensor_maps.values():
        if spec.tensor not in tensors and spec.tensor not in genome.scratch:
            place = genome.place("tensor_maps", spec.name, "tensor")
            raise place.error(
                "no such tensor or scratch", spec.tensor, f"there are {abridged(sorted(tensors | set(genome.scratch)))}"
            )


def _check_argument(genome: Genome, operator: Operator, argument: ArgumentSpec) -> None:
    if argument.term is not None:
        return  # its names were checked with all expressions
    optional = {tensor.name: tensor.optional for tensor in operator.tensors}
    optional.update({spec.name: optional.get(spec.tensor, False) for spec in genome.tensor_maps.values()})
    optional.update({name: False for name in (*genome.scratch, *_scalars(operator))})
    if argument.name not in optional:
        near = difflib.get_close_matches(argument.name, list(optional), n=1)
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else f'there are {", ".join(optional)}; integers as "i32:{argument.name}"'
        )
        raise argument.place.error("no such tensor, scratch, tensor map or scalar", argument.text, hint)
    if argument.optional and not optional[argument.name]:
        raise argument.place.error("is never absent", argument.text, f"write {argument.name!r} with no question mark")


def _check_outputs(genome: Genome, operator: Operator) -> None:
    """An output that no launch gets would fail every check, after a build and a run."""
    passed = {argument.name for launch in genome.launches for argument in launch.args if argument.term is None}
    passed |= {spec.tensor for spec in genome.tensor_maps.values() if spec.name in passed}
    for tensor in operator.tensors:
        if tensor.role != "in" and not tensor.optional and tensor.name not in passed:
            raise genome.launches[-1].place.error(
                f"no launch gets the {tensor.role} tensor {tensor.name!r}", fix=f'add "{tensor.name}" to args'
            )

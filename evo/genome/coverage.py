"""Which gene values are legal, and which cases a candidate claims."""

from __future__ import annotations

from evo.errors import GenomeError
from evo.genome.genes import DEVICE_NAMES
from evo.genome.genome import Genome
from evo.genome.launches import LaunchSpec
from evo.genome.places import Term
from evo.genome.scope import Scope, case_scope, gene_scope, holding
from evo.operator import Case, Operator
from evo.records import DeviceFacts, Values


def objection(genome: Genome, values: Values, facts: DeviceFacts) -> str:
    """The first constraint on genes and device alone that fails (the genome is invalid with these values), or "".

    Raises `GenomeError` for an unknown gene or an illegal value.
    """
    scope = gene_scope(genome, values, facts)
    for term in genome.constraints:
        if _is_about_genes(genome, term) and (failure := _failure(genome, term, scope)):
            return failure
    return ""


def uncovered(genome: Genome, operator: Operator, case: Case, values: Values, facts: DeviceFacts) -> str:
    """Why the candidate does not cover the case: a constraint on dimensions, element types, presence or flags
    that fails, an optional tensor that it needs and the case lacks, or one that the case has and no kernel takes; ""
    when it does.

    Raises `GenomeError` for an unknown gene or name and for an illegal value.
    """
    scope = case_scope(genome, operator, case, values, facts)
    for term in genome.constraints:
        if not _is_about_genes(genome, term) and (failure := _failure(genome, term, scope)):
            return failure
    running = [launch for launch in genome.launches if _runs(launch, scope)]
    if not running:
        return "no launch has a `when` that holds"
    absent = {tensor.name for tensor in operator.tensors if tensor.optional} - case.present
    if absent:
        for launch in running:
            if needed := [name for name in _needed(genome, launch) if name in absent]:
                return f"kernel {launch.kernel} needs the optional tensor {needed[0]!r}"
    taken = {name for launch in running for name in _tensors(genome, launch)}
    if ignored := [tensor.name for tensor in operator.tensors if tensor.name in case.present - taken]:
        return f"no kernel takes the optional tensor {ignored[0]!r}, which the case has"
    return ""


def _is_about_genes(genome: Genome, term: Term) -> bool:
    return all(name in genome.genes or name in DEVICE_NAMES for name in genome.leaves(term.names))


def _failure(genome: Genome, term: Term, scope: Scope) -> str:
    """Why a constraint does not hold; one that cannot be evaluated (a division by zero) does not hold either."""
    unknown = genome.leaves(term.names) - scope.keys()
    if unknown:
        raise term.error(f"unknown name {min(unknown)!r}", fix="check the header against the operator")
    try:
        if term.integer(scope):
            return ""
    except GenomeError as error:
        return f"constraint {term.expression.text!r} cannot be evaluated: {error.reason}"
    return f"constraint {term.expression.text!r} does not hold: {holding(term.names, scope)}"


def _needed(genome: Genome, launch: LaunchSpec) -> list[str]:
    """The tensors that a launch passes without a question mark, directly or as a map."""
    return _tensors(genome, launch, needed=True)


def _tensors(genome: Genome, launch: LaunchSpec, *, needed: bool = False) -> list[str]:
    """The tensors that a launch passes, directly or as a map; `needed`: without those that may be absent."""
    given = (argument for argument in launch.args if argument.term is None and not (needed and argument.optional))
    names = [argument.name for argument in given]
    return [genome.tensor_maps[name].tensor if name in genome.tensor_maps else name for name in names]


def _runs(launch: LaunchSpec, scope: Scope) -> bool:
    try:
        return launch.when is None or bool(launch.when.integer(scope))
    except GenomeError:
        return True  # resolve_plan reports it, with the line

"""Names of a header among themselves: legal, used once, and texts compared only with what they can be."""

from __future__ import annotations

import difflib
import keyword
from collections.abc import Iterator
from typing import TYPE_CHECKING

from evo.genome.closures import FUNCTIONS
from evo.genome.genes import RESERVED, abridged
from evo.genome.places import Place, Term
from evo.genome.tables import IDENTIFIER

if TYPE_CHECKING:
    from evo.genome.genome import Genome


def check_names(genome: Genome) -> None:
    """Raises `GenomeError` for what is wrong whatever the operator is."""
    taken: dict[str, str] = {name: "a gene" for name in genome.genes}
    for name, place, kind in declared(genome):
        if kind == "a gene":
            continue
        if not IDENTIFIER.fullmatch(name) or keyword.iskeyword(name) or name in FUNCTIONS or name in RESERVED:
            raise place.error(f"is not a name for {kind}", name, "letters, digits and _, no word of the language")
        if name in taken:
            raise place.error(f"is already {taken[name]}", name, "rename one: every name stands for one thing")
        taken[name] = kind
    for term in (genome.fmad, genome.ftz, genome.maxrregcount):
        for name in sorted(term.names - genome.genes.keys()):
            raise term.error(f"{name} is not a gene", fix="build options may depend on genes only")
    for spec in genome.tensor_maps.values():
        if spec.tensor in genome.tensor_maps:
            raise spec.place.error("maps another map", spec.tensor, "name a tensor or a scratch")
    for term, _ in all_terms(genome):
        _check_gene_texts(genome, term)


def declared(genome: Genome) -> Iterator[tuple[str, Place, str]]:
    """Every name that the header declares, with its place and what it is."""
    for name, gene in genome.genes.items():
        yield name, gene.place, "a gene"
    for name, let in genome.lets.items():
        yield name, let.term.place, "a let"
    for name, scratch in genome.scratch.items():
        yield name, scratch.place, "a scratch"
    for name, spec in genome.tensor_maps.items():
        yield name, spec.place, "a tensor map"


def all_terms(genome: Genome) -> Iterator[tuple[Term, bool]]:
    """Every expression of the header, and whether it may name ITER. Scalar names in typed arguments are left out."""
    yield from ((let.term, False) for let in genome.lets.values())
    yield from ((term, False) for term in genome.constraints)
    for launch in genome.launches:
        yield from ((term, False) for term in launch.single_terms())
        yield from ((term, launch.repeat is not None) for term in launch.repeated_terms())
    for scratch in genome.scratch.values():
        yield from ((term, False) for term in scratch.terms())
    for spec in genome.tensor_maps.values():
        yield from ((term, False) for term in spec.terms())


def _check_gene_texts(genome: Genome, term: Term) -> None:
    """A gene compared with a text that it never is would make a silent constant."""
    for equality in term.expression.equalities:
        gene = genome.genes.get(equality.name)
        if gene is not None and equality.literal not in gene.choices:
            near = difflib.get_close_matches(equality.literal, [str(choice) for choice in gene.choices], n=1)
            raise term.error(
                f"{gene.name} is never {equality.literal!r}, compared at column {equality.column}",
                fix=f"did you mean {near[0]!r}?" if near else f"it is one of {abridged(gene.choices)}",
            )

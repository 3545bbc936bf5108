"""Edits that worked once, made again on another parent."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from evo.archive.memory import Procedure
from evo.errors import GenomeError
from evo.genome import Genome
from evo.mutators.base import Draft, Parent
from evo.records import Candidate, Value

CONTEXT = 2  # lines on both sides by which a hunk finds its place


def replay(procedure: Procedure, parent: Parent, find: Callable[[str], Candidate]) -> Draft | None:
    """The parent with the procedure's edits; None where one of its source hunks has no single place there, the result
    is no genome, or nothing changes.

    Genes that the parent's genome lacks, or that do not offer the value, are left alone. `find` looks candidates up.
    """
    genome, values = parent.genome, dict(parent.values)
    for step in procedure.steps:
        if step.rewritten:
            source = patched(genome.canonical, find(step.parent).source, find(step.child).source)
            if source is None:
                return None
            try:
                genome = Genome.parse(source, genome.suffix)
            except GenomeError:
                return None
        values = _applied(genome, values, {name: after for name, (_, after) in step.genes.items()})
    if genome is parent.genome and values == dict(parent.values):
        return None
    return Draft(
        genome.canonical, genome.suffix, values, (parent.candidate,), f"replay of {len(procedure.steps)} edits"
    )


def patched(text: str, before: str, after: str) -> str | None:
    """`text` with the change from `before` to `after`; None where a hunk fits nowhere, or in several places."""
    old, new = before.splitlines(True), after.splitlines(True)
    for tag, i, j, a, b in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        lead, tail = "".join(old[max(0, i - CONTEXT) : i]), "".join(old[j : j + CONTEXT])
        place = lead + "".join(old[i:j]) + tail
        if text.count(place) != 1:
            return None
        text = text.replace(place, lead + "".join(new[a:b]) + tail)
    return text


def _applied(genome: Genome, values: Mapping[str, Value], wanted: Mapping[str, Value | None]) -> dict[str, Value]:
    """Legal values for every gene: the wanted ones, else those before, else the defaults."""
    result = genome.defaults()
    for source in (values, wanted):
        for name, value in source.items():
            if value is not None and name in genome.genes and value in genome.genes[name].choices:
                result[name] = value
    return result

"""What can be read out of an answer beside source: a list in JSON, a verdict, an idea."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from evo.errors import GenomeError
from evo.genome import Genome, objection, resolve_plan, uncovered
from evo.mutators.agents.edits import EditError
from evo.mutators.agents.fence import clean
from evo.mutators.base import Parent
from evo.operator import Case, Operator
from evo.records import DeviceFacts, Value

LONGEST = 200_000  # characters of an answer in which a list is looked for
_MARKS = re.compile(r"\s*(```|~~~|<<<<<|/\*)")


def find_list(text: str) -> list[Any]:
    """The first JSON list that the text holds whole; [] where there is none."""
    text, decoder = text[:LONGEST], json.JSONDecoder()
    for at in [match.start() for match in re.finditer(r"\[", text)][:50]:
        try:
            found, _ = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, list):
            return found
    return []


def find_idea(text: str) -> str:
    """What an answer says before its code, as one line."""
    lines: list[str] = []
    for line in clean(text[:4000].rpartition("</think>")[2]).split("\n"):
        if _MARKS.match(line):
            break
        lines.append(line)
    return " ".join(" ".join(lines).split())[:300]


def is_rejection(text: str) -> bool:
    """Whether a reviewer's answer says REJECT in its first line; anything else lets the proposal pass."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    return bool(re.match(r"[\s*#>`]*REJECT\b", first))


def keeps(text: str) -> bool:
    first = next((line for line in text.split("\n") if line.strip()), "")
    return bool(re.match(r"[\s*#>`]*KEEP\b", first))


def admit(
    source: str, parent: Parent, operator: Operator, target_arch: str, cases: tuple[Case, ...], facts: DeviceFacts
) -> tuple[Genome, dict[str, Value]]:
    """The genome of a proposed source with gene values, the parent's where they still fit.

    What is protected is enforced here: the operator's name, its contract, and what a launch may ask for. Raises
    `EditError` with what is wrong.
    """
    try:
        genome = Genome.parse(source, parent.genome.suffix)
        genome.contract(operator)
        if genome.arch and target_arch not in genome.arch:
            raise EditError(f"the header's arch is {list(genome.arch)}: this run builds for {target_arch}")
        problems: list[str] = []
        for values in _choices_of_values(genome, parent):
            problem = _problem(genome, values, operator, cases, facts)
            if not problem:
                return genome, values
            problems.append(problem)
    except GenomeError as error:
        raise EditError(str(error)[:2000]) from None
    raise EditError(problems[-1])


def _choices_of_values(genome: Genome, parent: Parent) -> list[dict[str, Value]]:
    """The parent's values where the genes still have them, and the defaults."""
    inherited = genome.defaults()
    for name, gene in genome.genes.items():
        if name in parent.values and parent.values[name] in gene.choices:
            inherited[name] = parent.values[name]
    return [inherited, genome.defaults()]


def _problem(
    genome: Genome, values: Mapping[str, Value], operator: Operator, cases: tuple[Case, ...], facts: DeviceFacts
) -> str:
    """Why no case can be tried with these values; "" when one can."""
    if why := objection(genome, values, facts):
        return why
    reasons: list[str] = []
    for case in cases:
        why = uncovered(genome, operator, case, values, facts)
        if why:
            reasons.append(f"{case.name}: {why}")
        else:
            resolve_plan(genome, operator, case, values, facts)  # raises for a launch that cannot be
    return "" if len(reasons) < len(cases) else "no case is covered; " + "; ".join(reasons[:3])

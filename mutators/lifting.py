"""Turns sites of a source into genes, and genes that no longer matter into constants. The text changes, the machine
code at the present values does not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from evo.errors import GenomeError
from evo.genome import Genome
from evo.mutators.sites import Site
from evo.records import Value

PREFIX = "TUNE"
_GENES = re.compile(r"^[ \t]*\[genes\][^\n]*\n", re.MULTILINE)
_NAMED = re.compile(r"^[ \t]*\[\[?[A-Za-z_][\w.-]*\]\]?[ \t]*(?:#[^\n]*)?$", re.MULTILINE)
_ENTRY_END = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|#[^\n]*|[\[\]{}]|\n")


def lift(genome: Genome, sites: Sequence[Site]) -> tuple[Genome, tuple[str, ...]] | None:
    """The genome with a gene for every site (of those that overlap, the first), and the genes' names. None where the
    header cannot take them."""
    chosen = apart(sites)
    names = _names(genome, chosen)
    text = genome.canonical
    for site, name in reversed(list(zip(chosen, names, strict=True))):
        text = f"{text[: site.start]}{site.before}{name}{site.after}{text[site.end :]}"
    entries = "".join(f"{name} = {json.dumps(site.choices)}\n" for site, name in zip(chosen, names, strict=True))
    lifted = _parsed(_with_entries(text, entries), genome)
    if lifted is None or any(lifted.genes.get(name) is None for name in (*genome.genes, *names)):
        return None
    return lifted, names


def apart(sites: Sequence[Site]) -> list[Site]:
    """In order; of sites that overlap the first, which is the longer one."""
    chosen: list[Site] = []
    for site in sorted(sites, key=lambda one: (one.start, -one.end)):
        if not chosen or site.start >= chosen[-1].end:
            chosen.append(site)
    return chosen


def _names(genome: Genome, sites: Sequence[Site]) -> tuple[str, ...]:
    """TUNE_ and the stem, numbered until nothing of that name is in the file."""
    taken = set(re.findall(r"\w+", genome.canonical))
    names = []
    for site in sites:
        stem = re.sub(r"\W", "", f"{PREFIX}_{site.stem}".upper())[:56]
        number = 1
        while {f"{stem}{number}", f"{stem}{number}_INDEX"} & taken:
            number += 1
        names.append(f"{stem}{number}")
        taken.add(names[-1])
    return tuple(names)


def _with_entries(text: str, entries: str) -> str:
    end = text.index("*/")
    table = _GENES.search(text, 0, end)
    if table:
        return text[: table.end()] + entries + text[table.end() :]
    first = _NAMED.search(text, 0, end)
    at = first.start() if first else end
    return f"{text[:at]}[genes]\n{entries}\n{text[at:]}"


def freeze(genome: Genome, values: Mapping[str, Value]) -> Genome | None:
    """The genome in which these genes have no other choice. None where that cannot be said without a change of the
    code: an index that the source reads, or a constraint that names another choice."""
    text = genome.canonical
    for name, value in values.items():
        gene = genome.genes[name]
        if f"{name}_INDEX" in genome.mentions and gene.index(value):
            return None
        entry = _entry(text, "genes", name)
        if entry is None:
            return None
        text = f"{text[: entry[0]]}{name} = {json.dumps([value])}{text[entry[1] :]}"
        if default := _entry(text, "default", name):
            text = f"{text[: default[0]]}{name} = {json.dumps(value)}{text[default[1] :]}"
    frozen = _parsed(text, genome)
    if frozen is None or any(frozen.genes[name].choices != (value,) for name, value in values.items()):
        return None
    return frozen


def _entry(text: str, table: str, name: str) -> tuple[int, int] | None:
    """Where `name = ...` of a table of the header stands, over however many lines, without a comment behind it."""
    end = text.index("*/")
    head = re.compile(rf"^[ \t]*\[{table}\][^\n]*\n", re.MULTILINE).search(text, 0, end)
    if head is None:
        return None
    later = _NAMED.search(text, head.end(), end)
    key = re.compile(rf"^[ \t]*{name}[ \t]*=", re.MULTILINE)
    found = key.search(text, head.end(), later.start() if later else end)
    if found is None:
        return None
    depth = 0
    for token in _ENTRY_END.finditer(text, found.end(), end):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if token[0] in "]}" and depth == 0:
            return found.start(), token.end()
        if depth == 0 and (token[0] == "\n" or token[0].startswith("#")):
            return found.start(), found.end() + len(text[found.end() : token.start()].rstrip())
    return None


def _parsed(text: str, like: Genome) -> Genome | None:
    try:
        genome = Genome.parse(text, like.suffix)
    except GenomeError:
        return None
    same = (genome.operator, genome.species, genome.static, genome.kernels)
    return genome if same == (like.operator, like.species, like.static, like.kernels) else None

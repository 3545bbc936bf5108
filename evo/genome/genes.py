"""Genes: what the genetic algorithm may change in a source, and to what."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from evo.errors import GenomeError
from evo.genome.closures import INT_MAX
from evo.genome.places import Place, shown
from evo.genome.tables import Table
from evo.records import Value

MAX_CHOICES = 65_536
MAX_TEXT = 200
DEVICE_NAMES = ("SMS", "SMEM_BLOCK", "SMEM_SM", "L2_BYTES")
RESERVED = frozenset({*DEVICE_NAMES, "ITER"})
_NAME = re.compile(r"[A-Z][A-Z0-9_]{2,63}")
_MACRO = re.compile(r"(DIM|DTYPE|HAS|FLAG|EVO)_.*")
_TEXT = re.compile(r"[ !#-&(-\[\]-~]*")  # printable ASCII but quotes and backslash: safe inside a C string literal


@dataclass(frozen=True, slots=True)
class Gene:
    """A gene and its legal values, in file order. The default is the first choice unless `[default]` says otherwise."""

    name: str
    choices: tuple[Value, ...]
    default: Value
    place: Place
    _index: dict[Value, int] = field(repr=False, compare=False)

    @property
    def ordered(self) -> bool:
        """Whether the values are integers, so that a small step from one to the next makes sense."""
        return isinstance(self.choices[0], int)

    def index(self, value: Value) -> int:
        """The position of `value` among the choices. Raises `GenomeError` when it is none of them."""
        position = self._index.get(value) if type(value) in (int, str) else None  # True and 1.0 equal 1: not meant
        if position is None:
            raise self.place.error("is not among the gene's choices", value, f"choose from {abridged(self.choices)}")
        return position


def read_genes(table: Table, defaults: Table) -> dict[str, Gene]:
    """The genes of `[genes]` with the overrides of `[default]`."""
    genes: dict[str, Gene] = {}
    for name, value in table.data.items():
        place = table.place(name)
        _check_name(name, place, genes)
        choices = _range(table, name, value) if isinstance(value, dict) else _choices(table, name, value)
        index = {choice: position for position, choice in enumerate(choices)}
        genes[name] = Gene(name, choices, choices[0], place, index)
    for name, value in defaults.data.items():
        place = defaults.place(name)
        if name not in genes:
            raise place.error("no such gene", value, f"genes here: {', '.join(genes) or 'none'}")
        gene = genes[name]
        if type(value) not in (int, str) or value not in gene._index:
            raise place.error("is not among the gene's choices", value, f"choose from {abridged(gene.choices)}")
        genes[name] = Gene(name, gene.choices, value, gene.place, gene._index)
    return genes


def abridged(items: Iterable[object]) -> str:
    """The items in one short line."""
    texts = [repr(item) for item in items]
    return ", ".join(texts) if len(texts) <= 12 else f"{', '.join(texts[:10])} ... {texts[-1]} ({len(texts)} in all)"


def _check_name(name: str, place: Place, genes: dict[str, Gene]) -> None:
    if not _NAME.fullmatch(name):
        raise place.error("is not a gene name", name, "upper-case letters, digits and _, three characters or more")
    if name in RESERVED:
        raise place.error("is a name of the language", name, "rename the gene")
    if _MACRO.fullmatch(name):
        raise place.error("starts like one of evo's own macros", name, "rename the gene")
    for other in genes:
        if f"{other}_INDEX" == name or other == f"{name}_INDEX":
            raise place.error(f"is too much like gene {other}", name, "NAME_INDEX is the macro of a text gene: rename")


def _choices(table: Table, name: str, value: object) -> tuple[Value, ...]:
    place = table.place(name)
    fix = "list integers or texts, or write { low = 0, high = 8, step = 2 }"
    if not isinstance(value, list) or not value:
        raise place.error("must be a list of choices that is not empty", value, fix)
    if len(value) > MAX_CHOICES:
        raise place.error(f"has over {MAX_CHOICES} choices", value, "leave some out")
    seen: set[Value] = set()
    for index, item in enumerate(value):
        if type(item) is not type(value[0]) or type(item) not in (int, str):
            raise table.place(name, index).error(
                "choices are all integers or all texts", item, f"{fix}; for a switch write [0, 1]"
            )
        if objection := "is there twice; remove one" if item in seen else _choice_objection(item):
            what, _, remedy = objection.partition("; ")
            raise table.place(name, index, str(shown(item))[:60]).error(what, item, remedy)
        seen.add(item)
    return tuple(value)


def _choice_objection(item: Value) -> str:
    """What is wrong with a choice and, after "; ", what to do; "" when nothing is."""
    if isinstance(item, str):
        if len(item) <= MAX_TEXT and _TEXT.fullmatch(item):
            return ""
        return f"is not a legal text; at most {MAX_TEXT} printable ASCII characters, no quotes, no backslash"
    return "" if abs(item) <= INT_MAX else "is beyond 64 bits; use a smaller integer"


def _range(table: Table, name: str, value: dict[str, object]) -> tuple[int, ...]:
    inner = Table(table.header, (*table.path, name), value, ("low", "high", "step"))
    limits = {}
    for key, default in (("low", None), ("high", None), ("step", 1)):
        number = inner.data.get(key, default)
        if type(number) is not int or abs(number) > INT_MAX:
            raise inner.place(key).error("must be an integer", number, "write { low = 0, high = 8, step = 2 }")
        limits[key] = number
    low, high, step = limits["low"], limits["high"], limits["step"]
    if step < 1 or high < low:
        raise inner.place().error("is an empty range", f"{low} to {high} by {step}", "low <= high and step >= 1")
    if (high - low) // step >= MAX_CHOICES:
        raise inner.place().error(f"has over {MAX_CHOICES} choices", f"{low} to {high} by {step}", "take a larger step")
    return tuple(range(low, high + 1, step))


def unknown_gene(name: str, genes: Iterable[str], file: str) -> GenomeError:
    known = list(genes)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"genes here: {', '.join(known) or 'none'}"
    return GenomeError("no such gene", file=file, key=name[:80], fix=hint)

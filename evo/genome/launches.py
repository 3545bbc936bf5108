"""The launch plan as the header states it: launches, arguments, scratch and tensor maps, with nothing resolved yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

from evo.dtypes import ITEMSIZE
from evo.errors import LanguageError
from evo.genome import language
from evo.genome.places import Place, Term
from evo.genome.tables import IDENTIFIER, Table

MAX_ARGUMENTS = 256

Zero = Literal["", "each", "kept"]
Swizzle = Literal["none", "32B", "64B", "128B"]
Interleave = Literal["none", "16B", "32B"]
Promotion = Literal["none", "64B", "128B", "256B"]
OutOfBounds = Literal["zero", "nan"]

LAUNCH_KEYS = (
    "kernel", "grid", "block", "shared", "cluster", "cooperative", "pdl", "when", "repeat", "args",
)  # fmt: skip
SCRATCH_KEYS = ("dtype", "shape", "align", "zero")
MAP_KEYS = (
    "tensor", "shape", "strides", "offset", "box", "element_strides", "swizzle", "interleave", "l2", "oob",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class ArgumentSpec:
    """One entry of `args`: a name, or a width with an expression or an operator scalar's name."""

    place: Place
    text: str
    name: str  # "" where only the expression counts
    optional: bool = False  # written with a question mark
    width: Literal["", "i32", "i64", "f32"] = ""
    term: Term | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LaunchSpec:
    place: Place
    kernel: str
    grid: tuple[Term, ...]
    block: tuple[Term, ...]
    cluster: tuple[Term, ...]
    shared: Term
    cooperative: Term
    pdl: Term
    when: Term | None
    repeat: Term | None
    args: tuple[ArgumentSpec, ...]

    def repeated_terms(self) -> Iterator[Term]:
        """Everything that is evaluated once a repetition, so that it may name ITER."""
        yield from (*self.grid, *self.block, *self.cluster, self.shared, self.cooperative, self.pdl)
        yield from (argument.term for argument in self.args if argument.term)

    def single_terms(self) -> Iterator[Term]:
        yield from (term for term in (self.when, self.repeat) if term)


@dataclass(frozen=True, slots=True, eq=False)
class ScratchSpec:
    place: Place
    name: str
    dtype: str
    shape: tuple[Term, ...]
    align: Term
    zero: Zero

    def terms(self) -> tuple[Term, ...]:
        return (*self.shape, self.align)


@dataclass(frozen=True, slots=True, eq=False)
class MapSpec:
    """A tensor map; empty `shape` or `strides` stand for those of the whole tensor, contiguous."""

    place: Place
    name: str
    tensor: str
    shape: tuple[Term, ...]
    strides: tuple[Term, ...]
    offset: Term
    box: tuple[Term, ...]
    element_strides: tuple[Term, ...]
    swizzle: Swizzle
    interleave: Interleave
    l2: Promotion
    oob: OutOfBounds

    def terms(self) -> tuple[Term, ...]:
        return (*self.shape, *self.strides, self.offset, *self.box, *self.element_strides)


def read_launch(table: Table) -> LaunchSpec:
    kernel = table.require("kernel", '"the_kernel"')
    if not isinstance(kernel, str) or not IDENTIFIER.fullmatch(kernel):
        raise table.place("kernel").error("is not a kernel's name", kernel, 'declare it extern "C" and give that name')
    args = table.data.get("args", [])
    if not isinstance(args, list) or len(args) > MAX_ARGUMENTS:
        raise table.place("args").error(
            f"must be a list of at most {MAX_ARGUMENTS} arguments", args, 'write args = ["x", "y", "i32:M"]'
        )
    return LaunchSpec(
        place=table.place(),
        kernel=kernel,
        grid=table.terms("grid", 1, 3),
        block=table.terms("block", 1, 3),
        cluster=table.terms("cluster", 1, 3) if "cluster" in table.data else (),
        shared=table.term("shared", 0),
        cooperative=table.term("cooperative", 0, truth=True),
        pdl=table.term("pdl", 0, truth=True),
        when=table.term("when", truth=True) if "when" in table.data else None,
        repeat=table.term("repeat") if "repeat" in table.data else None,
        args=tuple(_read_argument(table, index, arg) for index, arg in enumerate(args)),
    )


def _read_argument(table: Table, index: int, text: object) -> ArgumentSpec:
    fix = 'write "x", "x?" (null when absent), or a width with a value: "i32:M", "i64:M * N", "f32:eps"'
    place = table.place("args", index, f'"{text[:60]}"' if isinstance(text, str) else "")
    if not isinstance(text, str):
        raise place.error("must be a text", text, fix)
    head, colon, rest = text.partition(":")
    if not colon:
        name = text.removesuffix("?")
        if not IDENTIFIER.fullmatch(name):
            raise place.error("is not an argument", text, fix)
        return ArgumentSpec(place, text, name, optional=text.endswith("?"))
    if head not in ("i32", "i64", "f32"):
        raise place.error("has an unknown width", text, fix)
    try:
        term = Term(place, language.parse(rest))
    except LanguageError as error:
        raise place.error(f"{error.reason} at column {error.column + len(head) + 1}", text, error.fix) from None
    name = rest.strip() if IDENTIFIER.fullmatch(rest.strip()) else ""
    return ArgumentSpec(place, text, name, width=cast(Literal["i32", "i64", "f32"], head), term=term)


def read_scratch(name: str, table: Table) -> ScratchSpec:
    table.require("dtype", '"fp32"')
    return ScratchSpec(
        place=table.place(),
        name=name,
        dtype=table.choice("dtype", tuple(ITEMSIZE), ""),
        shape=table.terms("shape", 1, 8),
        align=table.term("align", 256),
        zero=cast(Zero, table.choice("zero", ("", "each", "kept"), "")),
    )


def read_map(name: str, table: Table) -> MapSpec:
    tensor = table.require("tensor", '"x"')
    if not isinstance(tensor, str) or not IDENTIFIER.fullmatch(tensor):
        raise table.place("tensor").error("is not the name of a tensor or a scratch", tensor, "name one")
    shape = table.terms("shape", 1, 5) if "shape" in table.data else ()
    strides = table.terms("strides", 1, 5) if "strides" in table.data else ()
    if strides and len(strides) != len(shape):
        raise table.place("strides").error("needs a shape with as many entries", len(strides), "give both")
    box = table.terms("box", 1, 5)
    steps = table.terms("element_strides", 1, 5) if "element_strides" in table.data else ()
    for key, entries in (("shape", shape), ("element_strides", steps)):
        if entries and len(entries) != len(box):
            raise table.place(key).error(f"has {len(entries)} entries, the box {len(box)}", fix="make them equal")
    return MapSpec(
        place=table.place(),
        name=name,
        tensor=tensor,
        shape=shape,
        strides=strides,
        offset=table.term("offset", 0),
        box=box,
        element_strides=steps,
        swizzle=cast(Swizzle, table.choice("swizzle", ("none", "32B", "64B", "128B"), "none")),
        interleave=cast(Interleave, table.choice("interleave", ("none", "16B", "32B"), "none")),
        l2=cast(Promotion, table.choice("l2", ("none", "64B", "128B", "256B"), "none")),
        oob=cast(OutOfBounds, table.choice("oob", ("zero", "nan"), "zero")),
    )

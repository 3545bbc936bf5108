"""A genome: one source file whose header says what the launcher needs. Parsed once, never changed."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from evo.errors import GenomeError
from evo.genome.contract import check_contract
from evo.genome.defaults import check_table
from evo.genome.genes import Gene, read_genes, unknown_gene
from evo.genome.header import MAX_SOURCE_BYTES, Header, canonical_source, read_header
from evo.genome.launches import (
    LAUNCH_KEYS,
    MAP_KEYS,
    SCRATCH_KEYS,
    LaunchSpec,
    MapSpec,
    ScratchSpec,
    read_launch,
    read_map,
    read_scratch,
)
from evo.genome.names import check_names
from evo.genome.places import Place, Term
from evo.genome.scope import Let, read_lets
from evo.genome.tables import Table
from evo.operator import Operator
from evo.records import BuildOptions, Value

SUFFIXES = (".cu", ".ptx", ".cpp")
HEADER_KEYS = (
    "operator", "species", "summary", "arch", "static", "genes", "default", "let", "constraints", "build", "launch",
    "scratch", "tensor_maps",
)  # fmt: skip
_IDENTIFIERS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLACEHOLDER = re.compile(r"\$\{([^}\n]*)\}")


@dataclass(frozen=True, eq=False)
class Genome:
    """What the header declares; `canonical` is the source text that identity is taken of.

    `body` is the source with the header blanked out (line numbers kept) and `mentions` the names that it can get
    macros for: its identifiers, in `.ptx` its `${NAME}`.
    """

    file: str
    suffix: Literal[".cu", ".ptx", ".cpp"]
    canonical: str = field(repr=False)
    body: str = field(repr=False)
    mentions: frozenset[str] = field(repr=False)
    operator: str
    species: str
    summary: str
    arch: tuple[str, ...]
    static: tuple[str, ...]
    genes: dict[str, Gene]
    lets: dict[str, Let]
    constraints: tuple[Term, ...]
    launches: tuple[LaunchSpec, ...]
    scratch: dict[str, ScratchSpec]
    tensor_maps: dict[str, MapSpec]
    header: Header = field(repr=False)
    fmad: Term = field(repr=False)
    ftz: Term = field(repr=False)
    maxrregcount: Term = field(repr=False)
    std: str = "c++17"

    @classmethod
    def parse(cls, text: str, suffix: str, *, file: str = "") -> Genome:
        """The genome in `text`. Raises `GenomeError` and nothing else, whatever the text holds."""
        return _parse(text, suffix, file)

    @classmethod
    def read(cls, path: Path) -> Genome:
        """The genome in a file. Raises `GenomeError`, also when the file cannot be read."""
        try:
            with path.open("rb") as stream:
                data = stream.read(MAX_SOURCE_BYTES + 1)
            text = data.decode()
        except OSError as error:
            raise GenomeError(f"cannot be read: {error.strerror}", file=str(path), fix="name a genome file") from None
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise GenomeError("is not UTF-8", file=str(path), line=line, fix="save it as UTF-8") from None
        if len(data) > MAX_SOURCE_BYTES:
            raise GenomeError(f"is over {MAX_SOURCE_BYTES} bytes", file=str(path), fix="shorten it")
        return cls.parse(text, path.suffix, file=str(path))

    @functools.cached_property
    def kernels(self) -> tuple[str, ...]:
        """The names of all kernels that the launch plan can look up, in order."""
        return tuple(dict.fromkeys(launch.kernel for launch in self.launches))

    def defaults(self) -> dict[str, Value]:
        return {name: gene.default for name, gene in self.genes.items()}

    def values(self, partial: Mapping[str, Value]) -> dict[str, Value]:
        """A value for every gene, the default where `partial` has none. Raises `GenomeError` for an unknown gene and
        for a value that is not among a gene's choices."""
        for name, value in partial.items():
            if name not in self.genes:
                raise unknown_gene(name, self.genes, self.file)
            self.genes[name].index(value)
        return {name: partial.get(name, gene.default) for name, gene in self.genes.items()}

    @property
    def options(self) -> BuildOptions:
        """The build options at the default gene values."""
        return self.build_options({})

    def build_options(self, values: Mapping[str, Value]) -> BuildOptions:
        scope = self.values(values)
        registers = self.maxrregcount.integer(scope)
        if not 0 <= registers <= 255:
            raise self.maxrregcount.error("must be from 0 (the compiler's choice) to 255", registers, "correct it")
        return BuildOptions(
            fmad=bool(self.fmad.integer(scope)), ftz=bool(self.ftz.integer(scope)), maxrregcount=registers, std=self.std
        )

    def contract(self, operator: Operator) -> None:
        """Raises `GenomeError` when header and operator do not fit: an unknown dimension, tensor or scalar, a name
        used twice, an output that no launch gets."""
        check_contract(self, operator)

    def place(self, *path: str | int) -> Place:
        """Where a key of the header stands."""
        return self.header.place(path)

    def leaves(self, names: Iterable[str]) -> frozenset[str]:
        """`names` with every `[let]` name replaced by what it depends on in the end."""
        found: set[str] = set()
        for name in names:
            found |= self.lets[name].leaves if name in self.lets else {name}
        return frozenset(found)


@functools.lru_cache(maxsize=256)
def _parse(text: str, suffix: str, file: str) -> Genome:
    if suffix not in SUFFIXES:
        raise GenomeError(f"unknown suffix {suffix!r}", file=file, fix=f"a genome file ends in {', '.join(SUFFIXES)}")
    canonical = canonical_source(text, file)
    header = read_header(canonical, file)
    table = Table(header, (), header.data, HEADER_KEYS)
    find = PLACEHOLDER if suffix == ".ptx" else _IDENTIFIERS
    build = table.table("build", ("fmad", "ftz", "maxrregcount", "std"))
    genome = Genome(
        file=file,
        suffix=cast(Literal[".cu", ".ptx", ".cpp"], suffix),
        canonical=canonical,
        body=header.body,
        mentions=frozenset(find.findall(header.body)),
        operator=table.word("operator"),
        species=table.word("species"),
        summary=table.string("summary"),
        arch=table.words("arch"),
        static=table.words("static"),
        genes=read_genes(table.table("genes", None), table.table("default", None)),
        lets=read_lets(table.table("let", None)),
        constraints=_read_constraints(table.table("constraints", ("all",))),
        launches=_read_launches(table),
        scratch={name: read_scratch(name, item) for name, item in table.named("scratch", SCRATCH_KEYS).items()},
        tensor_maps={name: read_map(name, item) for name, item in table.named("tensor_maps", MAP_KEYS).items()},
        header=header,
        fmad=build.term("fmad", 1, truth=True),
        ftz=build.term("ftz", 0, truth=True),
        maxrregcount=build.term("maxrregcount", 0),
        std=build.choice("std", ("c++17", "c++20"), "c++17"),
    )
    check_names(genome)
    check_table(genome)
    return genome


def _read_constraints(table: Table) -> tuple[Term, ...]:
    return table.terms("all", 0, 256) if table.data else ()


def _read_launches(table: Table) -> tuple[LaunchSpec, ...]:
    launches = tuple(read_launch(item) for item in table.listed("launch", LAUNCH_KEYS))
    if not launches:
        raise table.place("launch").error("missing", fix="add a [[launch]] with kernel, grid, block and args")
    return launches

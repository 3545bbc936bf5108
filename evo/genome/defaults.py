"""The `[default]` table of a header: where gene values stand that are not the first choices."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from evo.errors import GenomeError
from evo.genome.header import MAX_HEADER_BYTES, MAX_SOURCE_BYTES, bounds
from evo.records import Values

if TYPE_CHECKING:
    from evo.genome.genome import Genome

_TABLE = re.compile(r"^[ \t]*\[[ \t]*default[ \t]*\][ \t]*(?:#.*)?(?:\n(?![ \t]*\[).*)*$", re.MULTILINE)
_LAUNCH = re.compile(r"^[ \t]*\[\[[ \t]*[\"']?launch[\"']?[ \t]*\]\]", re.MULTILINE)
_FIX = "write it as a table: a line [default], and below it a line NAME = value for each gene"
_MOST = 8  # lines that look like the table and are parts of texts: each costs a reading of the header


def with_defaults(source: str, values: Values) -> str:
    """The text of a genome (one that `Genome.parse` takes) with its `[default]` table replaced by these values. It is
    a genome again, and with all values left out the candidate that the first one was with these."""
    if not values:
        return source
    bare = without_defaults(source)
    _, start, end = bounds(bare)
    for toml in _placed(bare[start : end - 2], _table(values)):
        text = bare[:start] + toml + bare[end - 2 :]
        if (data := _read(toml)) and data.get("default") == dict(values) and without_defaults(text) == bare:
            return text
    raise GenomeError("the header takes no [default] table", fix=_FIX)  # of no genome, as its header was read


def _placed(toml: str, table: str) -> Iterator[str]:
    """The TOML with the table at each place for it, the best first: before the launches, then at the end."""
    if match := _LAUNCH.search(toml):
        yield f"{toml[: match.start()]}{table}\n{toml[match.start() :]}"
    last = toml.rfind("\n") + 1
    if toml[last:].strip():  # the */ stands behind a key: so it does behind the table, and without it is back there
        text = toml.rstrip(" \t")
        yield f"{text}\n{table.rstrip()}{toml[len(text) :]}"
    else:
        yield toml[:last] + table + toml[last:]


def check_table(genome: Genome) -> None:
    """Raises `GenomeError` for a table that `without_defaults` cannot take out, and where one may not find room."""
    header, source = genome.header, genome.canonical
    looks = len(_TABLE.findall("\n".join(header.text)))
    if looks > _MOST:
        what = f"{looks} lines look like the table [default]"
        raise GenomeError(what, file=header.file, line=header.line, fix="write the texts that hold them in one line")
    bare = without_defaults(source)
    if "default" in header.data and bare == source:
        raise header.place(("default",)).error("cannot be replaced as it is written", fix=_FIX)
    _, start, end = bounds(bare)
    room = min(MAX_HEADER_BYTES - len(bare[start : end - 2].encode()), MAX_SOURCE_BYTES - len(bare.encode()))
    longest = {gene.name: max(gene.choices, key=lambda choice: len(str(choice))) for gene in genome.genes.values()}
    if (table := len(_table(longest)) + 1) > room:  # 1: the empty line behind it
        what = f"the header has no room for the [default] table of a winner's file: {room} bytes of {table}"
        raise GenomeError(what, file=header.file, line=header.line, fix="shorten the header or the file")


def _table(values: Values) -> str:
    return "".join(["[default]\n", *(f"{name} = {json.dumps(value)}\n" for name, value in values.items())])


@functools.lru_cache(maxsize=256)
def without_defaults(source: str) -> str:
    """The genome's text without its `[default]` table: what says the same whatever the defaults are. The text as it is
    when there is no such table, or when it cannot be taken out without a change to the rest."""
    try:
        _, start, end = bounds(source)
    except GenomeError:
        return source
    toml = source[start : end - 2]
    data = _read(toml)
    if data is None or "default" not in data:
        return source
    rest = _written({key: value for key, value in data.items() if key != "default"})
    # A line that looks like the table may be a part of a text of several lines: what is left has to say the same.
    found = (each for each in _bare(toml) if (left := _read(each)) is not None and _written(left) == rest)
    bare = next(found, None)
    return source if bare is None else source[:start] + bare + source[end - 2 :]


def _bare(toml: str) -> Iterator[str]:
    """The TOML without what looks like the table, for each place that does."""
    for _, match in zip(range(_MOST + 1), _TABLE.finditer(toml), strict=False):
        start, end = match.span()
        if end < len(toml):
            yield toml[:start] + toml[end + 1 :]
            continue
        last = toml.rfind("\n") + 1
        if toml[last:].strip():  # the */ stands behind the table's last line: now behind the line before the table
            yield toml[: start - 1] + toml[len(toml.rstrip(" \t")) :]
        else:
            yield toml[:start] + toml[last:]


def _read(toml: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(toml)
    except (ValueError, RecursionError):
        return None


def _written(data: dict[str, Any]) -> str:
    return repr(data)  # unlike ==, it tells true from 1 and 1 from 1.0, and sees the order of genes

"""The `[default]` table of a header: where gene values stand that are not the first choices."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from evo.errors import GenomeError
from evo.genome.header import bounds
from evo.records import Values

_TABLE = re.compile(r"^[ \t]*\[[ \t]*default[ \t]*\][ \t]*(?:#.*)?\n(?:(?![ \t]*\[).*\n)*", re.MULTILINE)
_LAUNCH = re.compile(r"^[ \t]*\[\[launch\]\]", re.MULTILINE)
_MOST = 8  # lines that look like the table and are parts of texts: each costs a reading of the header


def with_defaults(source: str, values: Values) -> str:
    """The genome's text with its `[default]` table replaced by these values."""
    if not values:
        return source
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    bare = without_defaults(source)
    place = _LAUNCH.search(bare)
    at = place.start() if place else bare.index("*/")
    return f"{bare[:at]}[default]\n{lines}\n{bare[at:]}"


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
    for _, match in zip(range(_MOST), _TABLE.finditer(toml), strict=False):
        yield toml[: match.start()] + toml[match.end() :]


def _read(toml: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(toml)
    except (ValueError, RecursionError):
        return None


def _written(data: dict[str, Any]) -> str:
    return repr(data)  # unlike ==, it tells true from 1 and 1 from 1.0, and sees the order of genes

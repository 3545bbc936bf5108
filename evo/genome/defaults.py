"""The `[default]` table of a header: where gene values stand that are not the first choices."""

from __future__ import annotations

import json
import re

from evo.records import Values

_TABLE = re.compile(r"^[ \t]*\[[ \t]*default[ \t]*\][ \t]*(?:#.*)?\n(?:(?![ \t]*(?:\[|\*/)).*\n)*", re.MULTILINE)
_LAUNCH = re.compile(r"^[ \t]*\[\[launch\]\]", re.MULTILINE)


def with_defaults(source: str, values: Values) -> str:
    """The genome's text with its `[default]` table replaced by these values."""
    if not values:
        return source
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    bare = without_defaults(source)
    place = _LAUNCH.search(bare)
    at = place.start() if place else bare.index("*/")
    return f"{bare[:at]}[default]\n{lines}\n{bare[at:]}"


def without_defaults(source: str) -> str:
    """The genome's text without its `[default]` table: what says the same whatever the defaults are."""
    end = source.find("*/") + 2  # of the header, the first comment of this kind
    return _TABLE.sub("", source[:end], count=1) + source[end:]

"""Text from elsewhere as it may be shown: a terminal obeys control characters, so none of them reaches one.

Notes, authors, sources, logs and archives come from models and strangers. All that evo prints passes through here.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

LAYOUT = "\n\t"


def hidden(character: str) -> bool:
    """Whether it would not be seen as itself: controls, changes of direction, halves of a pair. Wide blanks are."""
    return not character.isprintable() and unicodedata.category(character) != "Zs"


def printable(content: str) -> str:
    """What is hidden as an escape, such as \\x1b; newlines and tabs stay."""
    if content.isprintable():
        return content
    return "".join(c if c in LAYOUT or not hidden(c) else escaped(c) for c in content)


def one_line(content: str) -> str:
    """The same where the next line would be taken for another thing: newlines and tabs are escaped too."""
    return "".join(escaped(c) if hidden(c) else c for c in content)


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def json_text(data: Any) -> str:
    """Indented JSON, readable in any script; what is hidden is escaped as JSON does it, so the data stay the same."""
    written = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    return "\n".join(line if line.isprintable() else _json_escaped(line) for line in written.split("\n"))


def _json_escaped(line: str) -> str:
    return "".join(json.dumps(c)[1:-1] if hidden(c) else c for c in line)

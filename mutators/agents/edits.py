"""From an answer to a source: SEARCH/REPLACE edits or a whole file, read with patience, refused with precision.

Nothing here writes a file or follows a name: a path beside an edit is not even read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

ANSWER_CHARACTERS = 2 << 20  # a genome has 1 MiB at most
MOST_EDITS = 200

_OPEN = re.compile(r"\s*<{5,9}(?:\s*(?:SEARCH|ORIGINAL|HEAD)\b.*)?\s*", re.IGNORECASE)
_MIDDLE = re.compile(r"\s*={5,9}\s*")
_CLOSE = re.compile(r"\s*>{5,9}(?:\s*(?:REPLACE|UPDATED)\b.*)?\s*", re.IGNORECASE)
_FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*[\w+./-]*\s*")
_HEADER = re.compile(r"\s*/\*[ \t]*evo[ \t]*")
_THOUGHTS_END = ("</think>", "</thinking>")  # some models think aloud first


class EditError(Exception):
    """What is wrong with an answer, as the model can be told."""


@dataclass(frozen=True, slots=True)
class Edit:
    search: tuple[str, ...]  # lines
    replace: tuple[str, ...]


def proposed_source(answer: str, parent: str) -> str:
    """The source that an answer asks for: its edits applied to `parent`, else the last whole file that it holds.

    Raises `EditError` for an answer that holds neither, and for edits that do not fit.
    """
    if len(answer) > ANSWER_CHARACTERS:
        raise EditError(f"the answer has {len(answer)} characters; a genome has at most {1 << 20} bytes")
    for end in _THOUGHTS_END:
        answer = answer.rpartition(end)[2]
    lines = answer.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    edits = find_edits(lines)
    if edits:
        source = apply_edits(edits, parent)
    else:
        source = find_file(lines)
    if source.rstrip() == parent.rstrip():
        raise EditError("the answer changes nothing: the source is the parent's")
    return source


def find_edits(lines: Sequence[str]) -> list[Edit]:
    """All edits, in order. Raises `EditError` for one that is not closed."""
    edits: list[Edit] = []
    search: list[str] = []
    replace: list[str] = []
    part, opened = "", 0
    for number, line in enumerate(lines, 1):
        if not part:
            if _OPEN.fullmatch(line):
                search, replace, part, opened = [], [], "search", number
        elif part == "search" and _MIDDLE.fullmatch(line):
            part = "replace"
        elif part == "replace" and _CLOSE.fullmatch(line):
            edits.append(Edit(_trimmed(search), _trimmed(replace)))
            part = ""
        elif _OPEN.fullmatch(line):
            raise EditError(f"edit {len(edits) + 1} (line {opened} of the answer) is not closed before the next begins")
        else:
            (search if part == "search" else replace).append(line)
    if part:
        lacks = "=======" if part == "search" else ">>>>>>> REPLACE"
        raise EditError(f"edit {len(edits) + 1} (line {opened} of the answer) has no {lacks}")
    if len(edits) > MOST_EDITS:
        raise EditError(f"{len(edits)} edits are too many: at most {MOST_EDITS}, or the whole file")
    return edits


def _trimmed(lines: list[str]) -> tuple[str, ...]:
    """Without a fence that the model put inside the markers, and without blanks at line ends."""
    if len(lines) >= 2 and _FENCE.fullmatch(lines[0]) and _FENCE.fullmatch(lines[-1]):
        lines = lines[1:-1]
    return tuple(line.rstrip() for line in lines)


def find_file(lines: Sequence[str]) -> str:
    """The last fenced block that starts as a genome does, or the answer itself. Raises `EditError`."""
    blocks: list[list[str]] = []
    block: list[str] | None = None
    mark = ""
    for line in lines:
        fence = _FENCE.fullmatch(line)
        if block is None and fence:
            block, mark = [], fence[1]
        elif block is not None and fence and line.strip() == mark:
            blocks.append(block)
            block = None
        elif block is not None:
            block.append(line)
    if block is not None:
        blocks.append(block)  # a last fence that is missing
    for candidate in reversed(blocks):
        if _starts_with_header(candidate):
            return _joined(candidate)
    for number, line in enumerate(lines):
        if _HEADER.fullmatch(line) and not blocks:
            return _joined(lines[number:])
    raise EditError(
        "the answer holds neither SEARCH/REPLACE edits nor a whole file (which starts with a line `/* evo`)"
    )


def _starts_with_header(lines: Sequence[str]) -> bool:
    code = next((line for line in lines if line.strip() and not line.lstrip().startswith("//")), "")
    return bool(_HEADER.fullmatch(code))


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(lines).strip("\n") + "\n"


def apply_edits(edits: Sequence[Edit], parent: str) -> str:
    """Each edit replaces the one place where its SEARCH stands: as it is, else whatever the indentation.

    Raises `EditError` with the number of the edit that fits nowhere or in several places.
    """
    lines = [line.rstrip() for line in parent.rstrip("\n").split("\n")]
    for number, edit in enumerate(edits, 1):
        search = list(edit.search)
        if not any(line.strip() for line in search):
            raise EditError(f"edit {number} has an empty SEARCH: quote the lines that it replaces")
        places = _places(lines, search, exact=True) or _places(lines, search, exact=False)
        if len(places) > 1:
            found = ", ".join(str(place + 1) for place in places[:8])
            raise EditError(f"edit {number} fits {len(places)} places (lines {found}): quote more lines around it")
        if not places:
            raise EditError(f"edit {number}: {_nearest(lines, search)}")
        lines[places[0] : places[0] + len(search)] = edit.replace
    return "\n".join(lines) + "\n"


def _places(lines: Sequence[str], search: Sequence[str], *, exact: bool) -> list[int]:
    if exact:
        mine, theirs = list(lines), list(search)
    else:
        mine, theirs = [_bare(line) for line in lines], [_bare(line) for line in search]
    last = len(mine) - len(theirs)
    return [at for at in range(last + 1) if mine[at] == theirs[0] and mine[at : at + len(theirs)] == theirs]


def _bare(line: str) -> str:
    return " ".join(line.split())


def _nearest(lines: Sequence[str], search: Sequence[str]) -> str:
    """Which of the lines is not there, and where the rest of them is."""
    there = Counter(_bare(line) for line in lines)
    lost = [line for line in search if _bare(line) and _bare(line) not in there]
    if not lost:
        return "its SEARCH lines are all in the file, but not in this order without others between them"
    wanted = {_bare(line) for line in search} - {""}
    so_far = [0, *accumulate(int(_bare(line) in wanted) for line in lines)]
    size = min(len(search), len(lines))
    best = max(range(len(lines) - size + 1), key=lambda at: so_far[at + size] - so_far[at])
    near = f"; the most alike are lines {best + 1} to {best + size}" if so_far[-1] else ""
    return f"its SEARCH is not in the file: no line is {lost[0].strip()[:120]!r}{near}"

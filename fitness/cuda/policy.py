"""What a source may reach: headers of an allow-list and no other file; no services of the driver's own.

Directives are looked for by pattern everywhere, comments and strings included: a reader that tries to skip these can
be led astray by a source that the compiler reads differently. The price is that a comment which quotes a refused
`#include` is refused too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HEADERS = (
    "evo.h",
    "evo_async.h",
    "evo_mma.h",
    "cuda_bf16.h",
    "cuda_fp16.h",
    "cuda_fp8.h",
    "mma.h",
    "cooperative_groups.h",
    "cooperative_groups/NAME.h",
    "cuda/NAME",
    "cuda/std/NAME",
)
MAX_SOURCE_BYTES = 1 << 20

_ALLOWED = re.compile("|".join(re.escape(header).replace("NAME", r"[a-z0-9_]+(?:/[a-z0-9_]+)*") for header in HEADERS))
_GAP = r"(?:\s|/\*.*?\*/)*"  # what may stand between the tokens of a directive
_OPERAND = rf"{_GAP}(?P<operand><[^>\n]*>|\"[^\"\n]*\"|[^\n]*)"
_HASH = r"(?:\#|%:|\?\?=)"  # also spelled as digraph and trigraph
_INCLUDE = re.compile(rf"{_HASH}{_GAP}(?:include|include_next|import)\b{_OPERAND}", re.DOTALL)
_HAS_INCLUDE = re.compile(rf"\b__has_include(?:_next)?\b(?:{_GAP}\()?{_OPERAND}", re.DOTALL)
_FILE_READERS = (
    (re.compile(rf"{_HASH}{_GAP}embed\b", re.DOTALL), "#embed"),
    (re.compile(r"\b__has_embed\b"), "__has_embed"),
    (re.compile(r"\.\s*(?:incbin|include)\b", re.IGNORECASE), "an assembler directive that reads a file"),
    (re.compile(rf"{_HASH}{_GAP}\\[uU]", re.DOTALL), "a directive spelled with universal character names"),
    (re.compile(r"\?\?[=/]"), "a trigraph"),
    (re.compile(r"\x00"), "a NUL character"),
)
_SPLICE = re.compile(r"\\[ \t\f\v]*\r?\n")

_DRIVER_SERVICES = {
    "vprintf": "printf in device code",
    "__assertfail": "assert in device code",
    "malloc": "malloc in device code",
    "free": "free in device code",
}


def source_violation(source: str, defines: Sequence[tuple[str, str]] = ()) -> str:
    """ "" when the source and its macros reach no file but the allowed headers, else a sentence that says what does."""
    if len(source.encode(errors="replace")) > MAX_SOURCE_BYTES:
        return f"the source is larger than {MAX_SOURCE_BYTES} bytes"
    for name, value in defines:
        if re.search(r"[\r\n\0]", name + value):
            return f"the value of macro {name} holds a line break"
    text = _SPLICE.sub("", source)
    for pattern, what in _FILE_READERS:
        if found := pattern.search(text):
            return f"line {_line(text, found.start())}: {what} is not allowed"
    for pattern in (_INCLUDE, _HAS_INCLUDE):
        for found in pattern.finditer(text):
            if problem := _header_problem(found["operand"].strip()):
                return f"line {_line(text, found.start())}: {problem}; allowed are {', '.join(HEADERS)}"
    return ""


def _header_problem(operand: str) -> str:
    """Why this operand of #include is refused, or ""."""
    if operand[:1] not in ("<", '"'):
        return f"#include of a macro ({operand[:60]!r}) is not allowed"
    header = operand[1:-1].strip()
    if _ALLOWED.fullmatch(header):
        return ""
    if header.startswith(("/", "\\", "~")) or ".." in header:
        return f"#include of an absolute or parent path ({header[:60]!r}) is not allowed"
    return f"header {header[:60]!r} is not allowed"


def _line(text: str, position: int) -> int:
    """The 1-based line of a position; spliced lines count as one."""
    return text.count("\n", 0, position) + 1


def symbol_violation(undefined: Sequence[str]) -> str:
    """ "" when machine code asks nothing of the driver, else what it asks. `undefined`: its undefined functions."""
    for name in undefined:
        return f"{_DRIVER_SERVICES.get(name, f'a call of {name}, which the driver would supply,')} is not allowed"
    return ""

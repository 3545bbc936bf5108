"""What a CPU genome's text may do to the compiler: read no file, and write no assembler program.

What the machine code may hold is judged on the object file (`elf.py`); this guards the build itself. Directives are
looked for everywhere behind the header, comments and strings included: a reader that skips these can be led astray by a
text that the compiler reads otherwise. The price: a comment that quotes a refused `#include` is refused too.
"""

from __future__ import annotations

import re

HEADERS = frozenset(
    """evo.h immintrin.h stdint.h stddef.h string.h limits.h float.h math.h
    cstdint cstddef cstring climits cfloat cmath limits type_traits utility array algorithm""".split()
)
DIRECTIVES = frozenset("define undef if ifdef ifndef elif else endif include pragma error warning".split())

_SPLICE = re.compile(r"\\[ \t\f\v]*(?:\r\n?|\n)")
_HEADER = re.compile(r"\A\s*/\*.*?\*/", re.DOTALL)  # nothing stands before it, so all read it as a comment
_HASH = r"\#[ \t\f\v]*"
# Every pattern is linear in the text. The first group is what is refused.
_REFUSED = (
    (re.compile(r"(%:|\?\?[=/]|\x00)"), "write # and \\ as such, and no NUL"),
    (re.compile(r"(\b__has_include|\b__has_embed)"), "include a header without asking for it first"),
    (re.compile(rf"({_HASH}/[*/])"), "no comment may stand between # and the directive"),
    (re.compile(rf"({_HASH}(?:include_next|import|embed|line|ident|sccs|assert|unassert)\b)"), "only #include reads"),
    (re.compile(rf"({_HASH}\d+[ \t]*\")"), "it claims another file's name"),
    (re.compile(rf"({_HASH}\w*\\)"), "spell directives plainly"),
    (re.compile(r"((?:\#[ \t]*|_)[pP]ragma\b[^\n]*\b(?:dependency|pch\w*))"), "it reads files"),
)
_DIRECTIVE = re.compile(rf"^[ \t\f\v]*{_HASH}(?P<name>\w+)", re.MULTILINE)
_INCLUDE = re.compile(rf"{_HASH}include(?!\w)(?P<rest>[^\n]*)")
_OPERAND = re.compile(r"""\s*(?:<([^>]*)>|"([^"]*)")""")
_ASSEMBLER = re.compile(r"\.(incbin|include|macro|irpc?|altmacro|print|err|symver|weakref)\b", re.IGNORECASE)


def source_objection(source: str) -> str:
    """ "" or why the preprocessor must not see this text."""
    text = _SPLICE.sub("", source)
    if "??" not in text:  # a trigraph could end the header early
        text = _HEADER.sub("", text)
    for pattern, why in _REFUSED:
        if found := pattern.search(text):
            return f"{found[1]!r} is not allowed: {why}"
    for found in _DIRECTIVE.finditer(text):
        if found["name"] not in DIRECTIVES:
            return f"#{found['name']} is not allowed; there are: {', '.join(sorted(DIRECTIVES))}"
    for found in _INCLUDE.finditer(text):
        operand = _OPERAND.match(found["rest"])
        header = (operand[1] or operand[2] or "") if operand else found["rest"].strip()
        if not operand or header not in HEADERS:
            return f"#include {header!r} is not allowed; there are: {', '.join(sorted(HEADERS))}"
    return ""


def assembly_objection(assembly: str) -> str:
    """ "" or why the assembler must not see what the compiler (and the genome's `asm`) wrote."""
    found = _ASSEMBLER.search(assembly)
    return f"assembler directive {found[0]} is not allowed" if found else ""


_LABEL = re.compile(r"^([A-Za-z_]\w*):")
_INSTRUCTION = re.compile(r"^\s+(?:(?:rep\w*|lock|notrack)\s+)?([a-z][a-z0-9]+)(?:\s|$)")


def opcodes(assembly: str) -> dict[str, dict[str, int]]:
    """Mnemonic counts of every function in the compiler's assembly text, by its symbol."""
    table: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in assembly.splitlines():
        if label := _LABEL.match(line):
            current = table.setdefault(label[1], {})
        elif instruction := _INSTRUCTION.match(line):
            current[instruction[1]] = current.get(instruction[1], 0) + 1
    return table

"""What a CPU genome's text may do to the compiler: read no file, and write no assembler program.

What the machine code may hold is judged on the object file (`elf.py`); this guards the build itself.
"""

from __future__ import annotations

import re

HEADERS = frozenset(
    """evo.h immintrin.h stdint.h stddef.h string.h limits.h float.h math.h
    cstdint cstddef cstring climits cfloat cmath limits type_traits utility array algorithm""".split()
)
DIRECTIVES = frozenset("define undef if ifdef ifndef elif else endif include pragma error warning line".split())

# Comments go, literals and numbers (1'000) stay whole, so that a quote inside them opens nothing.
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\b\d(?:'?[\w.])*""", re.DOTALL
)
_RAW_STRING = re.compile(r'R"[^\s()\\]{0,16}\(')
_SPELLING = re.compile(r"%:|\?\?[=/]|__has_include|__has_embed|\bpch_preprocess\b")
_INCLUDE = re.compile(r"""\s*(?:<([^>\n]*)>|"([^"\n]*)")\s*$""")
_ASSEMBLER = re.compile(r"\.(incbin|include|macro|irpc?|altmacro|print|err|symver|weakref)\b", re.IGNORECASE)


def source_objection(source: str) -> str:
    """ "" or why the preprocessor must not see this text."""
    text = re.sub(r"\\[ \t]*\r?\n", "", source)
    if _RAW_STRING.search(text):
        return "raw string literals are not allowed: write an ordinary one"
    text = _TOKEN.sub(lambda match: " " if match["comment"] else match[0], text)
    if found := _SPELLING.search(text):
        return f"{found[0]} is not allowed: spell directives with # and include headers without asking for them first"
    for line in text.splitlines():
        if line.lstrip().startswith("#") and (why := _directive_objection(line.strip()[1:].strip())):
            return why
    return ""


def _directive_objection(directive: str) -> str:
    word = re.match(r"\w*", directive)
    name = word[0] if word else ""
    if name and name not in DIRECTIVES:
        return f"#{name} is not allowed; there are: {', '.join(sorted(DIRECTIVES))}"
    rest = directive[len(name) :]
    if name == "pragma" and re.search(r"dependency|pch", rest):
        return f"#pragma{rest} is not allowed: it reads files"
    if name != "include":
        return ""
    found = _INCLUDE.match(rest)
    header = (found[1] or found[2]) if found else rest.strip()
    return "" if header in HEADERS else f"#include {header!r} is not allowed; there are: {', '.join(sorted(HEADERS))}"


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

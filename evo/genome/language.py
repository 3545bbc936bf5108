"""The small language of genome files: 64-bit integers, names and a few functions, in Python's own syntax.

`ast` parses a text once; a whitelist (`closures`) turns the tree into closures, so that nothing outside the language
can be reached and an evaluation costs a microsecond or two. Beyond names and decimal or 0x integers there are:

    + - * // %   unary -   < <= > >= == != (chained too)   and or not   min max ceildiv where   "text" with == and !=

Truth values are the integers 1 and 0. `and`, `or` and `where` evaluate only what they need, so that
`D != 0 and N % D == 0` is safe. `//` and `%` round towards minus infinity, as in Python.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass

from evo.errors import LanguageError
from evo.genome.closures import LANGUAGE, Compiler, Equality, Evaluator, Scope
from evo.records import Value

MAX_LENGTH = 1000  # characters

_STRING = re.compile(r"\"[^\"]*\"|'[^']*'")
_GLUED = re.compile(r"\b(?>0[xX][0-9a-fA-F]+|[0-9][0-9_]*)[A-Za-z_.]")


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A parsed text. Calling it with the values of its `names` gives an integer, or a string where it selects one."""

    text: str
    names: frozenset[str]
    equalities: tuple[Equality, ...]
    _run: Evaluator

    def __call__(self, scope: Scope) -> Value:
        """Raises `LanguageError` for an unknown name, an overflow, a division by zero or mixed types."""
        return self._run(scope)

    def integer(self, scope: Scope) -> int:
        """The value, which must be an integer."""
        value = self._run(scope)
        if isinstance(value, str):
            raise LanguageError(
                f"the result is the text {value!r}", expression=self.text, column=1, fix="an integer is wanted here"
            )
        return value


@functools.lru_cache(maxsize=8192)
def parse(text: str) -> Expression:
    """The expression that `text` holds. Raises `LanguageError` for everything outside the language."""
    source = _checked_source(text)
    try:
        tree = ast.parse(source.lstrip(" "), mode="eval")
    except SyntaxError as error:
        column = (error.offset or 1) + len(source) - len(source.lstrip(" "))
        raise LanguageError(
            f"syntax: {error.msg.partition(';')[0]}", expression=text, column=column, fix=LANGUAGE
        ) from None
    except (ValueError, RecursionError, MemoryError):  # what CPython's parser raises for hostile nesting
        raise LanguageError("nested too deeply", expression=_short(text), fix="split it with [let]") from None
    compiler = Compiler(text, len(source) - len(source.lstrip(" ")))
    run = compiler.compile(tree.body, 1)
    return Expression(text, frozenset(compiler.names), tuple(compiler.equalities), run)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _checked_source(text: str) -> str:
    """`text` in one line, after the checks that `ast` does not make."""
    if len(text) > MAX_LENGTH:
        raise LanguageError(
            f"{len(text)} characters, of at most {MAX_LENGTH}", expression=_short(text), fix="split it with [let]"
        )
    source = re.sub(r"[\t\r\n]", " ", text).rstrip(" ")
    bare = _STRING.sub(lambda match: '"' + " " * (len(match[0]) - 2) + '"', source)
    for position, character in enumerate(source):
        if not (character.isascii() and character.isprintable()) or character == "\\" or bare[position] in "#;":
            raise LanguageError(
                f"character {character!r}", expression=text, column=position + 1, fix="remove it; " + LANGUAGE
            )
    if match := _GLUED.search(bare):
        raise LanguageError(
            f"{source[match.start() : match.end()]!r} is not an integer",
            expression=text,
            column=match.start() + 1,
            fix="write integers in decimal or 0x form, and a space between an integer and a word",
        )
    return source

"""The header of a genome file: found in the source, parsed as TOML, with the line of every key."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

from evo.errors import GenomeError
from evo.genome.places import Place

MAX_SOURCE_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 15  # tomllib takes seconds for longer hostile ones

Path = tuple[str | int, ...]

_OPENING = re.compile(r"/\*[ \t]*evo[ \t]*")
_KEY = re.compile(r"[\w.\-\"' \t]+")
_TOML_LINE = re.compile(r"line (\d+)")
# Control characters, and those that make text read in another order than the compiler does.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Header:
    """The header's data; `body` is the source with the header blanked out, so that the line numbers stay."""

    file: str
    line: int  # of the opening
    data: dict[str, Any]
    body: str
    lines: dict[Path, int]  # where tables and keys stand
    text: tuple[str, ...]  # the header's lines, the opening's first

    def place(self, path: Path, needle: str = "") -> Place:
        """Where `path` stands; `needle` is a text that finds an element of a list that goes over several lines."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, self.line)
        if needle and known:
            line = self._line_of(needle, line)
        return Place(self.file, line, _dotted(path))

    def _line_of(self, needle: str, line: int) -> int:
        end = min((other for other in self.lines.values() if other > line), default=self.line + len(self.text))
        for number in range(line, max(end, line + 1)):
            if needle in self.text[number - self.line]:
                return number
        return line


def canonical_source(text: str, file: str = "") -> str:
    """Newlines as \\n, no blanks at line ends, one final newline. Raises `GenomeError` for what no source may hold."""
    if len(text) > MAX_SOURCE_BYTES:
        raise GenomeError(
            f"the file has {len(text)} characters", file=file, fix=f"a genome has at most {MAX_SOURCE_BYTES} bytes"
        )
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if match := _FORBIDDEN.search(text):
        raise GenomeError(
            f"control character U+{ord(match[0]):04X}",
            file=file,
            line=text.count("\n", 0, match.start()) + 1,
            fix="a genome is plain UTF-8 text: remove the character",
        )
    canonical = "\n".join(line.rstrip(" \t") for line in text.split("\n")).rstrip("\n") + "\n"
    if len(canonical.encode()) > MAX_SOURCE_BYTES:
        raise GenomeError(f"the file has over {MAX_SOURCE_BYTES} bytes", file=file, fix="shorten it")
    return canonical


def read_header(source: str, file: str = "") -> Header:
    """The header of a canonical source. Raises `GenomeError` when there is none or it is not TOML."""
    start, inner, end = bounds(source, file)
    line = source.count("\n", 0, start) + 1
    comment = source[start:end]
    toml = source[inner : end - 2]
    if len(toml.encode()) > MAX_HEADER_BYTES:
        raise GenomeError(f"the header has over {MAX_HEADER_BYTES} bytes", file=file, line=line, fix="shorten it")
    try:
        data = tomllib.loads(toml)
    except RecursionError:
        raise GenomeError("the header is nested too deeply", file=file, line=line, fix="flatten it") from None
    except ValueError as error:  # TOMLDecodeError, and what int() raises for thousands of digits
        match = _TOML_LINE.search(str(error))
        at = line + int(match[1]) - 1 if match else line + (toml.count("\n") if "end of" in str(error) else 0)
        raise GenomeError(
            f"the header is not TOML: {str(error)[:200]}",
            file=file,
            line=at,
            fix="the comment that starts with /* evo holds TOML; lines in the message count from there",
        ) from None
    text = tuple(comment.split("\n"))
    body = source[:start] + "\n" * comment.count("\n") + source[end:]
    return Header(file, line, data, body, _key_lines(text, line), text)


def bounds(source: str, file: str = "") -> tuple[int, int, int]:
    """Where the header starts, where its TOML does, and where the header ends: behind the */ that follows the TOML. It
    must be the first block comment; only // comments may stand before it. Raises `GenomeError` where there is none."""
    fix = "start the file with a block comment: a line with /* evo, the TOML header, and a line with */"
    start = 0
    for number, line in enumerate(source.split("\n"), 1):
        code = line.lstrip(" \t")
        if code and not code.startswith("//"):
            opening = _OPENING.fullmatch(code)
            if not opening:
                raise GenomeError("no header before this line", file=file, line=number, value=code[:80], fix=fix)
            start += len(line) - len(code)
            end = source.find("*/", start + 2)
            if end < 0:
                raise GenomeError("the header is never closed", file=file, line=number, fix="end it with */")
            return start, start + opening.end(), end + 2
        start += len(line) + 1
    raise GenomeError("no header", file=file, line=1, fix=fix)


def _key_lines(text: tuple[str, ...], first: int) -> dict[Path, int]:
    """The file line of every table and key, found by their looks: good enough to point a person at."""
    lines: dict[Path, int] = {}
    table: Path = ()
    counts: dict[str, int] = {}
    for number, raw in enumerate(text, first):
        line = raw.strip(" \t")
        if line.startswith("[") and line.partition("#")[0].rstrip(" \t").endswith("]") and "=" not in line:
            name = line.lstrip("[").partition("]")[0]
            table = tuple(part.strip(" \t\"'") for part in name.split("."))
            if line.startswith("[["):
                table = (*table, counts.setdefault(name, 0))
                counts[name] += 1
            lines.setdefault(table, number)
            continue
        key, equals, _ = line.partition("=")
        if equals and _KEY.fullmatch(key):
            path: Path = (*table, *(part.strip(" \t\"'") for part in key.split(".")))
            for length in range(len(table) + 1, min(len(path), 4) + 1):
                lines.setdefault(path[:length], number)
    return lines


def _dotted(path: Path) -> str:
    dotted = ""
    for part in path:
        word = f"[{part}]" if isinstance(part, int) else part if part.isprintable() else ascii(part)
        dotted += f".{word}" if dotted and isinstance(part, str) else word
    return dotted[:120]

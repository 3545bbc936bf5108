"""What can vary in a source: places whose text may become a gene, with what else could stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from evo.genome import Genome
from evo.mutators.forms import OPCODE, STATEMENT, alternatives, narrower
from evo.records import Value

MOST_CONSTANT = 1 << 16  # larger ones are magic numbers, not sizes
MAX_TEXT = 200  # of a gene's text
_TOKENS = re.compile(
    r"//[^\n]*|/\*.*?\*/|(?P<raw>(?:u8|[uUL])?R\"(?P<mark>[^ ()\\\t\n]{0,16})\(.*?\)(?P=mark)\")"
    r"|(?P<text>(?<!\w)\"(?:\\.|[^\"\\\n])*\")|\"(?:\\.|[^\"\\\n])*\"|(?<![\w'])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\.")  # \n and \t separate instructions
_CONSTANTS = re.compile(r"\bconstexpr\b[^;{}()]*;")
_CONSTANT = re.compile(r"\b(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>\d+|true|false)(?=\s*[,;])")
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(?P<name>[A-Za-z_]\w*)[ \t]+(?P<value>\d+)[ \t]*$", re.MULTILINE)
_BOUNDS = re.compile(r"\b__launch_bounds__\s*\((?:[^(),]|\([^()]*\))+,\s*(?P<value>\d+)(?=\s*[,)])")
_UNROLL = re.compile(r"^[ \t]*(?P<pragma>#[ \t]*pragma[ \t]+unroll)(?:[ \t]+(?P<value>\d+))?[ \t]*$", re.MULTILINE)
_PTX_LIMIT = re.compile(r"\.(?P<name>minnctapersm|maxnreg)[ \t]+(?P<value>\d+)")
_FIXED = re.compile(r"WARP|LANES_PER|ALIGN|MASK|BITS|VERSION", re.IGNORECASE)  # laws of the machine, not choices
_FACTORS = ("unroll", "unroll 1", "unroll 2", "unroll 4", "unroll 8")


@dataclass(frozen=True, slots=True)
class Site:
    """`source[start:end]` may become `before + GENE + after`; the first choice leaves all as it is."""

    kind: str  # "constant", "bounds", "unroll", "instruction", "width"
    start: int
    end: int
    stem: str  # for the gene's name
    choices: tuple[Value, ...]
    before: str = ""
    after: str = ""

    @property
    def what(self) -> str:
        return f"{self.kind} {str(self.choices[0])[:60]}"


@lru_cache(maxsize=256)
def find_sites(source: str, suffix: str) -> tuple[Site, ...]:
    """All sites of a genome's canonical source, in order; of two at one place the longer one first."""
    code, texts = _masked(source)
    sites: list[Site] = []
    if suffix == ".ptx":
        sites += _ptx(code)
    else:
        sites += _constants(code)
    if suffix == ".cu":
        sites += [*_bounds(code), *_unrolls(code)]
        for first, last in texts:
            sites += _instructions(source, first, last)
    return tuple(sorted(sites, key=lambda site: (site.start, -site.end)))


def sites_of(genome: Genome) -> tuple[Site, ...]:
    return find_sites(genome.canonical, genome.suffix)


def _masked(source: str) -> tuple[str, list[tuple[int, int]]]:
    """The source with comments (the header is one) and texts blanked out, and the inside of every plain text."""
    masked = list(source)
    texts: list[tuple[int, int]] = []
    for token in _TOKENS.finditer(source):
        if token["text"]:
            texts.append((token.start() + 1, token.end() - 1))
        for index in range(*token.span()):
            if masked[index] != "\n":
                masked[index] = " "
    return "".join(masked), texts


def _constants(code: str) -> Iterator[Site]:
    found = [(s.start(), s.end()) for s in _CONSTANTS.finditer(code)]
    matches = [m for first, last in found for m in _CONSTANT.finditer(code, first, last)] + list(_DEFINE.finditer(code))
    for match in matches:
        choices = near(match["value"])
        if choices and not _FIXED.search(match["name"]):
            yield Site("constant", *match.span("value"), match["name"], choices)


def _bounds(code: str) -> Iterator[Site]:
    for match in _BOUNDS.finditer(code):
        present = int(match["value"])
        yield Site("bounds", *match.span("value"), "CTAS", _first(present, (1, 2, 3, 4, 6, 8)))


def _unrolls(code: str) -> Iterator[Site]:
    for match in _UNROLL.finditer(code):
        if match["value"]:
            yield Site("unroll", *match.span("value"), "UNROLL", _first(int(match["value"]), (1, 2, 4, 8)))
        else:
            yield Site("unroll", *match.span("pragma"), "UNROLL", _FACTORS, "_Pragma(", ")")


def _instructions(source: str, first: int, last: int) -> Iterator[Site]:
    """Of inline PTX: a text is split, so that the gene's text stands between its halves."""
    source = source[:first] + _ESCAPE.sub("  ", source[first:last])
    for match in STATEMENT.finditer(source, first, last):
        forms = tuple(form for form in narrower(match[0]) if len(form) <= MAX_TEXT)
        if forms and len(match[0]) <= MAX_TEXT:
            yield Site("width", *match.span(), "WIDTH", (match[0], *forms), '" ', ' "')
    for match in OPCODE.finditer(source, first, last):
        if others := alternatives(match[0]):
            stem = match[0].partition(".")[0].upper()
            yield Site("instruction", *match.span(), stem, (match[0], *others), '" ', ' "')


def _ptx(code: str) -> Iterator[Site]:
    for match in OPCODE.finditer(code):
        if others := alternatives(match[0]):
            yield Site("instruction", *match.span(), match[0].partition(".")[0].upper(), (match[0], *others), "${", "}")
    for match in _PTX_LIMIT.finditer(code):
        limits = (1, 2, 3, 4, 6, 8) if match["name"] == "minnctapersm" else (32, 64, 96, 128, 168, 232, 255)
        yield Site("bounds", *match.span("value"), "CTAS", _first(int(match["value"]), limits), "${", "}")


def near(text: str) -> tuple[int, ...]:
    """A constant and its neighbours; empty where it is no size."""
    if text in ("true", "false"):
        return (1, 0) if text == "true" else (0, 1)
    value = int(text)
    if value > MOST_CONSTANT or (len(text) > 1 and text[0] == "0"):  # a leading zero is octal
        return ()
    if value < 2:
        return (value, 1 - value)
    if value & (value - 1) == 0:
        return _first(value, (value // 2, value * 2, value // 4, value * 4))
    return _first(value, (value - 1, value + 1, value // 2, value * 2))


def _first(present: int, others: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys((present, *(other for other in others if other > 0))))

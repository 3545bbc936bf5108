"""Garbage made from genome files, kind by kind: what a careless author, a broken model or a bad disk would hand in.

A kind takes random numbers and the texts of real seeds and gives a `Garbage`; the same numbers give the same bytes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\s+|\S")
PAIR = re.compile(r"^[ \t]*[\w.\"]+[ \t]*=.*\n", re.MULTILINE)
ODD = (
    "\u202e", "\u2066", "\ufeff", "\u0301", "\u200b", "\u0410", "\U0001f600", "\x85", "\u2028", "\ue000", "\uffff",
)  # fmt: skip
HUGE = ("9" * 5000, "-" + "9" * 400, str(2**63), str(-(2**63)), str(2**64), "0x" + "f" * 300, "1e999", "-inf", "nan")
TYPES = (
    "1", "-1", "0", "true", '""', '"text"', "[]", "[[]]", "{}", "{ a = 1 }", "1.5", "1979-05-27T07:32:00Z", '[1, "a"]',
    '["x", ["y"]]', "'''\nlong\n'''", '"\\u0000"', '"\\uD800"',
)  # fmt: skip
FORMULAS = (
    "1 / 0", "N % 0", "2 ** 64", "1 << 63", "-1", "M - M", "()", "(" * 300 + "1" + ")" * 300, "+".join(["1"] * 5000),
    "nobody", "N.real", "__import__('os')", "lambda: 1", "N if N else M", "1 +", "N N", "'a' * 9", "[1][0]", "max()",
    "min(1, " * 60 + "1" + ")" * 60, "~N", "not N", "N // (M - M)", "1_000", "0b1", "\u0661", "x" * 4000,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    1.0, True, None, [1], {"a": 1}, [], -(2**70), 10**4000, "", "x" * 100_000, "\x00", "\ud800", float("nan"), "1",
)  # fmt: skip
BOMBS = (
    "template<int D> struct Deep { Deep<D + 1> next; }; static Deep<0> deep;\n",
    "#define B0 1+1+1+1+1+1+1+1\n"
    + "".join(f"#define B{n} B{n - 1} B{n - 1} B{n - 1} B{n - 1}+\n" for n in range(1, 14))
    + "static int bomb = B13 1;\n",
    "static char large[1ull << 40];\n",
    "static char filled[1 << 28] = {1};\n",
    "#include __FILE__\n",
    '#include "/dev/zero"\n',
    "#error never\n",
    '#line 1 "/etc/passwd"\n',
    "static_assert(sizeof(int) == 1);\n",
    "constexpr int spin(int n) { while (true) n += 1; return n; }\nstatic_assert(spin(1) == 0);\n",
    "extern int nobody;\nint somebody = nobody;\n",
    "asm(\".rept 100000000\\n.byte 0\\n.endr\");\n",
    "int main() { return *(volatile int*)0; }\n",
)  # fmt: skip
SPIN = ("for (volatile int i = 0;; ++i) {}", "__builtin_trap();", "*(volatile int*)64 = 1;", "int d = 0; d = 1 / d;")


@dataclass(frozen=True, slots=True)
class Garbage:
    """`values` are gene values as some author sent them, of whatever type."""

    kind: str
    data: bytes
    values: dict[str, Any]


def _parts(text: str) -> tuple[str, str]:
    """A seed's header with its closing, and the body."""
    end = text.index("*/") + 2
    return text[:end], text[end:]


def _flipped(rng: random.Random, seeds: Sequence[str]) -> bytes:
    text = rng.choice(seeds)
    data = bytearray(text.encode())
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        data[rng.randrange(text.index("*/"))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _keys(rng: random.Random, seeds: Sequence[str]) -> bytes:
    """A line `key = value` of the header is removed, there twice, renamed or somewhere else."""
    header, body = _parts(rng.choice(seeds))
    line = rng.choice(PAIR.findall(header))
    other = rng.choice(PAIR.findall(header))
    instead = rng.choice(("", line + line, "q" + line.lstrip(), line.lstrip().replace("=", "x =", 1), other, "=\n"))
    return (header.replace(line, instead, 1) + body).encode()


def _retyped(rng: random.Random, seeds: Sequence[str], values: Sequence[str] = TYPES) -> bytes:
    header, body = _parts(rng.choice(seeds))
    line = rng.choice(PAIR.findall(header))
    key = line.partition("=")[0]
    return (header.replace(line, f"{key}= {rng.choice(values)}\n", 1) + body).encode()


def _huge(rng: random.Random, seeds: Sequence[str]) -> bytes:
    """A number of the header becomes a huge one, or a choice of a gene does."""
    header, body = _parts(rng.choice(seeds))
    numbers = [match.span() for match in re.finditer(r"\b\d+\b", header)]
    if not numbers or rng.random() < 0.3:
        return _retyped(rng, seeds, HUGE)
    start, end = rng.choice(numbers)
    return (header[:start] + rng.choice(HUGE) + header[end:] + body).encode()


def _nested(rng: random.Random, seeds: Sequence[str]) -> bytes:
    header, body = _parts(rng.choice(seeds))
    depth = rng.choice((10, 100, 1000, 5000))
    deep = rng.choice(("[" * depth + "]" * depth, "{a=" * depth + "1" + "}" * depth, "[" * depth))
    place = rng.choice(("\nzzz = {}\n*/", "\n[genes]\nZZZ = {}\n*/", "\n[let]\nzzz = {}\n*/"))
    table = "\n[" + ".".join(["a"] * depth) + "]\n*/"
    return (header[:-2] + (table if rng.random() < 0.25 else place.replace("{}", deep, 1)) + body).encode()


def _unicode(rng: random.Random, seeds: Sequence[str]) -> bytes:
    text = rng.choice(seeds)
    end = len(text) if rng.random() < 0.5 else text.index("*/")
    for _ in range(rng.choice((1, 2, 20))):
        at = rng.randrange(end)
        text = text[:at] + rng.choice((*ODD, chr(rng.randrange(0x80, 0xD800)))) + text[at:]
    return text.encode()


def _control(rng: random.Random, seeds: Sequence[str]) -> bytes:
    data = bytearray(rng.choice(seeds).encode())
    for _ in range(rng.choice((1, 3, 100))):
        data.insert(rng.randrange(len(data)), rng.choice(b"\x00\x00\x1b\x07\x7f\x0c\x0b\xff\xc0\x80"))
    return bytes(data)


def _newlines(rng: random.Random, seeds: Sequence[str]) -> bytes:
    text = rng.choice(seeds)
    ends = rng.choice((("\r\n",), ("\r",), ("\r\n", "\n", "\r"), ("\n\n",), ("\x85",), ("",), (" \t\n",), ("\\\n",)))
    made = "".join(line + rng.choice(ends) for line in text.split("\n"))
    return rng.choice((b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf" * 2, b"\xff\xfe")) + made.encode()


def _long(rng: random.Random, seeds: Sequence[str]) -> bytes:
    header, body = _parts(rng.choice(seeds))
    size = rng.choice((10_000, 40_000, 300_000, 1_040_000, 2_000_000))
    filler = rng.choice(("x" * size, "// " + "y " * (size // 2), "int " + "a" * size + ";", "(" * size, "\t" * size))
    if rng.random() < 0.4:
        return (header[:-2] + "\n# " + filler + "\n*/" + body).encode()
    return (header + "\n" + filler + "\n" + body).encode()


def _truncated(rng: random.Random, seeds: Sequence[str]) -> bytes:
    data = rng.choice(seeds).encode()
    return data[: rng.randrange(len(data))]


def _random(rng: random.Random, seeds: Sequence[str]) -> bytes:
    noise = rng.randbytes(rng.choice((0, 1, 100, 10_000)))
    header, body = _parts(rng.choice(seeds))
    return rng.choice((noise, b"/* evo\n" + noise + b"\n*/\n" + body.encode(), header.encode() + b"\n" + noise))


def _spliced(rng: random.Random, seeds: Sequence[str]) -> bytes:
    first, second = rng.choice(seeds), rng.choice(seeds)
    if rng.random() < 0.3:
        return (_parts(first)[0] + _parts(second)[1]).encode()
    return (first[: rng.randrange(len(first))] + second[rng.randrange(len(second)) :]).encode()


def _tokens(rng: random.Random, seeds: Sequence[str]) -> bytes:
    """Tokens of the body are deleted, doubled or exchanged."""
    header, body = _parts(rng.choice(seeds))
    tokens = TOKEN.findall(body)
    for _ in range(rng.choice((1, 1, 1, 3, 10))):
        at, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        change = rng.randrange(3)
        tokens[at] = "" if change == 0 else tokens[at] * 2 if change == 1 else tokens[other]
    return (header + "".join(tokens)).encode()


def _comments(rng: random.Random, seeds: Sequence[str]) -> bytes:
    """Comments, quotes, brackets and conditionals that nothing closes or opens."""
    text = rng.choice(seeds)
    for _ in range(rng.choice((1, 2))):
        at = rng.randrange(len(text))
        text = (
            text[:at]
            + rng.choice(("/*", "*/", '"', "'", "{", "}", ")", 'R"x(', "\n#if 1\n", "\n#endif\n", "\\"))
            + text[at:]
        )
    return text.encode()


def _formula(rng: random.Random, seeds: Sequence[str]) -> bytes:
    """An expression of the small language that makes no sense."""
    header, body = _parts(rng.choice(seeds))
    formula = rng.choice(FORMULAS).replace('"', "'")
    line = rng.choice([line for line in PAIR.findall(header) if re.match(r"\s*(grid|block|args)\b", line)])
    place = rng.choice((
        (line, f'{line.partition("=")[0]}= ["{formula}"]\n'),
        ("[[launch]]", f'[constraints]\nall = ["{formula}"]\n[[launch]]'),
        ("[[launch]]", f'[let]\nlll = "{formula}"\n[[launch]]'),
        ("[[launch]]", f'[scratch.zzz]\nshape = ["{formula}"]\ndtype = "fp32"\n[[launch]]'),
        ("[[launch]]", f'[[launch]]\nwhen = "{formula}"'),
        ("[[launch]]", f'[[launch]]\nrepeat = "{formula}"'),
    ))  # fmt: skip
    return (header.replace(*place, 1) + body).encode()


def _bomb(rng: random.Random, seeds: Sequence[str]) -> bytes:
    header, body = _parts(rng.choice(seeds))
    return (header + "\n" + rng.choice(BOMBS) + body).encode()


def _fatal(rng: random.Random, seeds: Sequence[str]) -> bytes:
    """Builds, and then hangs or crashes."""
    header, body = _parts(rng.choice(seeds))
    places = [match.end() for match in re.finditer(r"\)\s*\{", body)]
    at = rng.choice(places)
    return (header + body[:at] + f" {rng.choice(SPIN)} " + body[at:]).encode()


def _genes(rng: random.Random, seeds: Sequence[str]) -> bytes:
    return rng.choice(seeds).encode()  # the file is sound; `make` spoils the values


KINDS: dict[str, Callable[[random.Random, Sequence[str]], bytes]] = {
    "header bytes flipped": _flipped,
    "keys removed, doubled, renamed": _keys,
    "values of another type": _retyped,
    "huge numbers": _huge,
    "deep nesting": _nested,
    "odd unicode": _unicode,
    "NULs and control characters": _control,
    "line ends and byte order marks": _newlines,
    "very long lines": _long,
    "truncated": _truncated,
    "random bytes": _random,
    "spliced": _spliced,
    "tokens deleted, doubled, exchanged": _tokens,
    "unbalanced": _comments,
    "senseless formulas": _formula,
    "compiler bombs": _bomb,
    "crashes and hangs": _fatal,
    "gene values of the wrong type": _genes,
}


def make(kind: str, number: int, seed: int, seeds: Sequence[str]) -> Garbage:
    """The garbage of this kind and number; the same arguments give the same bytes."""
    rng = random.Random(f"{seed} {kind} {number}")
    data = KINDS[kind](rng, seeds)
    values: dict[str, Any] = {}
    if kind == "gene values of the wrong type":
        names = re.findall(r"^([A-Z][A-Z0-9_]{2,})\s*=", data.decode(), re.MULTILINE)
        values = {rng.choice((*names, "NOBODY", "", "ITER")): rng.choice(VALUES) for _ in range(rng.choice((1, 2, 3)))}
    return Garbage(kind, data, values)

"""PTX text to instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Instruction:
    opcode: str
    operands: tuple[str, ...]
    guard: str = ""  # a predicate register that decides, lane by lane
    negated: bool = False
    text: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.opcode.split("."))


@dataclass(frozen=True, slots=True)
class SharedArray:
    name: str
    nbytes: int  # 0: dynamic, sized by the launch
    align: int


@dataclass(slots=True)
class Kernel:
    name: str
    parameters: Mapping[str, str]  # type by name, in order
    shared: tuple[SharedArray, ...]
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # index of the instruction behind
    registers: dict[str, str] = field(default_factory=dict)  # type by name


_SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.[a-z](\d+)\s+([\w$]+)(\[(\d*)\])?")
_ENTRY = re.compile(r"\.entry\s+(\w+)\((.*?)\)[^{]*", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)")
_PIECE = re.compile(r"\s*(?:(?P<label>[\w$]+):(?!:)|(?P<brace>[{}])|(?P<statement>[^\s;{}][^;]*);)")
_RANGE = re.compile(r"(.+)<(\d+)>$")
_NAME = re.compile(r"%?[A-Za-z_$][\w$]*")


def parse(text: str) -> dict[str, Kernel]:
    """The kernels of a module by name."""
    text = re.sub(r"//[^\n]*", "", text)
    entries = list(_ENTRY.finditer(text))
    head = text[: entries[0].start()] if entries else text
    dynamic = _shared(head)
    kernels = {}
    for entry in entries:
        body = text[entry.end() + 1 : _closing(text, entry.end())]
        parameters = {name: kind for kind, name in _PARAMETER.findall(entry[2])}
        kernel = Kernel(entry[1], parameters, (*_shared(body), *dynamic))
        _Body(kernel).read(body)
        kernels[kernel.name] = kernel
    return kernels


def _shared(text: str) -> tuple[SharedArray, ...]:
    """Arrays and single variables."""
    arrays = []
    for align, bits, name, brackets, count in _SHARED.findall(text):
        elements = int(count or 0) if brackets else 1
        arrays.append(SharedArray(name, int(bits) // 8 * elements, int(align)))
    return tuple(arrays)


def _closing(text: str, opening: int) -> int:
    depth = 0
    for brace in re.finditer("[{}]", text[opening:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return opening + brace.start()
    raise ValueError("PTX: a brace is not closed")


def split_operands(text: str) -> Iterator[str]:
    """At commas that are in no brackets or braces."""
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    if text[start:].strip():
        yield text[start:].strip()


class _Body:
    """Reads one kernel's statements. Names declared in an inner scope are made unique."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.scopes: list[dict[str, str]] = []
        self.types: dict[str, str] = {}  # of declared names; a prefix "%r" stands for %r0, %r1, ...
        self.fresh = 0

    def read(self, body: str) -> None:
        for piece in _PIECE.finditer(body):
            if piece["label"]:
                self.kernel.labels[piece["label"]] = len(self.kernel.instructions)
            elif piece["brace"] == "{":
                self.scopes.append({})
            elif piece["brace"] == "}":
                self.scopes.pop()
            elif piece["statement"].startswith(".reg"):
                self._declare(piece["statement"])
            elif not piece["statement"].startswith("."):
                self._add(" ".join(piece["statement"].split()))

    def _declare(self, statement: str) -> None:
        _, kind, names = statement.split(None, 2)
        for name in (each.strip() for each in names.split(",")):
            ranged = _RANGE.match(name)
            unique = ranged[1] if ranged else name
            if self.scopes and not ranged:
                self.fresh += 1
                unique = self.scopes[-1][name] = f"{name}@{self.fresh}"
            self.types[unique] = kind[1:]

    def _add(self, text: str) -> None:
        guard, rest = (text[1:].split(None, 1)) if text[0] == "@" else ("", text)
        opcode, _, operands = rest.partition(" ")
        named = tuple(self._resolve(each) for each in split_operands(operands))
        test = self._resolve(guard.lstrip("!"))
        self.kernel.instructions.append(Instruction(opcode, named, test, guard.startswith("!"), text))

    def _resolve(self, operand: str) -> str:
        """The operand with unique names; its registers are noted."""

        def unique(match: re.Match[str]) -> str:
            name = match[0]
            for scope in reversed(self.scopes):
                if name in scope:
                    name = scope[name]
                    break
            kind = self.types.get(name) or self.types.get(re.sub(r"\d+$", "", name))
            if kind:
                self.kernel.registers[name] = kind
            return name

        return _NAME.sub(unique, operand)

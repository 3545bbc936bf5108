"""Hostile genomes for any operator, made from the text of its own first seed, and null kernels made from nothing.

A seed is spoilt by launches round its own: `[[launch]]` tables in the header and kernels at the end of the source. They
work on bytes, so that they fit every element type. Flipping bit 6 of an element's last byte changes the highest bit of
a float's exponent but one, or the sign's neighbour of an integer: never a rounding error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evo.fitness.zoo.member import Member
from evo.operator import Operator, Tensor
from evo.records import Status

_LAUNCH = re.compile(r"^\[\[\s*launch\s*\]\]", re.MULTILINE)
_WRONG = (Status.WRONG_RESULT,)
_KIND = {"partial": "1 partial work", "stale": "3 stale result", "state": "4 state between calls",
         "null": "6 constant or copy", "bounds": "12 out of bounds", "input": "13 input destroyed",
         "nan": "14 NaN as a pass", "fault": "20 hang, fault, huge launch", "builder": "21 attack on the builder",
         "header": "22 attack through the header"}  # fmt: skip
_SAVED = "zoo_saved"


@dataclass(frozen=True, slots=True)
class _Form:
    """How a target's kernels look: the words before `void NAME(`, the leading parameters, and the file's suffix."""

    head: str
    leading: str
    suffix: str
    cpu: bool

    def kernel(self, name: str, body: str) -> str:
        parameters = f"{self.leading}unsigned char* data, unsigned char* saved, long long bytes, long long row"
        return f'\nextern "C" {self.head}void {name}({parameters}, int size) {{\n    {body}\n}}\n'


_CUDA = _Form("__global__ ", "", ".cu", False)
_CPU = _Form("", "long, long, int, ", ".cpp", True)


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor's sizes as expressions of the small language."""

    tensor: Tensor

    @property
    def count(self) -> str:
        return " * ".join(f"({extent})" for extent in self.tensor.shape) or "1"

    @property
    def row(self) -> str:
        return f"({self.tensor.shape[-1]})" if self.tensor.shape else "1"

    @property
    def item(self) -> str:
        return f"itemsize_{self.tensor.name}"

    def launch(self, kernel: str, saved: bool = False) -> str:
        name = self.tensor.name
        return (
            f'[[launch]]\nkernel = "{kernel}"\ngrid = ["1"]\nblock = ["1"]\n'
            f'args = ["{name}", "{_SAVED if saved else name}", "i64:{self.count} * {self.item}", '
            f'"i64:{self.row} * {self.item}", "i32:{self.item}"]\n'
        )


def generic_members(operator: Operator, target: str) -> tuple[Member, ...]:
    """What can be made for this operator; nothing where it has no seed of the target's own language."""
    form = _CPU if target == "cpu" else _CUDA
    seed = next((path for path in operator.seeds(target) if path.suffix == form.suffix), None)
    made = list(_null(operator, form))
    if seed is not None:
        made += _spoilt(operator, form, seed)
    return tuple(made)


def _spoilt(operator: Operator, form: _Form, seed: Path) -> Iterator[Member]:
    text = seed.read_text(encoding="utf-8")
    out = _Place(next(t for t in operator.tensors if t.role != "in" and not t.optional))

    def after(name: str, kind: str, summary: str, body: str, expect: tuple[Status, ...], *, place: _Place = out,
              **more: str) -> Member:  # fmt: skip
        source = _insert(text, "", place.launch(name)) + form.kernel(name, body)
        return _made(name, kind, summary, form.suffix, source, expect, **more)

    flip = "data[{} * size + size - 1] ^= 0x40;"
    yield after("zoo_one", "partial", "one element in the middle gets another value afterwards",
                flip.format("bytes / size / 2"), _WRONG)  # fmt: skip
    yield after("zoo_last", "partial", "the very last element gets another value afterwards",
                flip.format("(bytes / size - 1)"), _WRONG)  # fmt: skip
    yield after("zoo_zero_row", "partial", "a row in the middle is zeroed afterwards",
                "for (long long i = 0; i < row; ++i) data[bytes / row / 2 * row + i] = 0;", _WRONG)  # fmt: skip
    yield after("zoo_nan", "nan", "one element becomes NaN (of an integer: -1) afterwards",
                "for (int i = 0; i < size; ++i) data[bytes / size / 3 * size + i] = 0xff;", _WRONG)  # fmt: skip
    beyond = (Status.OUT_OF_BOUNDS,)
    yield after("zoo_past", "bounds", "writes one byte behind an output", "data[bytes] ^= 0x40;", beyond)
    yield after("zoo_before", "bounds", "writes one byte before an output", "data[-1] ^= 0x40;", beyond)
    given = next((t for t in operator.tensors if t.role == "in" and not t.optional), None)
    if given is not None:
        yield after("zoo_input", "input", "changes one element of an input", flip.format("bytes / size / 2"),
                    (Status.CRASH, Status.INPUT_MUTATED), place=_Place(given),
                    why="where inputs are mapped read-only the write faults")  # fmt: skip
    yield from _unwritten(text, form, out)
    yield after("zoo_null", "fault", "writes through a null pointer", "*(volatile int*)0 = 1;", (Status.CRASH,))
    yield after("zoo_spin", "fault", "never ends", "for (volatile unsigned char* end = data; *end < 256;) {}",
                (Status.TIMEOUT,))  # fmt: skip
    yield _stateful(text, form, out)
    yield _made("zoo_include", "builder", "includes a file of the host", form.suffix,
                text + '\n#include "/etc/passwd"\n', (Status.FORBIDDEN,), stage="build")  # fmt: skip
    yield _made("zoo_call", "header", "an expression that calls Python", form.suffix,
                _insert(text, "", "[[launch]]\nkernel = \"zoo\"\ngrid = [\"__import__('os').getpid()\"]\n"
                                  "block = [\"1\"]\n"),
                (Status.INVALID_GENOME,), stage="build")  # fmt: skip


def _unwritten(text: str, form: _Form, out: _Place) -> Iterator[Member]:
    """What was there before the call is put back after it: as if a block, or all of them, had never run."""
    for name, summary, kind, length in (
        ("zoo_skip_row", "the last row is left as it was, as if the grid were a block short", "partial", "row"),
        ("zoo_skip_all", "the whole output is left as it was", "stale", "bytes"),
    ):
        elements = out.count if length == "bytes" else out.row
        scratch = f'[scratch.{_SAVED}]\ndtype = "u8"\nshape = ["{elements} * {out.item}"]\n'
        save = f"for (long long i = 0; i < {length}; ++i) saved[i] = data[bytes - {length} + i];"
        back = f"for (long long i = 0; i < {length}; ++i) data[bytes - {length} + i] = saved[i];"
        source = _insert(text, out.launch(f"{name}_save", saved=True), out.launch(f"{name}_back", saved=True) + scratch)
        source += form.kernel(f"{name}_save", save) + form.kernel(f"{name}_back", back)
        yield _made(name, kind, summary, form.suffix, source, _WRONG)


def _stateful(text: str, form: _Form, out: _Place) -> Member:
    """A counter of calls in memory that outlives them."""
    counter = "static int zoo_calls;\n" if form.cpu else "__device__ int zoo_calls;\n"
    body = "if (++zoo_calls > 100) data[0] = 0;"
    source = _insert(text, "", out.launch("zoo_count")) + "\n" + counter + form.kernel("zoo_count", body)
    return _made("zoo_count", "state", "counts its calls in a writable variable of the module", form.suffix, source,
                 (Status.FORBIDDEN,), stage="build")  # fmt: skip


def _null(operator: Operator, form: _Form) -> Iterator[Member]:
    """Kernels that compute nothing, in the operator's own contract."""
    writes = [t for t in operator.tensors if t.role != "in" and not t.optional]
    loop = "for (long long i = {}; i < bytes; i += {}) "
    loop = loop.format("0", "1") if form.cpu else loop.format("threadIdx.x + 256LL * blockIdx.x", "256LL * gridDim.x")
    bodies: list[tuple[str, str, str, str, str | None]] = [
        ("zoo_nothing", "stale", "writes nothing", "", None),
        ("zoo_zeros", "null", "zeros everywhere", loop + "data[i] = 0;", None),
    ]
    for given in (t for t in operator.tensors if t.role == "in" and not t.optional):
        if all(given.shape == t.shape and given.dtypes == t.dtypes for t in writes):
            bodies.append((f"zoo_copy_{given.name}", "null", f"copies {given.name} to every output",
                           loop + "data[i] = saved[i];", given.name))  # fmt: skip
    for name, kind, summary, body, source in bodies:
        places = [_Place(tensor) for tensor in writes]
        launches = "".join(
            place.launch(name).replace(f'", "{place.tensor.name}", "i64', f'", "{source or place.tensor.name}", "i64')
            for place in places
        )
        if not form.cpu:
            launches = launches.replace('grid = ["1"]\nblock = ["1"]', 'grid = ["SMS * 8"]\nblock = ["256"]')
        header = f'/* evo\noperator = "{operator.name}"\nspecies = "zoo"\nsummary = "{summary}"\n{launches}*/\n'
        yield _made(name, kind, summary, form.suffix, header + form.kernel(name, body), _WRONG)


def _insert(text: str, first: str, last: str) -> str:
    """The genome with launches (and tables) before its own launches and at the end of its header."""
    end = text.index("*/")
    found = _LAUNCH.search(text, 0, end)
    start = found.start() if found else end
    return f"{text[:start]}{first}\n{text[start:end]}\n{last}{text[end:]}"


def _made(
    name: str, kind: str, summary: str, suffix: str, source: str, expect: tuple[Status, ...], **more: str
) -> Member:
    stage = "build" if more.get("stage") == "build" else "check"
    return Member(name, _KIND[kind], summary, suffix, source, expect, stage, more.get("why", ""),  # type: ignore[arg-type]
                  slow=name == "zoo_spin" and suffix == ".cu")  # fmt: skip

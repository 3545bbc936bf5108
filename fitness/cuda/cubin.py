"""Facts of a cubin, read from its ELF sections without driver or disassembler.

Sections: `.text.K` code, `.nv.info` and `.nv.info.K` attributes, `.nv.shared.K` static shared memory, `.nv.constantB`
constant banks (3: the module's constants, 4: addresses of globals), `.nv.global` and `.nv.global.init` variables in
device memory.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evo.fitness.cuda.operands import ADDRESS_BANK, DRIVER_BANK, operand_slots
from evo.ids import digest
from evo.records import Kernel

# EIATTR codes of .nv.info
MAX_THREADS, REQUIRED_THREADS, MIN_STACK, PARAMETER, PARAMETER_V2 = 0x05, 0x10, 0x12, 0x17, 0x45
PARAMETER_BANK, REGISTERS, CLUSTER, EXPLICIT_CLUSTER, BARRIERS = 0x0A, 0x2F, 0x3D, 0x3E, 0x4C
_EXECUTED = (MAX_THREADS, REQUIRED_THREADS, PARAMETER, PARAMETER_V2, CLUSTER, EXPLICIT_CLUSTER, BARRIERS)
_SIZED = 4  # attribute format: a 16-bit size and a payload follow; formats 1 to 3 hold their value in these 16 bits
_RESERVED_SHARED = 1024  # bytes of each block that the system keeps on sm_90 and later, counted in .nv.shared.K

Attributes = Sequence[tuple[int, bytes]]
Section = Any  # elftools is untyped


@dataclass(frozen=True, slots=True)
class Cubin:
    """`exposed` names the module's variables in device memory that code or constants reach by relocation; `addressed`
    those whose address lies in constant bank 4, where code seems to read it (a disassembly tells for sure)."""

    kernels: tuple[Kernel, ...]  # sorted by name
    exposed: tuple[str, ...]
    addressed: tuple[str, ...]
    undefined: tuple[str, ...]  # functions that the driver would have to supply
    driver_slots: Mapping[str, frozenset[int]]  # by function: what it may read of the driver's constant bank
    parameters_at: int  # offset of kernel parameters in that bank
    code_hash: str  # of all that executes; free of names, notes and debug sections


def read_cubin(code: bytes) -> Cubin:
    """Reads a linked cubin. Raises `ValueError` when `code` is not one."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        ordered = list(ELFFile(io.BytesIO(code)).iter_sections())
        sections = {section.name: section for section in ordered}
        symbols = list(sections[".symtab"].iter_symbols())
        places = [ordered[symbol["st_shndx"]].name if isinstance(symbol["st_shndx"], int) else "" for symbol in symbols]
        module = list(_attributes(sections[".nv.info"].data())) if ".nv.info" in sections else []
        functions = [(index, symbol) for index, symbol in enumerate(symbols) if symbol["st_info"]["type"] == "STT_FUNC"]
        kernels = sorted(
            (
                _kernel(symbol.name, index, sections, module)
                for index, symbol in functions
                if f".nv.info.{symbol.name}" in sections
            ),
            key=lambda kernel: kernel.name,
        )
        exposed, addressed = _reached(sections, symbols, places)
        return Cubin(
            kernels=tuple(kernels),
            exposed=exposed,
            addressed=addressed,
            undefined=tuple(symbol.name for _, symbol in functions if symbol["st_shndx"] == "SHN_UNDEF"),
            driver_slots={name: operand_slots(text, DRIVER_BANK) for name, text in _texts(sections).items()},
            parameters_at=_parameters_at(sections, kernels),
            code_hash=_code_hash(sections, symbols, places, kernels),
        )
    except (ELFError, struct.error, KeyError, IndexError) as error:
        raise ValueError(f"not a cubin: {error!r}") from error


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) pairs of an .nv.info section."""
    position = 0
    while position + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, position)
        position += 4
        if form == _SIZED:
            yield attribute, data[position : position + size]
            position += size
        else:
            yield attribute, size.to_bytes(2, "little")


def _kernel(name: str, index: int, sections: Mapping[str, Section], module: Attributes) -> Kernel:
    """A kernel's facts; `index` is its symbol's, by which the module's attributes name it."""
    own = list(_attributes(sections[f".nv.info.{name}"].data()))
    summary = {attribute: payload for attribute, payload in module if payload[:4] == struct.pack("<I", index)}
    bound = next((payload for attribute, payload in own if attribute in (MAX_THREADS, REQUIRED_THREADS)), b"")
    return Kernel(
        name=name,
        parameters=_parameters(own),
        registers=_second_word(summary.get(REGISTERS, b"")),
        stack_bytes=_second_word(summary.get(MIN_STACK, b"")),
        shared_bytes=_static_shared(name, sections),
        max_threads=math.prod(struct.unpack("<3I", bound)) if bound else 0,
    )


def _static_shared(name: str, sections: Mapping[str, Section]) -> int:
    section = sections.get(f".nv.shared.{name}")
    reserved = _RESERVED_SHARED if ".nv.shared.reserved.0" in sections else 0
    return max(0, section["sh_size"] - reserved) if section else 0


def _parameters(attributes: Attributes) -> tuple[int, ...]:
    """Sizes in bytes, in order. An entry: index, ordinal, offset, then the size (in its upper bits before V2)."""
    sizes: dict[int, int] = {}
    for attribute, payload in attributes:
        if attribute in (PARAMETER, PARAMETER_V2):
            _, ordinal, _, size = struct.unpack("<IHHI", payload)
            sizes[ordinal] = size if attribute == PARAMETER_V2 else size >> 18
    return tuple(size for _, size in sorted(sizes.items()))


def _parameters_at(sections: Mapping[str, Section], kernels: Sequence[Kernel]) -> int:
    """The lowest offset of the parameters in constant bank 0. The attribute: symbol, offset, size."""
    found = [
        struct.unpack_from("<H", payload, 4)[0]
        for kernel in kernels
        for attribute, payload in _attributes(sections[f".nv.info.{kernel.name}"].data())
        if attribute == PARAMETER_BANK
    ]
    return min(found, default=0)


def _second_word(payload: bytes) -> int:
    """The value of a (symbol, value) pair; 0 where there is none."""
    return int(struct.unpack_from("<I", payload, 4)[0]) if payload else 0


def _relocations(sections: Mapping[str, Section]) -> Iterator[tuple[str, Any]]:
    """(name of the section that is patched, relocation)."""
    for name, section in sections.items():
        if section["sh_type"] in ("SHT_REL", "SHT_RELA"):
            for relocation in section.iter_relocations():
                yield name.removeprefix(".rela").removeprefix(".rel"), relocation


def _texts(sections: Mapping[str, Section]) -> dict[str, bytes]:
    """Instructions by function."""
    return {
        name.removeprefix(".text."): section.data() for name, section in sections.items() if name.startswith(".text.")
    }


def _reached(
    sections: Mapping[str, Section], symbols: Sequence[Any], places: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Variables in device memory that code can reach: (by relocation, through constant bank 4).

    Unread addresses are common: every `static constexpr` member of a template leaves one.
    """
    exposed: set[str] = set()
    addressed: set[str] = set()
    for patched, relocation in _relocations(sections):
        target = relocation["r_info_sym"]
        if places[target].startswith(".nv.global") and not patched.startswith((".debug", ".nv.global")):
            (addressed if patched == ".nv.constant4" else exposed).add(symbols[target].name or places[target])
    if addressed and not any(operand_slots(text, ADDRESS_BANK) for text in _texts(sections).values()):
        addressed.clear()
    return tuple(sorted(exposed)), tuple(sorted(addressed))


def _code_hash(
    sections: Mapping[str, Section], symbols: Sequence[Any], places: Sequence[str], kernels: Sequence[Kernel]
) -> str:
    """SHA-256 over instructions, constants, relocations and the launch-relevant attributes of all kernels.

    Sections of one kernel go by its rank instead of its name.
    """
    ranks = {kernel.name: f"#{rank}" for rank, kernel in enumerate(kernels)}

    def nameless(section: str) -> str:
        head, _, tail = section.rpartition(".")
        return f"{head}.{ranks[tail]}" if tail in ranks else section

    parts: list[str | bytes] = []
    for name in sorted(sections, key=nameless):
        if name.startswith((".text.", ".nv.constant", ".nv.global")):
            section = sections[name]
            empty = section["sh_type"] == "SHT_NOBITS"
            parts += [nameless(name), str(section["sh_size"]), b"" if empty else section.data()]
    for kernel in kernels:
        own = _attributes(sections[f".nv.info.{kernel.name}"].data())
        executed = sorted(pair for pair in own if pair[0] in _EXECUTED)
        parts += [repr((kernel.registers, kernel.stack_bytes, kernel.shared_bytes, executed))]
    for patched, relocation in _relocations(sections):
        if not patched.startswith(".debug"):
            target = relocation["r_info_sym"]
            place = nameless(places[target]) or symbols[target].name
            addend = relocation.entry.get("r_addend", 0)
            parts += [nameless(patched), repr((relocation["r_offset"], relocation["r_info_type"], addend))]
            parts += [place, str(symbols[target]["st_value"])]
    return digest(parts)

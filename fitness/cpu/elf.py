"""A candidate's ELF object file: vetted, then linked here to one flat image at a known address.

Accepted: code and read-only data with relocations inside themselves, and calls of the few functions that the runner
supplies. Anything that would run at load, keep state between calls or reach the outside is refused by what it is.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from evo.records import Status
from evo.target import Rejected

# What an undefined symbol may name, in the order of the runner's table of jumps (it is compiled with this list).
SUPPLIED = tuple(
    """memcpy memmove memset memcmp expf exp2f expm1f logf log2f log1pf powf sinf cosf tanf tanhf erff fmodf""".split()
)
MAX_ALIGN = 4096
MAX_BYTES, MAX_FUNCTIONS, MAX_SYMBOLS, MAX_RELOCATIONS = 4 << 20, 64, 20_000, 20_000  # of an object

_WRITE, _ALLOC, _EXEC, _TLS = 0x1, 0x2, 0x4, 0x400
_REFUSED = {
    ".init_array": "code that runs at load (a constructor)", ".fini_array": "code that runs at unload (a destructor)",
    ".preinit_array": "code that runs at load", ".ctors": "code that runs at load (a constructor)",
    ".dtors": "code that runs at unload", ".tdata": "thread-local data", ".tbss": "thread-local data",
}  # fmt: skip
# type: (name, bytes, lowest, one past the highest, relative to the place)
_RELOCATIONS = {
    1: ("R_X86_64_64", 8, 0, 1 << 64, False),
    2: ("R_X86_64_PC32", 4, -(1 << 31), 1 << 31, True),
    4: ("R_X86_64_PLT32", 4, -(1 << 31), 1 << 31, True),
    10: ("R_X86_64_32", 4, 0, 1 << 32, False),
    11: ("R_X86_64_32S", 4, -(1 << 31), 1 << 31, False),
    24: ("R_X86_64_PC64", 8, -(1 << 63), 1 << 63, True),
}


@dataclass(frozen=True, slots=True)
class Relocation:
    at: int  # offset in the image
    type: int
    addend: int
    symbol: str  # a supplied function, or "" for a place in the image
    target: int  # offset in the image


@dataclass(frozen=True, slots=True)
class Object:
    """A vetted object: the bytes of all its sections laid out, what to patch, and where its global functions start."""

    image: bytes
    relocations: tuple[Relocation, ...]
    entries: Mapping[str, int]

    def link(self, base: int, supplied: Mapping[str, int]) -> bytes:
        """The image for loading at `base`; `supplied` holds the addresses of the runner's functions."""
        image = bytearray(self.image)
        for relocation in self.relocations:
            name, size, low, high, relative = _RELOCATIONS[relocation.type]
            symbol = supplied[relocation.symbol] if relocation.symbol else base + relocation.target
            value = symbol + relocation.addend - (base + relocation.at if relative else 0)
            if not low <= value < high:
                raise Rejected(Status.FORBIDDEN, f"relocation {name} does not reach its target")
            struct.pack_into("<I" if size == 4 else "<Q", image, relocation.at, value & ((1 << 8 * size) - 1))
        return bytes(image)


def vet(code: bytes) -> Object:
    """Reads an object file. Raises `Rejected`: FORBIDDEN for anything that is not pure code and constants,
    RESOURCE_LIMIT for an object that is too large to be read in a moment."""
    _limit("bytes of object file", len(code), MAX_BYTES)
    try:
        elf = ELFFile(io.BytesIO(code))
        if elf["e_machine"] != "EM_X86_64" or elf["e_type"] != "ET_REL":
            raise Rejected(Status.FORBIDDEN, f"not an x86-64 object file: {elf['e_machine']} {elf['e_type']}")
        _limit("sections", elf.num_sections(), MAX_SYMBOLS)
        table = elf.get_section_by_name(".symtab")
        _limit("symbols", table.num_symbols(), MAX_SYMBOLS)
        sections = [section for section in elf.iter_sections() if isinstance(section, RelocationSection)]
        _limit("relocations", sum(section.num_relocations() for section in sections), MAX_RELOCATIONS)
        places, image = _lay_out(elf)
        named = list(table.iter_symbols())
        symbols = [_resolve(elf, symbol, places) for symbol in named]
        entries = {
            symbol.name: target
            for symbol, (_, target) in zip(named, symbols, strict=True)
            if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_info"]["bind"] == "STB_GLOBAL" and target >= 0
        }
        _limit("global functions", len(entries), MAX_FUNCTIONS)
        return Object(bytes(image), tuple(_relocations(elf, places, symbols, len(image))), entries)
    except (ELFError, AttributeError, KeyError, IndexError, struct.error) as error:
        raise Rejected(Status.FORBIDDEN, f"not a well-formed object file: {error}") from error


def _limit(what: str, count: int, most: int) -> None:
    if count > most:
        raise Rejected(Status.RESOURCE_LIMIT, f"{count:,} {what}; a kernel's object may have {most:,}")


def _lay_out(elf: Any) -> tuple[dict[int, int], bytearray]:
    """Offsets of the kept sections by index, code first, and their bytes."""
    kept: list[tuple[int, Any]] = []
    for index, section in enumerate(elf.iter_sections()):
        if section["sh_size"] and section["sh_flags"] & _ALLOC and section["sh_type"] != "SHT_NOTE":
            kept.append((index, section))
    for what in (_runs_or_is_thread_local, _is_not_pure):
        for _, section in kept:
            if why := what(section):
                raise Rejected(Status.FORBIDDEN, f"section {section.name}: {why}")
    places: dict[int, int] = {}
    image = bytearray()
    for index, section in sorted(kept, key=lambda item: not item[1]["sh_flags"] & _EXEC):
        image.extend(b"\xcc" * (-len(image) % max(section["sh_addralign"], 1)))  # int3 between sections
        places[index] = len(image)
        image.extend(section.data())
    return places, image


def _stem(name: str) -> str:
    return "." + name.split(".")[1] if name.startswith(".") else name


def _runs_or_is_thread_local(section: Any) -> str:
    what = _REFUSED.get(_stem(section.name), "thread-local data" if section["sh_flags"] & _TLS else "")
    return f"{what} is not allowed" if what else ""


def _is_not_pure(section: Any) -> str:
    if section["sh_flags"] & _WRITE:
        return "writable static data is not allowed; keep state in scratch buffers"
    if _stem(section.name) not in (".text", ".rodata") or section["sh_type"] != "SHT_PROGBITS":
        return "only .text and .rodata are allowed"
    return f"aligned to more than {MAX_ALIGN} bytes" if section["sh_addralign"] > MAX_ALIGN else ""


def _resolve(elf: Any, symbol: Any, places: Mapping[int, int]) -> tuple[str, int]:
    """(name of a supplied function, -1), or ("", offset in the image); offset -1 for what nothing may refer to."""
    kind, index, name = symbol["st_info"]["type"], symbol["st_shndx"], symbol.name
    if kind in ("STT_LOOS", "STT_GNU_IFUNC"):
        raise Rejected(Status.FORBIDDEN, f"{name}: an indirect function, which runs at load, is not allowed")
    if kind == "STT_TLS":
        raise Rejected(Status.FORBIDDEN, f"{name}: thread-local data is not allowed")
    if index == "SHN_UNDEF":
        if name and name not in SUPPLIED:
            raise Rejected(Status.FORBIDDEN, f"undefined symbol {name}: a kernel may call only {', '.join(SUPPLIED)}")
        return name, -1
    if index == "SHN_COMMON":
        raise Rejected(Status.FORBIDDEN, f"{name}: writable static data is not allowed")
    return "", places[index] + symbol["st_value"] if index in places else -1


def _relocations(elf: Any, places: Mapping[int, int], symbols: list[tuple[str, int]], size: int) -> list[Relocation]:
    found: list[Relocation] = []
    for section in elf.iter_sections():
        if not isinstance(section, RelocationSection) or section["sh_info"] not in places:
            continue
        for entry in section.iter_relocations():
            symbol, target = symbols[entry["r_info_sym"]]
            kind, at = entry["r_info_type"], places[section["sh_info"]] + entry["r_offset"]
            if kind not in _RELOCATIONS or not entry.is_RELA():
                raise Rejected(Status.FORBIDDEN, f"relocation type {kind} at {at:#x} is not allowed")
            if not symbol and target < 0:
                raise Rejected(Status.FORBIDDEN, f"relocation at {at:#x} refers to nothing that is loaded")
            if not 0 <= at <= size - _RELOCATIONS[kind][1]:
                raise Rejected(Status.FORBIDDEN, f"relocation at {at:#x} lies outside the image")
            found.append(Relocation(at, kind, entry["r_addend"], symbol, target))
    return found

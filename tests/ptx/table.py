"""Which function emulates an instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ptx.lanes import TYPES, Mask, Operands
from ptx.memory import Fault
from ptx.parser import Instruction

if TYPE_CHECKING:
    from ptx.warp import Warp

Action = Callable[["Warp", Mask], None]
Build = Callable[[Operands, Instruction], Action]
_TABLE: dict[str, tuple[Build, frozenset[str], bool]] = {}


class UnknownInstruction(Fault):
    """The emulator has no meaning for a line of PTX."""


def emulates(*opcodes: str, modifiers: str = "", together: bool = False) -> Callable[[Build], Build]:
    """Registers a function for opcodes that begin so; what follows must be types or `modifiers`. All lanes of a warp
    that still run come `together` to such an instruction."""
    known = frozenset(modifiers.split()) | TYPES.keys()

    def register(build: Build) -> Build:
        for opcode in opcodes:
            _TABLE[opcode] = (build, known, together)
        return build

    return register


def require(fits: bool, instruction: Instruction) -> None:
    """Raises `UnknownInstruction` for a form that has no meaning here."""
    if not fits:
        raise _unknown(instruction)


def _unknown(instruction: Instruction) -> UnknownInstruction:
    return UnknownInstruction(f"the emulator does not know {instruction.opcode}")


def find(operands: Operands, instruction: Instruction) -> tuple[Action, bool]:
    """(what it does, whether all lanes do it together). Raises `UnknownInstruction`."""
    parts = instruction.parts
    for length in range(len(parts), 0, -1):
        entry = _TABLE.get(".".join(parts[:length]))
        if entry is None:
            continue
        build, known, together = entry
        require(known.issuperset(parts[length:]), instruction)
        return build(operands, instruction), together
    raise _unknown(instruction)

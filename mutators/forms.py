"""Other forms of a PTX instruction that take the same operands and mean the same, or more.

Cache operators, eviction hints and prefetch sizes change no value. Approximate and rounded forms do, within what the
gate accepts or rejects. Barriers and fences are only replaced by equal or stronger ones, and a load is never made
non-coherent (`.nc`): what is wrong only when a race is lost is nothing that a gate could be trusted to see.

Source: the PTX ISA's syntax of ld, ld.global.nc, st, cp.async, rcp, sqrt, div, bar, barrier.cluster, fence, mbarrier.
"""

from __future__ import annotations

import re

_TYPE = re.compile(r"(?:v[248]|[busf](?:8|16|32|64|128))")
_HINT = re.compile(r"L1::evict_(?:first|last|normal|unchanged)|L1::no_allocate|L2::(?:64|128|256)B")
_LOADS = (
    "", "cs", "cg", "lu", "L1::no_allocate", "L1::evict_first", "L1::evict_last", "L2::128B", "L2::256B",
    "L1::no_allocate.L2::128B", "L1::no_allocate.L2::256B",
)  # fmt: skip
_SHARED_LOADS = ("cg", "cg.L2::64B", "cg.L2::128B", "cg.L2::256B")  # `.cg` may be there to see what others wrote
_STORES = ("", "cs", "cg", "wt", "L1::no_allocate", "L1::evict_first")
_OPERATORS = {"ld": frozenset({"ca", "cs", "cg", "lu"}), "st": frozenset({"wb", "cs", "cg", "wt"})}
_ROUNDED = {"rcp": ("approx", "rn"), "sqrt": ("approx", "rn"), "div": ("approx", "full", "rn")}
_APPROXIMATE = ("rsqrt", "ex2", "lg2", "sin", "cos")
_SAME_OR_STRONGER = {
    "bar.sync": ("barrier.sync",), "bar.arrive": ("barrier.arrive",),
    "bar.cta.sync": ("barrier.cta.sync",), "bar.cta.arrive": ("barrier.cta.arrive",),
    "barrier.cluster.arrive.aligned": ("barrier.cluster.arrive",),
    "barrier.cluster.wait.aligned": ("barrier.cluster.wait",),
    "fence.acq_rel.cta": ("fence.sc.cta",), "fence.acq_rel.cluster": ("fence.sc.cluster",),
    "fence.acq_rel.gpu": ("fence.sc.gpu",), "fence.acq_rel.sys": ("fence.sc.sys",),
    "prefetch.global.L2": ("prefetch.global.L1", "prefetch.global.L2::evict_last", "prefetch.global.L2::evict_normal"),
}  # fmt: skip
_VECTOR = re.compile(r"(?P<head>(?:ld|st)\.global(?:\.[\w:]+)*?)\.v4\.(?P<type>[busf]32)\s+(?P<operands>[^;\"\\]+);")
_LOADED = re.compile(r"\{(?P<words>[^{}]+)\}\s*,\s*\[(?P<address>%\w+)(?:\s*\+\s*(?P<offset>\d+))?\]\s*")
_STORED = re.compile(r"\[(?P<address>%\w+)(?:\s*\+\s*(?P<offset>\d+))?\]\s*,\s*\{(?P<words>[^{}]+)\}\s*")


def alternatives(opcode: str) -> tuple[str, ...]:
    """Other spellings that fit the same operands, without the opcode itself; none where nothing is known."""
    head, *parts = opcode.split(".")
    if head in _OPERATORS and parts[:1] == ["global"]:
        found = _access(head, parts[1:])
    elif opcode.startswith("cp.async.c"):
        found = _copy(opcode)
    elif head in _ROUNDED:
        found = _floating(head, parts, _ROUNDED[head])
    elif head in _APPROXIMATE:
        found = _floating(head, parts, ("approx",))
    elif opcode.startswith(("mbarrier.try_wait.parity.shared", "mbarrier.test_wait.parity.shared")):
        found = tuple(f"mbarrier.{wait}.parity.{'.'.join(parts[2:])}" for wait in ("try_wait", "test_wait"))
    else:
        found = _SAME_OR_STRONGER.get(opcode, ())
    return tuple(other for other in dict.fromkeys(found) if other != opcode)


def _access(head: str, parts: list[str]) -> tuple[str, ...]:
    """Loads and stores of global memory that are neither volatile nor ordered."""
    coherent = "nc" not in parts
    tail = [part for part in parts if _TYPE.fullmatch(part)]
    rest = [part for part in parts if part != "nc" and part not in tail]
    if not tail or not all(part in _OPERATORS[head] or _HINT.fullmatch(part) for part in rest):
        return ()
    hints: tuple[str, ...] = _LOADS if head == "ld" else _STORES
    if not coherent:
        hints = tuple(hint for hint in hints if not hint or "::" in hint)
    elif head == "ld" and "cg" in rest:
        hints = _SHARED_LOADS
    middle = "" if coherent else ".nc"
    return tuple(f"{head}.global{middle}{'.' if hint else ''}{hint}.{'.'.join(tail)}" for hint in hints)


def _copy(opcode: str) -> tuple[str, ...]:
    """cp.async: `.cg` exists for 16 bytes only, so what is `.ca` stays so."""
    match = re.fullmatch(r"cp\.async\.(ca|cg)\.(shared(?:::cta)?\.global)(?:\.L2::(?:64|128|256)B)?", opcode)
    if match is None:
        return ()
    levels = ("ca",) if match[1] == "ca" else ("cg", "ca")
    sizes = ("", ".L2::64B", ".L2::128B", ".L2::256B")
    return tuple(f"cp.async.{level}.{match[2]}{size}" for level in levels for size in sizes)


def _floating(head: str, parts: list[str], kinds: tuple[str, ...]) -> tuple[str, ...]:
    if parts[-1:] != ["f32"] or parts[0] not in kinds or parts[1:-1] not in ([], ["ftz"]):
        return ()
    return tuple(f"{head}.{kind}{ftz}.f32" for kind in kinds for ftz in ("", ".ftz"))


def narrower(statement: str) -> tuple[str, ...]:
    """A 16-byte access of global memory as two of 8 and as four of 4 bytes, for a statement that is one such access.

    The address is a 64-bit operand, so no word that was loaded can have overwritten it.
    """
    match = _VECTOR.fullmatch(statement)
    if match is None or not alternatives(f"{match['head']}.v4.{match['type']}"):
        return ()
    loads = match["head"].startswith("ld")
    operands = (_LOADED if loads else _STORED).fullmatch(match["operands"])
    words = [word.strip() for word in operands["words"].split(",")] if operands else []
    if operands is None or len(words) != 4 or not all(re.fullmatch(r"%\w+", word) for word in words):
        return ()
    base = int(operands["offset"] or 0)

    def access(first: int, count: int) -> str:
        address = f"[{operands['address']}+{base + 4 * first}]"
        some = words[first] if count == 1 else f"{{{', '.join(words[first : first + count])}}}"
        opcode = f"{match['head']}{'' if count == 1 else f'.v{count}'}.{match['type']}"
        return f"{opcode} {some}, {address};" if loads else f"{opcode} {address}, {some};"

    return tuple(" ".join(access(first, count) for first in range(0, 4, count)) for count in (2, 1))


STATEMENT = re.compile(_VECTOR.pattern)
OPCODE = re.compile(r"(?<![\w.%:$])[a-z][a-z0-9]*(?:\.[a-zA-Z0-9_]+(?:::[a-zA-Z0-9_]+)?)+")

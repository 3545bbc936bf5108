"""What machine code does that no resource report tells: read from its SASS, for every build.

The source is not looked at: macros and pasted strings can hide an instruction there, nothing can hide it here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Functions = Mapping[str, Sequence[str]]  # instructions by function, as `sass.disassemble` gives them


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` finds it in one SASS instruction; `refused`: the candidate is forbidden, else its kernel is flagged."""

    pattern: str
    what: str
    why: str
    refused: bool = False


# Read by docs/genome.md; a test holds the two together.
RULES = (
    Rule(r"\bSR_(?:CLOCK|GLOBALTIMER)\w*", "reads a clock", "a call must not depend on time", refused=True),
    Rule(r"\bSR_PM\w*", "reads a performance counter", "a call must not depend on what ran before", refused=True),
    Rule(
        r"\b(?:CALL\S*|JMXU?|JMP\S*) +U?R\d", "calls through a function pointer",
        "where a computed address leads cannot be inspected: call the function by its name", refused=True,
    ),
    Rule(
        r"\b(?:TEX|TLD4?|TXD|TXQ|TMML|SULD|SUST|SUATOM|SURED|SUQUERY)\b", "uses a texture or a surface",
        "a launch plan can bind none", refused=True,
    ),
    Rule(
        r"\bSR_(?!TID\b|CTAID\b|NTID\b|NCTAID\b|LANEID\b|L[TE]MASK\b|G[TE]MASK\b|EQMASK\b|CgaCtaId\b|CgaSize\b|SMEMSZ\b)\w+",
        "reads where it runs", "multiprocessor, warp slot and the like differ from call to call",
    ),
    Rule(r"\bBPT\b", "has a trap or a breakpoint", "it ends the process where it is reached"),
    Rule(r"\bNANOSLEEP\b", "sleeps", "waiting for other blocks can hang"),
    Rule(r"\bPMTRIG\b", "triggers a performance event", "it does no work"),
    Rule(
        r"\bCCTL\S*\.[PD]ML2\b|\.ELL2\b|\b0x14f00000\b", "asks L2 to keep data",
        "the setting can outlive the call and favour the next one",
    ),
    Rule(r"\bCCTL\S*\.RML2\b", "discards lines of L2", "what they held is lost, whosever it was"),
    Rule(r"\b(?:LDL|STL)\b", "uses local memory", "slow, and not cleared between calls"),
)  # fmt: skip
_RULES = [(re.compile(rule.pattern), rule) for rule in RULES]
_ANY = re.compile("|".join(rule.pattern for rule in RULES))
_DRIVER_READ = re.compile(r"\bc\[0x0\]\[(0x[0-9a-f]+)\]")

LAUNCH_IDENTITY = Rule(
    "", "reads the number or the graph of its launch", "a call must not know which one it is", refused=True
)
# `plain` shows what any kernel reads of the driver's constants; the others also read what tells launches apart.
LAUNCH_PROBE = """
extern "C" __global__ void plain(unsigned long long* p) { p[0] = p[1]; }
extern "C" __global__ void number(unsigned long long* p) { asm volatile("mov.u64 %0, %%gridid;" : "=l"(p[0])); }
extern "C" __global__ void graph(unsigned long long* p) {
    asm volatile("mov.b64 %0, %%current_graph_exec;" : "=l"(p[0]));
}
"""


def driver_reads(instructions: Iterable[str]) -> set[int]:
    """Byte offsets at which the instructions read the constant bank that the driver fills, parameters included."""
    return {int(found[1], 16) for line in instructions for found in _DRIVER_READ.finditer(line)}


def launch_words(probe: Functions) -> frozenset[int]:
    """Offsets of the 32-bit words that tell one launch from another, from the built `LAUNCH_PROBE`."""
    plain = driver_reads(probe["plain"])
    starts = (driver_reads(probe["number"]) | driver_reads(probe["graph"])) - plain
    return frozenset(offset for start in starts for offset in (start, start + 4))


def findings(functions: Functions, words: frozenset[int] = frozenset()) -> dict[str, list[tuple[Rule, str]]]:
    """By function each rule that some instruction falls under, with the first such instruction."""
    found: dict[str, list[tuple[Rule, str]]] = {}
    for name, instructions in functions.items():
        suspects = [line for line in instructions if _ANY.search(line)]
        hits = [(rule, next((line for line in suspects if pattern.search(line)), "")) for pattern, rule in _RULES]
        if words & driver_reads(instructions):
            first = next(line for line in instructions if words & driver_reads([line]))
            hits.append((LAUNCH_IDENTITY, first))
        found[name] = [(rule, line) for rule, line in hits if line]
    return found


def violation(found: Mapping[str, Sequence[tuple[Rule, str]]]) -> str:
    """ "" or the first refusal, as a sentence."""
    for name, hits in found.items():
        for rule, line in hits:
            if rule.refused:
                return f"{name} {rule.what} ({line.strip()}), which is not allowed: {rule.why}"
    return ""


def flags(found: Mapping[str, Sequence[tuple[Rule, str]]], kernels: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """What to say of each kernel; what a function outside any kernel does is said of all."""
    names = list(kernels)
    shared = [hit for name, hits in found.items() if name not in names for hit in hits]
    return {
        name: tuple(dict.fromkeys(f"{rule.what} ({line.strip()})" for rule, line in [*found.get(name, ()), *shared]))
        for name in names
    }

"""What was built: facts about the machine code of every distinct build."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rich.table import Table
from rich.text import Text

from evo.records import Build, Kernel
from evo.report import notation
from evo.report.layout import listing, table, text

OPCODES = 4  # the most frequent ones of a kernel
FACTS: Mapping[str, Callable[[Kernel], str]] = {
    "registers": lambda kernel: str(kernel.registers or "-"),
    "spills": lambda kernel: notation.size(kernel.spill_bytes),
    "stack": lambda kernel: notation.size(kernel.stack_bytes),
    "shared": lambda kernel: notation.size(kernel.shared_bytes),
}
NOTHING = {"-", "0 B"}


def has_facts(builds: Iterable[Build]) -> bool:
    """Whether the target could tell anything of the kernels (the cpu target tells nothing of registers or stacks)."""
    return bool(_facts([kernel for build in builds for kernel in build.kernels]))


def kernel_table(builds: Iterable[Build]) -> Table:
    """One row a kernel and distinct build, in the order of the builds; facts that no kernel has are left out."""
    kernels = _distinct(builds)
    facts = _facts([kernel for _, kernel in kernels])
    result = table("kernel", *facts, "code", numbers=facts, fold=["kernel"])
    for code, kernel in kernels:
        result.add_row(text(kernel.name), *(FACTS[fact](kernel) for fact in facts), code)
    return result


def opcode_lines(builds: Iterable[Build]) -> list[Text]:
    """The most frequent opcodes of every kernel that were counted, a line each; empty when none were."""
    rows = []
    for code, kernel in _distinct(builds):
        if kernel.opcodes:
            ordered = sorted(kernel.opcodes.items(), key=lambda pair: (-pair[1], pair[0]))
            counted = ", ".join(f"{opcode} {count}" for opcode, count in ordered[:OPCODES])
            rows.append((kernel.name, code, counted))
    return listing(("kernel", "code", "most frequent opcodes"), rows) if rows else []


def flag_lines(builds: Iterable[Build]) -> list[Text]:
    """What a person should know of each kernel's machine code, a line each; empty where there is nothing."""
    rows = dict.fromkeys((kernel.name, flag) for _, kernel in _distinct(builds) for flag in kernel.flags)
    return listing(("kernel", "flagged"), list(rows)) if rows else []


def _facts(kernels: Iterable[Kernel]) -> list[str]:
    known = list(kernels)
    return [name for name, fact in FACTS.items() if any(fact(kernel) not in NOTHING for kernel in known)]


def _distinct(builds: Iterable[Build]) -> list[tuple[str, Kernel]]:
    """Kernels with the short hash of their code; builds that differ in what leaves no trace in the code count once."""
    found: dict[tuple[str, str], tuple[str, Kernel]] = {}
    for build in builds:
        for kernel in build.kernels:
            found.setdefault((build.code_hash, kernel.name), (notation.short(build.code_hash), kernel))
    return list(found.values())

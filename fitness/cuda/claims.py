"""Is an instruction that a gene names in the machine code? From PTX opcodes to what they must look like in SASS.

The table holds what was seen with NVRTC 13.5 on sm_80, sm_90a, sm_100a and sm_120a and is held by tests; no vendor
document says it. A PTX opcode that it does not know is "not proved", never "shown".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

Verdict = Literal["shown", "absent", "not proved", "no claim"]
Parts = Sequence[str]
Test = Callable[[str, frozenset[str]], bool]  # of (SASS base, its modifiers)

_OPCODE = re.compile(r"[a-z][a-z0-9]*(?:\.[\w:]+)+")
_BITS = {"b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "b128": 128} | {
    f"{kind}{bits}": bits for kind in "busf" for bits in (32, 64)
}
_STRONG = {"gpu": "GPU", "sys": "SYS", "cta": "SM", "cg": "GPU", "cv": "SYS", "ca": "SM", "wt": "SYS", "wb": "SM"}
_CACHE = {
    "nc": "CONSTANT", "cs": "EF", "lu": "LU", "L1::no_allocate": "NA", "L1::evict_last": "EL",
    "L1::evict_first": "EF", "L1::evict_unchanged": "EU", "L2::64B": "LTC64B", "L2::128B": "LTC128B",
    "L2::256B": "LTC256B",
}  # fmt: skip
_NEUTRAL = frozenset({"global", "weak", "relaxed", "acquire", "release", "v2", "v4", "v8", "L1::evict_normal"})
_LONE = {  # the longest prefix that fits: (SASS base, modifiers that it must have)
    "cp.async.commit_group": ("LDGDEPBAR", ()), "cp.async.wait_group": ("DEPBAR", ()),
    "cp.async.wait_all": ("DEPBAR", ()), "cp.async.ca": ("LDGSTS", ()), "cp.async.cg": ("LDGSTS", ("BYPASS",)),
    "cp.async.bulk.commit_group": ("UTMACMDFLUSH", ()), "cp.async.bulk.wait_group": ("DEPBAR", ()),
    "cp.async.bulk.shared::cluster.global": ("UBLKCP", ("S", "G")),
    "cp.async.bulk.shared::cta.global": ("UBLKCP", ("S", "G")),
    "cp.async.bulk.global.shared::cta": ("UBLKCP", ("G", "S")),
    "cp.async.bulk.prefetch.L2": ("UBLKPF", ()), "cp.reduce.async.bulk.global": ("UBLKRED", ()),
    "red.async": ("REDAS", ()), "st.async": ("STAS", ()), "redux.sync": ("REDUX", ()),
    "bar.sync": ("BAR", ("SYNC",)), "bar.arrive": ("BAR", ("ARV",)), "bar.red": ("BAR", ("RED",)),
    "bar.cta.sync": ("BAR", ("SYNC",)), "barrier.sync": ("BAR", ("SYNC",)), "barrier.arrive": ("BAR", ("ARV",)),
    "barrier.cta.sync": ("BAR", ("SYNC",)), "barrier.cta.arrive": ("BAR", ("ARV",)),
    "barrier.cluster.arrive": ("UCGABAR_ARV", ()), "barrier.cluster.wait": ("UCGABAR_WAIT", ()),
    "mbarrier.arrive": ("SYNCS", ("ARRIVE",)), "mbarrier.try_wait": ("SYNCS", ("PHASECHK", "TRYWAIT")),
    "mbarrier.test_wait": ("SYNCS", ("PHASECHK",)), "fence.proxy.async": ("FENCE", ("VIEW", "ASYNC")),
    "fence.acq_rel": ("MEMBAR", ()), "fence.sc": ("MEMBAR", ("SC",)), "membar": ("MEMBAR", ("SC",)),
    "ldmatrix.sync": ("LDSM", ()), "stmatrix.sync": ("STSM", ()), "ex2.approx": ("MUFU", ("EX2",)),
    "lg2.approx": ("MUFU", ("LG2",)), "rsqrt.approx": ("MUFU", ("RSQ",)), "rcp.approx": ("MUFU", ("RCP",)),
    "tanh.approx": ("MUFU", ("TANH",)), "sin.approx": ("MUFU", ("SIN",)), "cos.approx": ("MUFU", ("COS",)),
    "griddepcontrol.wait": ("ACQBULK", ()), "griddepcontrol.launch_dependents": ("PREEXIT", ()),
}  # fmt: skip
_HEADS = frozenset(prefix.partition(".")[0] for prefix in _LONE) | {
    "ld", "ldu", "st", "mma", "wgmma", "atom", "red", "cp", "prefetch", "multimem", "tcgen05", "wmma", "shfl", "vote",
    "mbarrier", "nanosleep", "setmaxnreg", "createpolicy", "applypriority", "discard", "sqrt",
}  # fmt: skip


def prove(text: str, opcodes: Collection[str]) -> Verdict:
    """Whether the PTX opcode `text` is shown by one of the SASS opcodes. "no claim": the text is no PTX opcode."""
    ptx = text.strip().rstrip(";").strip()
    if not _OPCODE.fullmatch(ptx) or ptx.partition(".")[0] not in _HEADS:
        return "no claim"
    test = _expected(ptx)
    if test is None:
        return "not proved"
    return "shown" if any(test(*_split(opcode)) for opcode in opcodes) else "absent"


def doubts(claims: Iterable[tuple[str, str]], opcodes: Collection[str]) -> tuple[str, ...]:
    """A sentence for every (gene, PTX opcode) that the SASS does not show."""
    verdicts = [(gene, ptx, prove(ptx, opcodes)) for gene, ptx in claims]
    return tuple(
        f"gene {gene}: {ptx} is not in the machine code" if verdict == "absent" else f"gene {gene}: {ptx} is not proved"
        for gene, ptx, verdict in verdicts
        if verdict in ("absent", "not proved")
    )


def _split(opcode: str) -> tuple[str, frozenset[str]]:
    base, *modifiers = opcode.split(".")
    return base, frozenset(modifiers)


def _expected(ptx: str) -> Test | None:
    head, *parts = ptx.split(".")
    if head in ("ld", "st") and "async" not in parts:
        return _access(head, parts)
    if head in ("mma", "wgmma"):
        return _matrix(head, parts)
    if head in ("atom", "red") and "async" not in parts:
        return _atomic(head, parts)
    if ptx.startswith(("cp.async.bulk.tensor.", "cp.reduce.async.bulk.tensor.")):
        return _tensor(parts, reduces=head == "cp" and parts[0] == "reduce")
    prefix = max((p for p in _LONE if f"{ptx}.".startswith(f"{p}.")), key=len, default="")
    if not prefix:
        return None
    base, needed = _LONE[prefix]
    levels = {_CACHE[part] for part in parts if part.startswith("L2::") and part in _CACHE}
    return _has((base,), {*needed, *levels})


def _has(bases: Sequence[str], needed: Collection[str]) -> Test:
    wanted = frozenset(needed)
    return lambda base, modifiers: base in bases and wanted <= modifiers


def _access(head: str, parts: Parts) -> Test | None:
    """Loads and stores: all modifiers must be equal, so that a plain load is not shown by a cached one."""
    shared = any(part in ("shared", "shared::cta") for part in parts)
    if not shared and "global" not in parts:
        return None  # generic: the compiler may prove the space
    bits = next((_BITS[part] for part in parts if part in _BITS), 0)
    count = next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
    wanted, strong = set(), "volatile" in parts
    for part in parts:
        if part in _CACHE:
            wanted.add(_CACHE[part])
        elif part in _STRONG:
            wanted |= {"STRONG", _STRONG[part]}
        elif part not in _NEUTRAL | {"shared", "shared::cta", "volatile"} and part not in _BITS:
            return None
    if strong and not shared:
        wanted |= {"STRONG", "SYS"}
    width = bits * count
    if width > 32:
        wanted.add(str(width))
    elif width < 32:
        wanted.add(f"{'S' if any(part in ('s8', 's16') for part in parts) else 'U'}{width}")
    base = {"ld": "LDS", "st": "STS"}[head] if shared else {"ld": "LDG", "st": "STG"}[head]
    ignored = frozenset({"E", "ENL2"})  # 64-bit addresses; no L2 priority, said of 256-bit accesses only
    return lambda found, modifiers: found == base and modifiers - ignored == frozenset(wanted)


def _matrix(head: str, parts: Parts) -> Test | None:
    """mma.sync and wgmma.mma_async. FP8 that is unpacked for a 16-bit mma (as on sm_90) does not count as FP8."""
    shape = next((found for part in parts if (found := re.fullmatch(r"m(\d+)n(\d+)k(\d+)", part))), None)
    types = [part for part in parts if re.fullmatch(r"(?:bf|f|tf|s|u|e\dm|b)\d+", part)]
    if shape is None or len(types) < 3:
        return None
    element = types[1]
    kind, extra = {
        "f16": ("H", ()), "bf16": ("H", ("BF16",)), "tf32": ("H", ("TF32",)), "e4m3": ("Q", ("E4M3",)),
        "e5m2": ("Q", ("E5M2",)), "s8": ("I", ("S8",)), "u8": ("I", ("U8",)), "f64": ("D", ()),
    }.get(element, ("", ()))  # fmt: skip
    if not kind:
        return None
    m, n, k = shape.groups()
    if head == "wgmma":
        return _has((f"{kind}GMMA",), {f"{m}x{n}x{k}", *extra})
    sizes = (f"{m}{n}{k}", f"{m}x{n}x{k}")
    return lambda base, found: base == f"{kind}MMA" and any(size in found for size in sizes) and set(extra) <= found


def _atomic(head: str, parts: Parts) -> Test | None:
    operation = next((p.upper() for p in parts if p in "add min max and or xor cas exch inc dec".split()), "")
    if not operation:
        return None
    if any(part in ("shared", "shared::cta") for part in parts):
        return _has(("ATOMS", "REDS"), {operation})
    if "global" not in parts:
        return None
    return _has(("ATOMG", "ATOM") if head == "atom" else ("RED", "REDG"), {operation})


def _tensor(parts: Parts, *, reduces: bool) -> Test | None:
    rank = next((part.upper() for part in parts if re.fullmatch(r"[1-5]d", part)), "")
    places = [part for part in parts if part in ("global", "shared::cluster", "shared::cta")]
    if not rank or len(places) < 2:
        return None
    base = "UTMAREDG" if reduces else "UTMASTG" if places[0] == "global" else "UTMALDG"
    return _has((base,), {rank})

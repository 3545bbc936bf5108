"""Reads what NVRTC, ptxas and nvJitLink write: the resource report of `-v`, notices, errors."""

from __future__ import annotations

import re
from dataclasses import dataclass

SOURCE_FOLDER = "/evo.candidate/"  # named to the compiler, and absent, so that no quoted #include finds a file there
MAX_DETAIL = 8000  # characters of a log that a diagnosis keeps

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REPORT = re.compile(
    r"bytes gmem|Compiling entry function|Function properties for|bytes stack frame|: Used \d+ registers|Compile time ="
    r"|Overriding maximum register limit|^\s*Remark: The warnings can be suppressed|^\s*$"
)
_ERROR = re.compile(r"\b(?:error|fatal)\s*(?:#\d+\S*)?\s*:\s*(?P<what>.+)")
_SERIALISED = re.compile(
    r"\(C75\d\d\)[^\n]*wgmma\.mma_async instructions are serialized (?P<why>due to [^\n]*?) in (?:the )?function "
    r"'(?P<kernel>[^']+)'"
)
_INJECTED = re.compile(r"\(C75\d\d\)[^\n]*wgmma\.wait_group is injected [^\n]* in function '(?P<kernel>[^']+)'")
_PLACE = re.compile(r"(?P<source>candidate\.\w+\(\d+\))|ptx input, line (?P<ptx>\d+)")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one kernel and the functions it calls, bytes. Spills: stored plus loaded."""

    stack_bytes: int = 0
    spill_bytes: int = 0


def parse_report(log: str) -> dict[str, Usage]:
    """What `ptxas -v` says about each entry function. The frames of called functions follow that of their entry."""
    usages: dict[str, Usage] = {}
    entry = ""
    for line in log.splitlines():
        if found := _ENTRY.search(line):
            entry = found[1]
            usages[entry] = Usage()
        elif entry and (found := _FRAME.search(line)):
            frame, stores, loads = (int(group) for group in found.groups())
            before = usages[entry]
            usages[entry] = Usage(before.stack_bytes + frame, before.spill_bytes + stores + loads)
    return usages


def notices(log: str) -> str:
    """The log without the resource report: warnings and ptxas' performance notices, such as (C7510) on wgmma."""
    lines = (line.rstrip() for line in log.replace(SOURCE_FOLDER, "").replace("\0", "").splitlines())
    return "\n".join(line for line in lines if not _REPORT.search(line))[:MAX_DETAIL]


def remarks(log: str) -> dict[str, tuple[str, ...]]:
    """What ptxas' notices on wgmma (C7510 to C7517) mean for each kernel, for a person."""
    found: dict[str, dict[str, None]] = {}
    for match in _SERIALISED.finditer(log):
        text = f"wgmma is serialised {match['why']}: the tensor cores wait for one multiplication after the other"
        found.setdefault(match["kernel"], {})[text] = None
    for match in _INJECTED.finditer(log):
        text = "ptxas had to wait for wgmma early: the accumulators are used before wgmma.wait_group"
        found.setdefault(match["kernel"], {})[text] = None
    return {kernel: tuple(texts) for kernel, texts in found.items()}


def error_log(text: str) -> str:
    """The compiler's own words in what cuda.core raised."""
    for mark in ("compilation log:", "error log:"):
        if mark in text:
            text = text.split(mark, 1)[1]
            break
    return notices(text).strip()


def first_error(log: str) -> str:
    """The first error of a log as one sentence, with its place in the source (or in the PTX) where the log has one."""
    for line in log.splitlines():
        if found := _ERROR.search(line):
            place = _PLACE.search(line)
            return f"{place['source'] or 'PTX line ' + place['ptx']}: {found['what']}" if place else found["what"]
    return log.strip().splitlines()[0] if log.strip() else "the compiler gave no reason"


def explain(log: str, arch: str) -> str:
    """A hint for errors that have one usual cause, or ""."""
    if "cannot be compiled for architecture" in log or "not supported on .target" in log:
        return f"name the architectures that have this instruction in the header's `arch` ({arch} has not)"
    if "exceeds" in log and "registers" in log:
        return "lower the launch bounds or `maxrregcount`"
    return ""

"""Reads `zoo.toml`: which files there are, and what each must get."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import Any

from evo.fitness.zoo.member import Member
from evo.records import Status

HERE = Path(__file__).parent
CONTROL = "0 honest control"
_SUMMARY = re.compile(r'^summary\s*=\s*"(.*)"\s*$', re.MULTILINE)  # also of headers that cannot be parsed


@functools.cache
def _manifest() -> dict[str, Any]:
    return tomllib.loads((HERE / "zoo.toml").read_text(encoding="utf-8"))


def kinds() -> dict[str, str]:
    """Every kind of false speed-up, by its number and name, with a sentence that says how it looks."""
    return dict(_manifest()["kinds"])


def honest(operator: str, target: str) -> Member | None:
    """The correct kernel that an operator's files were made from; None where there are no files."""
    return next((member for member in file_members(operator, target) if member.kind == CONTROL), None)


def file_members(operator: str, target: str) -> tuple[Member, ...]:
    """The files for this operator and target."""
    if operator != _manifest()["operator"]:
        return ()
    mine = (".cpp",) if target == "cpu" else (".cu", ".ptx")
    return tuple(_member(entry) for entry in _manifest()["member"] if Path(entry["file"]).suffix in mine)


def _member(entry: dict[str, Any]) -> Member:
    path = HERE / entry["file"]
    source = path.read_text(encoding="utf-8")
    found = _SUMMARY.search(source)
    return Member(
        name=entry["name"],
        kind=entry["kind"],
        summary=found[1] if found else "",
        suffix=path.suffix,
        source=source,
        expect=tuple(Status(text) for text in entry["expect"]),
        stage=entry.get("stage", "check"),
        why=entry.get("why", ""),
        says=entry.get("says", ""),
        cases=tuple(entry.get("cases", _manifest()["cases"][path.suffix])),
        values=dict(entry.get("genes", {})),
        gain=entry.get("gain", 0.0),
        slow=entry.get("slow", False),
        escape=entry.get("escape", ""),
    )

"""What a check of the machine or of an operator found: one line each, with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from evo.errors import EvoError


class Health(StrEnum):
    OK = "ok"
    WARNING = "warning"  # results stay true, but may be noisy, slow or incomplete
    PROBLEM = "problem"  # something will not work, or numbers could be wrong
    SKIPPED = "skipped"  # could not be looked at, or does not apply here


@dataclass(frozen=True, slots=True)
class Finding:
    """`part` groups: "machine", "gpu", "cuda:0", "operator". `seen` has the values; `fix` says what to do, in words or
    as a command; `details` are further lines."""

    part: str
    what: str
    state: Health
    seen: str
    fix: str = ""
    details: tuple[str, ...] = ()


Probe = Callable[[], Iterable[Finding]]


def look(part: str, what: str, probe: Probe) -> list[Finding]:
    """The probe's findings, or one that says why it could not look."""
    try:
        return list(probe())
    except EvoError as error:  # it says itself what to do
        return [Finding(part, what, Health.PROBLEM, error.what, error.fix)]
    except Exception as error:  # a doctor that falls ill helps nobody: drivers, tools and plugins fail in any way
        lines = str(error).splitlines()
        return [Finding(part, what, Health.SKIPPED, f"{type(error).__name__}: {lines[0]}" if lines else repr(error))]

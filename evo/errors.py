"""Every error that evo raises for a person to read.

EvoError
├── UsageError              the command or a file it names is wrong           (exit 2)
│   ├── GenomeError         a genome file: file, line, key, value, fix
│   ├── LanguageError       an expression of the small language: column, value, fix
│   ├── UnknownNameError    no such operator, target, case, ...; near matches
│   └── TargetError         the target cannot be used here: no GPU, no compiler
├── ArchiveError            not an archive, newer, locked, disk full          (exit 1)
└── RunError                the run itself failed                             (exit 1)
    └── DeviceLostError     the device does not come back; the run can be resumed

A candidate's fault is never an exception that leaves `fitness`: it is a `Status` in a record. Inside `fitness`,
`Rejected` (see `evo.target`) carries such a status from the device to the record.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EvoError(Exception):
    """What happened, with the value, and what to do about it."""

    exit_code = 1

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}\n  {self.fix}" if self.fix else self.what


class UsageError(EvoError):
    """The user's mistake; shown without a traceback."""

    exit_code = 2


class GenomeError(UsageError):
    """A genome file that cannot be used: `file:line: [key] what (got value)` and the fix."""

    def __init__(
        self, what: str, *, file: str = "", line: int = 0, key: str = "", value: object = None, fix: str = ""
    ) -> None:
        place = f"{file or 'genome'}:{line}: " if line else f"{file or 'genome'}: "
        got = "" if value is None else f" (got {value!r})"
        super().__init__(f"{place}{f'{key}: ' if key else ''}{what}{got}", fix=fix)
        self.reason = what
        self.file = file
        self.line = line
        self.key = key
        self.value = value


class LanguageError(UsageError):
    """An expression outside the small language, or one whose value is out of range."""

    def __init__(self, what: str, *, expression: str, column: int = 0, fix: str = "") -> None:
        super().__init__(f"{what}, in {expression!r} at column {column}", fix=fix)
        self.reason = what
        self.expression = expression
        self.column = column


class UnknownNameError(UsageError):
    """A name that is not registered, with the near ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, fix: str = "") -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(near)}{'' if fix else '?'}"
            if near
            else f"there are: {', '.join(names) or 'none'}"
        )
        super().__init__(f"unknown {kind} {name!r}", fix="; ".join(part for part in (hint, fix) if part))
        self.near = near


class TargetError(UsageError):
    """A target that exists but cannot be used on this machine."""


class ArchiveError(EvoError):
    """The archive file cannot be used as it is."""


class RunError(EvoError):
    """The run failed for a reason that is not a candidate's."""


class DeviceLostError(RunError):
    """The device failed again and again to do what evo's own kernels ask. What was measured is filed."""

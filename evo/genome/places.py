"""Where things stand in a genome file, so that every complaint names file, line and key."""

from __future__ import annotations

from dataclasses import dataclass

from evo.errors import GenomeError, LanguageError
from evo.genome.closures import Scope
from evo.genome.language import Expression
from evo.records import Value


def shown(value: object) -> object:
    """`value` in a form that is short and safe to print, whatever a hostile file holds."""
    if isinstance(value, str):
        return value if len(value) <= 120 else f"{value[:117]}..."
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else f"a list of {len(value)}"
    return value if value is None or isinstance(value, int | float) else str(value)[:120]


class Uncovered(GenomeError):
    """The genome is fine, but it does not cover this case; `uncovered` says so before anything is raised."""


@dataclass(frozen=True, slots=True)
class Place:
    """A key of the header: "launch[0].grid" in line 17 of a file."""

    file: str
    line: int
    key: str

    def error(self, what: str, value: object = None, fix: str = "") -> GenomeError:
        return GenomeError(what, file=self.file, line=self.line, key=self.key, value=shown(value), fix=fix)

    def uncovered(self, what: str, value: object = None, fix: str = "") -> Uncovered:
        return Uncovered(what, file=self.file, line=self.line, key=self.key, value=shown(value), fix=fix)


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """An expression of the header with its place."""

    place: Place
    expression: Expression

    @property
    def names(self) -> frozenset[str]:
        return self.expression.names

    def value(self, scope: Scope) -> Value:
        """Raises `GenomeError` where the language raises `LanguageError`."""
        try:
            return self.expression(scope)
        except LanguageError as error:
            raise self.located(error) from None

    def integer(self, scope: Scope) -> int:
        try:
            return self.expression.integer(scope)
        except LanguageError as error:
            raise self.located(error) from None

    def positive(self, scope: Scope, limit: int, what: str) -> int:
        """The value, from 1 to `limit`; `what` it counts goes into the message."""
        number = self.integer(scope)
        if not 1 <= number <= limit:
            raise self.error(
                f"{what} must be from 1 to {limit}: {self.expression.text!r} is {number}",
                number,
                "change the expression, or exclude the case or the gene values by a constraint",
            )
        return number

    def error(self, what: str, value: object = None, fix: str = "") -> GenomeError:
        return self.place.error(what, self.expression.text if value is None else value, fix)

    def located(self, error: LanguageError) -> GenomeError:
        at = f" at column {error.column}" if error.column else ""
        text = "" if error.expression == self.expression.text else f" in {error.expression!r}"
        return self.error(f"{error.reason}{text}{at}", fix=error.fix)

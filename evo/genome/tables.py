"""Typed reading of the header's tables: whatever does not fit is a `GenomeError` at the right line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from evo.errors import LanguageError
from evo.genome import language
from evo.genome.closures import INT_MAX, INT_MIN
from evo.genome.header import Header, Path
from evo.genome.places import Place, Term

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}")


class Table:
    """One table of the header. `keys` names all that it may hold; None leaves the keys to the file (gene names ...)."""

    def __init__(self, header: Header, path: Path, data: dict[str, Any], keys: Sequence[str] | None) -> None:
        self.header = header
        self.path = path
        self.data = data
        for key in data:
            if keys is not None and key not in keys:
                near = difflib.get_close_matches(key, keys, n=1)
                fix = f"did you mean {near[0]}?" if near else f"known here: {', '.join(keys)}"
                raise self.place(key).error("unknown key", data[key], fix)

    def place(self, key: str = "", index: int | None = None, needle: str = "") -> Place:
        path: Path = self.path + ((key,) if key else ()) + (() if index is None else (index,))
        return self.header.place(path, needle)

    def require(self, key: str, what: str) -> Any:
        if key not in self.data:
            raise self.place(key).error("missing", fix=f"add {key} = {what}")
        return self.data[key]

    def string(self, key: str, default: str = "") -> str:
        """One line of printable text of at most 500 characters."""
        value = self.data.get(key, default)
        if not isinstance(value, str):
            raise self.place(key).error("must be a text", value, f'write {key} = "..."')
        if not value.isprintable() or len(value) > 500:
            raise self.place(key).error("must be one printable line of at most 500 characters", value, "shorten it")
        return value

    def word(self, key: str) -> str:
        """A required name such as rmsnorm or block-per-row."""
        self.require(key, '"a-name"')
        value = self.string(key)
        if not _WORD.fullmatch(value):
            raise self.place(key).error("is not a name", value, "use letters, digits, - _ . and at most 64 of them")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        """A list of distinct identifiers, by default empty."""
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.place(key).error("must be a list of names", value, f'write {key} = ["..."]')
        for index, item in enumerate(value):
            if not IDENTIFIER.fullmatch(item) or item in value[:index]:
                raise self.place(key, index, item).error("is not a name, or is there twice", item, "correct it")
        return tuple(value)

    def choice(self, key: str, options: Sequence[str], default: str) -> str:
        value = self.data.get(key, default)
        if value not in options:
            near = difflib.get_close_matches(value, options, n=1) if isinstance(value, str) else []
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise self.place(key).error("unknown choice", value, f"{hint}one of {', '.join(map(repr, options))}")
        return str(value)

    def term(self, key: str, default: int | str | None = None, *, truth: bool = False) -> Term:
        """An expression or an integer; `truth` also allows true and false. Without a default it is required."""
        value = self.data.get(key, default)
        if value is None:
            self.require(key, "an expression")
        return self.as_term(value, key, truth=truth)

    def terms(self, key: str, fewest: int, most: int) -> tuple[Term, ...]:
        """A required list of expressions or integers."""
        value = self.require(key, '["..."]')
        if not isinstance(value, list) or not fewest <= len(value) <= most:
            counts = f"{fewest} to {most} expressions"
            raise self.place(key).error(f"must be a list of {counts}", value, f'write {key} = ["..."]')
        return tuple(self.as_term(item, key, index) for index, item in enumerate(value))

    def as_term(self, value: object, key: str, index: int | None = None, *, truth: bool = False) -> Term:
        if isinstance(value, bool) and truth:
            value = int(value)
        place = self.place(key, index, value[:60].partition("\n")[0] if isinstance(value, str) else "")
        if isinstance(value, bool) or not isinstance(value, int | str):
            wanted = "true, false or an expression" if truth else "an integer or an expression in quotes"
            raise place.error(f"must be {wanted}", value, f'write {key} = "..."')
        if isinstance(value, int) and not INT_MIN < value <= INT_MAX:
            raise place.error("is beyond 64 bits", value, "use a smaller integer")
        try:
            return Term(place, language.parse(str(value)))
        except LanguageError as error:
            at = f" at column {error.column}" if error.column else ""
            raise place.error(f"{error.reason}{at}", value, error.fix) from None

    def table(self, key: str, keys: Sequence[str] | None) -> Table:
        """A sub-table, by default empty."""
        value = self.data.get(key, {})
        if not isinstance(value, dict):
            raise self.place(key).error("must be a table", value, f"write [{key}] and its keys below it")
        return Table(self.header, (*self.path, key), value, keys)

    def named(self, key: str, keys: Sequence[str]) -> dict[str, Table]:
        """The sub-tables [key.NAME], by name."""
        items = self.table(key, None).data.items()
        return {name: self._item(key, name, value, keys) for name, value in items}

    def listed(self, key: str, keys: Sequence[str]) -> list[Table]:
        """The sub-tables [[key]], in order."""
        value = self.data.get(key, [])
        if not isinstance(value, list):
            raise self.place(key).error("must be a list of tables", value, f"write [[{key}]] with two brackets")
        return [self._item(key, index, item, keys) for index, item in enumerate(value)]

    def _item(self, key: str, name: str | int, value: object, keys: Sequence[str]) -> Table:
        path: Path = (*self.path, key, name)
        if not isinstance(value, dict):
            example = f"[{key}.{name}]" if isinstance(name, str) else f"[[{key}]]"
            raise self.header.place(path).error("must be a table", value, f"write {example} and its keys below it")
        return Table(self.header, path, value, keys)

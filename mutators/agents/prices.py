"""What tokens cost: a table that comes with evo, and the user's own before it. A price that is not known stays so."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.errors import UsageError
from evo.exchange import Usage
from evo.mutators.agents.providers.spec import ModelSpec

BUILT_IN = Path(__file__).parent / "prices.toml"
MILLION = 1e6
_DATED = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
_SAME = {"openai-responses": "openai"}  # one list for both interfaces
_KEYS = ("input", "cached", "output")


@dataclass(frozen=True, slots=True)
class Price:
    """USD for a million tokens."""

    input: float
    output: float
    cached: float

    def usd(self, usage: Usage) -> float:
        fresh = max(0, usage.input - usage.cached)
        return (fresh * self.input + usage.cached * self.cached + usage.output * self.output) / MILLION


class Prices:
    """Prices by model. Models that run where the user says are priced only by the full name, base URL included."""

    def __init__(self, table: Mapping[str, Price]) -> None:
        self._table = dict(table)

    @classmethod
    def load(cls, own: Path | None = None) -> Prices:
        """Raises `UsageError` for a file that is no such table."""
        table = _read(BUILT_IN)
        if own is not None:
            table |= _read(own)
        return cls(table)

    def of(self, spec: ModelSpec) -> Price | None:
        """None where it is not known."""
        if spec.name in self._table:
            return self._table[spec.name]
        if spec.elsewhere or not spec.base_url:
            return None
        name = f"{_SAME.get(spec.provider, spec.provider)}:{spec.model}"
        return self._table.get(name) or self._table.get(_DATED.sub("", name))

    def dearest(self) -> Price:
        """What a budget in USD is charged for tokens of unknown price: no known model costs more."""
        prices = self._table.values()
        dear = [max((getattr(price, key) for price in prices), default=0.0) for key in ("input", "output")]
        return Price(dear[0], dear[1], dear[0])


def _read(file: Path) -> dict[str, Price]:
    try:
        data = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the prices in {file} cannot be read: {error}", fix=f"write it as {BUILT_IN.name} is"
        ) from None
    return {name: _price(name, entry, file) for name, entry in data.items()}


def _price(name: str, entry: Any, file: Path) -> Price:
    good = isinstance(entry, dict) and {"input", "output"} <= set(entry) <= set(_KEYS)
    if not good or not all(type(number) in (int, float) and number >= 0 for number in entry.values()):
        raise UsageError(
            f"{file}: the price of {name!r} is {entry!r}", fix="give input, output and cached, USD for a million tokens"
        )
    return Price(float(entry["input"]), float(entry["output"]), float(entry.get("cached", entry["input"])))

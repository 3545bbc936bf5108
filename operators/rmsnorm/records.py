"""Opponents' times that were measured elsewhere, from a data file of an operator."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from evo.operator import Recorded


@functools.cache
def read_recorded(path: Path) -> tuple[Recorded, ...]:
    """The file: `protocol`, `provenance`, and `times_us` by opponent and case."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return tuple(
        Recorded(case, opponent, data["protocol"], float(time_us), data["provenance"])
        for opponent, times in data["times_us"].items()
        for case, time_us in times.items()
    )

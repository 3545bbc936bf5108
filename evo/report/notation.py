"""How numbers are written everywhere: ratios, times, shares, gene values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from evo.records import Author, Values
from evo.report.printable import one_line
from evo.wording import count as count

UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "us"), (1e-3, "ns"))


def ratio(value: float) -> str:
    """A speed-up: three decimals where they can matter, two from 10 on, and two for a clear loss (0.97x)."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.3f}x" if 0.995 <= value < 10 else f"{value:.2f}x"


def ratio_interval(value: float, low: float, high: float) -> str:
    """`1.034x  [1.031, 1.037]`: the bounds always have the decimals that tell a gain from none."""
    if not math.isfinite(value):
        return "-"
    digits = 3 if value < 10 else 2
    return f"{ratio(value)}  [{low:.{digits}f}, {high:.{digits}f}]"


def time(microseconds: float) -> str:
    """Four significant digits and a unit: `38.12 us`, `1.204 ms`; "-" for no time."""
    if not math.isfinite(microseconds) or microseconds <= 0:
        return "-"
    scale, unit = next((pair for pair in UNITS if microseconds >= pair[0] * 0.99995), UNITS[-1])
    value = microseconds / scale
    return f"{value:.{max(0, 3 - math.floor(math.log10(max(value, 1.0))))}f} {unit}"


def duration(seconds: float) -> str:
    """Wall time for people: `48 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def share(fraction: float) -> str:
    """A part of the speed of light, as a percentage; "-" where it is not known."""
    return f"{fraction:.0%}" if math.isfinite(fraction) and fraction > 0 else "-"


def size(count: int) -> str:
    """`512 B`, `48 KiB`, `96.2 MiB`."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"


def genes(values: Values) -> str:
    """`THREADS=256 PAD=0`, in the genome's order."""
    return " ".join(f"{name}={value}" for name, value in values.items()) or "no genes"


def counts(by_kind: Mapping[str, int]) -> str:
    """`wrong_result 12, build_error 3`, most frequent first; "none" when there are none."""
    ordered = sorted(by_kind.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{kind} {count}" for kind, count in ordered if count) or "none"


def spread(ratios: Iterable[float]) -> str:
    """Minimum, geometric mean and maximum, always together: one of them alone misleads."""
    known = [value for value in ratios if math.isfinite(value) and value > 0]
    if not known:
        return "no case has a speed-up"
    mean = math.exp(sum(map(math.log, known)) / len(known))
    return f"min {ratio(min(known))}   geomean {ratio(mean)}   max {ratio(max(known))}"


def author(who: Author) -> str:
    """Kind and model, on one line whatever they are."""
    return one_line(" ".join(part for part in (who.kind, who.model) if part))


def short(identity: str) -> str:
    """Enough of an identity to be typed, since commands accept any unique prefix: 10 of a hash; of a time-ordered
    UUID 13, which reach down to the millisecond."""
    return identity[: 13 if "-" in identity else 10]

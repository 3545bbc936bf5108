"""What a run may spend, and what it has spent."""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from evo.errors import UsageError
from evo.wording import count

WHOLE = frozenset({"evaluations", "tokens", "stall"})
ENDING = ("evaluations", "minutes", "gpu_minutes", "stall")  # those that every run uses up sooner or later
EXACT = 2**53  # from here on a float's neighbours are more than 1 apart: not all of its digits are known
EXAMPLE = "write for example --budget minutes=5,evaluations=500"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run; 0 means no limit. The first one reached ends the search.

    `stall` counts evaluations since the last improvement; `gpu_minutes` is time on the device, whatever its kind.
    """

    evaluations: int = 0
    minutes: float = 0.0
    gpu_minutes: float = 0.0
    tokens: int = 0
    usd: float = 0.0
    stall: int = 0

    @classmethod
    def parse(cls, text: str) -> Budget:
        """A budget from `key=value,...`; one minute where nothing is named that ends every run.

        Raises `UsageError` for an unknown or repeated key and for a value that is not a positive number.
        """
        limits: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, separator, value = (piece.strip() for piece in part.partition("="))
            _expect_key(key, limits)
            if not separator:
                raise UsageError(f"budget {key!r} has no value", fix=EXAMPLE)
            limits[key] = _number(key, value)
        if not any(key in limits for key in ENDING):
            limits["minutes"] = 1.0
        whole = {key: int(value) for key, value in limits.items() if key in WHOLE}
        return cls(**(limits | whole))  # type: ignore[arg-type]  # whole numbers where the field is int

    def limits(self) -> dict[str, float]:
        """The limits that are set, by key."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name))}

    def __str__(self) -> str:
        return ",".join(f"{key}={written(value)}" for key, value in self.limits().items())


def written(value: float) -> str:
    """A limit with all its digits, so that it reads back as it was; whole numbers without a point."""
    return str(int(value)) if isinstance(value, int) or (value.is_integer() and value < EXACT) else repr(value)


def _expect_key(key: str, seen: Mapping[str, float]) -> None:
    keys = [field.name for field in fields(Budget)]
    if key not in keys:
        near = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(keys)}"
        raise UsageError(f"unknown budget key {key!r}", fix=hint)
    if key in seen:
        raise UsageError(f"budget key {key!r} stands twice", fix="keep one of the two")


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"budget {key}={text} is not a number", fix=EXAMPLE) from None
    if not math.isfinite(value):
        raise UsageError(f"budget {key}={text} is not a finite number", fix=f"leave {key} out for no limit")
    if value <= 0:
        raise UsageError(f"budget {key}={text} is not above zero", fix=f"leave {key} out for no limit")
    if key in WHOLE and value != int(value):
        raise UsageError(f"budget {key}={text} is not a whole number", fix=f"write {key}={math.ceil(value)}")
    return int(text) if key in WHOLE and text.isdecimal() else value  # a float would round beyond 2**53


class Meter:
    """Measures a run against its budget.

    Time for the finals is kept back: `reserve_share` of the minutes, `reserve_max_s` seconds at most.
    `spent` is what `state` gave when the run was stopped, so that a resumed run goes on with what is left.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        reserve_share: float = 0.2,
        reserve_max_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        spent: Mapping[str, float] | None = None,
    ) -> None:
        self.budget = budget
        self.reserve_s = min(reserve_share * budget.minutes * 60, reserve_max_s)
        self.stopped = ""  # why, when somebody asked the run to stop
        self._clock = clock
        self._spent = {"evaluations": 0.0, "device_s": 0.0, "tokens": 0.0, "usd": 0.0, "stall": 0.0} | dict(spent or {})
        self._start = clock() - self._spent.pop("seconds", 0.0)

    def charge(
        self,
        *,
        evaluations: int = 0,
        device_s: float = 0.0,
        tokens: int = 0,
        usd: float = 0.0,
        improved: bool = False,
    ) -> None:
        """Adds what was spent; an improvement starts the count of stalled evaluations anew."""
        self._spent["evaluations"] += evaluations
        self._spent["device_s"] += device_s
        self._spent["tokens"] += tokens
        self._spent["usd"] += usd
        self._spent["stall"] = 0.0 if improved else self._spent["stall"] + evaluations

    def stop(self, why: str = "interrupted") -> None:
        """Asks the run to end now; safe to call from a signal handler."""
        self.stopped = self.stopped or why

    @property
    def seconds(self) -> float:
        """Wall time since the run began, without the time between a kill and a resume."""
        return self._clock() - self._start

    def room(self, in_flight: int) -> float:
        """How many more evaluations may start beside those in flight; infinity without such a limit."""
        limit = self.budget.evaluations
        return max(0.0, limit - self._spent["evaluations"] - in_flight) if limit else math.inf

    def used(self) -> dict[str, float]:
        """The share of every limit that is used up (1: all of it); of the minutes, those that the search may use."""
        amounts = self._amounts()
        return {key: amounts[key] / limit for key, limit in self._search_limits().items()}

    def bound(self) -> str:
        """Which limit binds first: the one with the largest share used."""
        used = self.used()
        return max(used, key=lambda key: used[key]) if used else ""

    def fraction(self) -> float:
        """How far the search is through its budget, 0 to 1."""
        return min(1.0, max(self.used().values(), default=0.0))

    def exhausted(self) -> bool:
        """Whether the search must end: a limit is reached, or somebody asked for it."""
        return bool(self.stopped) or self.fraction() >= 1.0

    def left(self) -> str:
        """What is left of the limit that binds first, for a person."""
        if not (key := self.bound()):
            return "no limit"
        left = max(0.0, self._search_limits()[key] - self._amounts()[key])
        if key in ("minutes", "gpu_minutes"):
            minutes, seconds = divmod(math.ceil(left * 60), 60)
            return f"{minutes}:{seconds:02d}" + (" on the device" if key == "gpu_minutes" else "")
        if key == "usd":
            return f"{left:.2f} USD"
        if key == "stall":
            return count(round(left), "evaluation without improvement", "evaluations without improvement")
        return count(round(left), key.removesuffix("s"))

    def state(self) -> dict[str, float]:
        """What was spent, for `spent` of the resumed run."""
        return self._spent | {"seconds": self.seconds}

    def _amounts(self) -> dict[str, float]:
        device, minutes = self._spent["device_s"] / 60, self.seconds / 60
        return self._spent | {"gpu_minutes": device, "minutes": minutes}

    def _search_limits(self) -> dict[str, float]:
        limits = self.budget.limits()
        if "minutes" in limits:
            limits["minutes"] -= self.reserve_s / 60
        return limits

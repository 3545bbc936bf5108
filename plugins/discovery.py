"""Finds plugin modules and knows whose they are: installed distributions, evo's own, and modules given by hand."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType

import pluggy

from evo.errors import UsageError

GROUP = "evo"  # of entry points
DISABLE = "EVO_DISABLE_PLUGINS"
OWN = "evo-kernels"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a plugin module comes from; `version` is "" when no installed distribution stands behind it."""

    plugin: str
    distribution: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".rstrip()

    @property
    def disabled(self) -> bool:
        """Whether the environment names this plugin or its distribution."""
        names = {name.strip() for name in os.environ.get(DISABLE, "").split(",")}
        return not names.isdisjoint({self.plugin, self.distribution})


def find(entry_points: bool, modules: Iterable[ModuleType]) -> Iterator[tuple[object, Origin]]:
    """Every plugin that is not disabled: evo's own first, installed ones by name, then `modules`.

    evo's own are found by its entry point like any other, and directly where the package has no metadata (a bare
    checkout). Raises `UsageError` when a third party's plugin cannot be imported.
    """
    points = [(point, _origin(point)) for point in metadata.entry_points(group=GROUP)] if entry_points else []
    if not any(origin.distribution == OWN for _, origin in points):
        origin = Origin("builtins", OWN)
        if not origin.disabled:
            from evo.plugins import builtins

            yield builtins, origin
    for point, origin in sorted(points, key=lambda pair: (pair[1].distribution != OWN, str(pair[1]), pair[1].plugin)):
        if not origin.disabled:
            yield _load(point, origin), origin
    for module in modules:
        origin = Origin(module.__name__, module.__name__)
        if not origin.disabled:
            yield module, origin


def broken(origin: Origin, what: str, error: Exception) -> UsageError:
    """An error that says whose plugin failed, where, and how to go on without it."""
    place = ""
    if not isinstance(error, pluggy.PluginValidationError):  # that one says by itself which function it is about
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f" at {frame.filename}:{frame.lineno}"
    return UsageError(
        f"plugin {origin.plugin!r} of {origin} {what}: {type(error).__name__}: {error}{place}",
        fix=f"upgrade or uninstall {origin.distribution}, or go on without it: {DISABLE}={origin.plugin}",
    )


def _origin(point: metadata.EntryPoint) -> Origin:
    if point.dist is None:
        return Origin(point.name, point.module)
    return Origin(point.name, point.dist.name, point.dist.version)


def _load(point: metadata.EntryPoint, origin: Origin) -> object:
    try:
        return point.load()
    except Exception as error:  # a third party's module may fail in any way, and the user must learn whose it is
        if origin.distribution == OWN:
            raise
        raise broken(origin, f"cannot be imported ({point.value})", error) from error

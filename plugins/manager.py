"""Asks the plugins' hooks, and knows which distribution each registered thing came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pluggy

from evo.errors import UnknownNameError, UsageError
from evo.plugins import hookspecs
from evo.plugins.discovery import DISABLE, OWN, Origin, broken, find

if TYPE_CHECKING:
    from evo.mutators.base import Mutator
    from evo.operator import Operator
    from evo.target import Target

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registered(Generic[T]):
    """One contributed instance under the name that users type, and the distribution that it came with."""

    name: str
    item: T
    distribution: str
    version: str


class Plugins:
    """All plugins of this process. Each hook is asked once, at first use; not for use from several threads.

    Every method may raise `UsageError`: a plugin failed, what it registered cannot be used, or a name is taken.
    """

    def __init__(self, manager: pluggy.PluginManager, origins: Iterable[tuple[object, Origin]]) -> None:
        self._manager = manager
        self._origins = tuple(origins)
        self._asked: dict[str, list[Registered[Any]]] = {}

    @classmethod
    def load(cls, entry_points: bool = True, modules: Iterable[ModuleType] = ()) -> Plugins:
        """evo's own plugins, those of every installed distribution (unless `entry_points` is false) and `modules`."""
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        origins: list[tuple[object, Origin]] = []
        for plugin, origin in find(entry_points, modules):
            if manager.is_registered(plugin):
                continue
            try:
                manager.register(plugin, name=f"{origin.distribution}:{origin.plugin}")
                manager.check_pending()
            except pluggy.PluginValidationError as error:
                raise broken(origin, "does not fit evo's hooks", error) from error
            origins.append((plugin, origin))
        return cls(manager, origins)

    def operators(self) -> list[Registered[Operator]]:
        """All operators, evo's own first."""
        return self._ask("evo_operators", _operator_objection)

    def targets(self) -> list[Registered[Target]]:
        """All targets, evo's own first."""
        return self._ask("evo_targets", _target_objection)

    def mutators(self) -> list[Registered[Mutator]]:
        """All mutators, evo's own first."""
        return self._ask("evo_mutators", _mutator_objection)

    def operator(self, name: str) -> Operator:
        """The operator of that name. Raises `UnknownNameError`, with near matches."""
        return _pick("operator", name, self.operators())

    def target(self, name: str) -> Target:
        """The target of that name. Raises `UnknownNameError`, with near matches."""
        return _pick("target", name, self.targets())

    def _ask(self, hook: str, objection: Callable[[Any], str]) -> list[Registered[Any]]:
        """Asks plugin by plugin (rather than all at once), so that whatever is registered is known by its origin."""
        if hook not in self._asked:
            taken: dict[str, tuple[Any, Origin]] = {}
            for plugin, origin in self._origins:
                others = [other for other, _ in self._origins if other is not plugin]
                _call(self._manager.subset_hook_caller(hook, others), _Register(hook, origin, objection, taken))
            self._asked[hook] = [
                Registered(name, item, origin.distribution, origin.version) for name, (item, origin) in taken.items()
            ]
        return list(self._asked[hook])


@dataclass(frozen=True, slots=True)
class _Register:
    """What a hook gets as `register`."""

    hook: str
    origin: Origin
    objection: Callable[[Any], str]
    taken: dict[str, tuple[Any, Origin]]

    def __call__(self, item: Any) -> None:
        why = "it is a class, not an instance" if isinstance(item, type) else self.objection(item)
        if why:
            raise UsageError(
                f"{self.origin} registered {item!r} through {self.hook}, which cannot be used: {why}",
                fix=f"correct {self.origin.distribution}, or go on without it: {DISABLE}={self.origin.plugin}",
            )
        if item.name in self.taken:
            other = self.taken[item.name][1]
            raise UsageError(
                f"{self.hook}: the name {item.name!r} is registered by {other} and by {self.origin}",
                fix=f"rename one, or go on without one of them: {DISABLE}={self.origin.plugin}",
            )
        self.taken[item.name] = (item, self.origin)


def _call(hook: pluggy.HookCaller, register: _Register) -> None:
    try:
        hook(register=register)
    except UsageError:
        raise
    except Exception as error:  # a third party's hook may fail in any way, and the user must learn whose it is
        if register.origin.distribution == OWN:
            raise
        raise broken(register.origin, f"failed in {register.hook}", error) from error


def _pick(kind: str, name: str, entries: list[Registered[T]]) -> T:
    for entry in entries:
        if entry.name == name:
            return entry.item
    raise UnknownNameError(kind, name, [entry.name for entry in entries], fix=f"`evo {kind}s` lists what is installed")


def _operator_objection(item: Any) -> str:
    from evo.operator import Operator

    return _name_objection(item) if isinstance(item, Operator) else "it is no evo.operator.Operator"


def _target_objection(item: Any) -> str:
    from evo.target import Target

    return _lacks(item, Target) or _name_objection(item)


def _mutator_objection(item: Any) -> str:
    from evo.mutators.base import Mutator

    return _lacks(item, Mutator) or _name_objection(item)


def _lacks(item: Any, protocol: type) -> str:
    missing = [name for name in vars(protocol) if not name.startswith("_") and not hasattr(item, name)]
    return f"{protocol.__module__}.{protocol.__name__} also has {', '.join(missing)}" if missing else ""


def _name_objection(item: Any) -> str:
    name = getattr(item, "name", None)
    return "" if isinstance(name, str) and name else f"its `name` must be a text that is not empty (got {name!r})"

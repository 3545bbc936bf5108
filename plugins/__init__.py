"""What evo can do, contributed through hooks: operators, targets, mutators. evo's own come through the same door.

A plugin module marks its functions with `hookimpl`; see `evo.plugins.hookspecs` for what each hook gets.
"""

from evo.plugins.hookspecs import hookimpl
from evo.plugins.manager import Plugins, Registered

__all__ = ["Plugins", "Registered", "hookimpl"]

"""evo makes GPU kernels better by evolution. `evo.open` is the Python interface; see `evo.api`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evo.api import open

__all__ = ["open"]


def __getattr__(name: str) -> Any:
    """Imported on demand: `import evo` costs nothing."""
    if name == "open":
        from evo.api import open

        return open
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

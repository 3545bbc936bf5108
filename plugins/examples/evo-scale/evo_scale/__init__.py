"""An example plugin: registers the operator `scale`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from evo.plugins import hookimpl

if TYPE_CHECKING:
    from evo.operator import Operator


@hookimpl
def evo_operators(register: Callable[[Operator], None]) -> None:
    from evo_scale.operator import Scale

    register(Scale())

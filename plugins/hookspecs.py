"""All hooks of evo. A hook gets a `register` function and calls it once for every instance that it contributes.

Hooks run when somebody first asks for that kind of thing, in the main process and again in every worker process, so
they must be cheap and give the same answer each time: import inside the function, touch no device, open no file.
A name that is already taken is an error, which names both distributions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from evo.mutators.base import Mutator
    from evo.operator import Operator
    from evo.target import Target

PROJECT = "evo"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def evo_operators(register: Callable[[Operator], None]) -> None:
    """Contribute operators: what is computed, its cases, its truth, the seeds to start from and its baselines.

    `register` takes an instance of `evo.operator.Operator`. The instance is stateless: it is asked from several
    processes.
    """


@hookspec
def evo_targets(register: Callable[[Target], None]) -> None:
    """Contribute targets: places where genomes are built and, where there is a device, run.

    `register` takes an instance that has the attributes of `evo.target.Target`. Constructing it must not create a
    device context, and must work on a machine that lacks the device or the compiler: `missing()` says so instead.
    """


@hookspec
def evo_mutators(register: Callable[[Mutator], None]) -> None:
    """Contribute mutators: ways to make a new candidate out of one or more parents.

    `register` takes an instance that has the attributes of `evo.mutators.base.Mutator`. All its randomness comes from
    the generator that it is handed, so that a run can be repeated.
    """

"""What evo itself brings, registered through the same hooks as a third party's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from evo.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from evo.mutators.base import Mutator
    from evo.operator import Operator
    from evo.target import Target


@hookimpl
def evo_operators(register: Callable[[Operator], None]) -> None:
    """evo's own operators."""
    from evo.operators.kda import Kda
    from evo.operators.rmsnorm import RmsNorm
    from evo.operators.rmsnorm_backward import RmsNormBackward

    register(Kda())
    register(RmsNorm())
    register(RmsNormBackward())


@hookimpl
def evo_targets(register: Callable[[Target], None]) -> None:
    """The CPU, and every CUDA architecture that evo knows."""
    from evo.fitness.cpu.target import CpuTarget
    from evo.fitness.cuda.architectures import ARCHITECTURES
    from evo.fitness.cuda.target import CudaTarget

    register(CpuTarget())
    for name in ARCHITECTURES:
        register(CudaTarget(name))


@hookimpl
def evo_mutators(register: Callable[[Mutator], None]) -> None:
    """Variation of gene values, drawn by DEAP; and of what the genes are."""
    from evo.mutators.crossover import TwoPointCrossover, UniformCrossover
    from evo.mutators.discovery import GeneDiscovery, GeneFreezing
    from evo.mutators.mutation import CreepMutation, UniformMutation

    for mutator in (UniformMutation(), CreepMutation(), UniformCrossover(), TwoPointCrossover()):
        register(mutator)
    register(GeneDiscovery())
    register(GeneFreezing())

"""Kernel arguments of a resolved launch."""

from __future__ import annotations

import math

from evo.genome.genome import Genome
from evo.genome.launches import ArgumentSpec, LaunchSpec
from evo.genome.places import Place
from evo.genome.scope import Scope
from evo.operator import Case, Operator
from evo.plan import Argument

_INTEGERS = {"i32": 31, "i64": 63}
_MAX_F32 = (2 - 2**-23) * 2.0**127


class Binder:
    """Resolves arguments for one case, and notes which scratch and tensor maps they use."""

    def __init__(self, genome: Genome, operator: Operator, case: Case) -> None:
        self.case = case
        self.genome = genome
        self.scalars = {scalar.name: scalar.dtype for scalar in operator.scalars}
        self.absent = {tensor.name for tensor in operator.tensors if tensor.optional} - case.present
        self.tensors = {tensor.name for tensor in operator.tensors}
        self.scratch: set[str] = set()
        self.maps: set[str] = set()

    def arguments(self, launch: LaunchSpec, scope: Scope) -> tuple[Argument, ...]:
        return tuple(self.argument(spec, scope) for spec in launch.args)

    def argument(self, spec: ArgumentSpec, scope: Scope) -> Argument:
        name = spec.name
        if spec.term is not None and name not in self.scalars:
            return scalar(spec.place, spec.text, spec.width, spec.term.integer(scope))
        if name in self.scalars:
            return scalar(spec.place, name, spec.width or self.scalars[name], self.given(spec))
        buffer = self.genome.tensor_maps[name].tensor if name in self.genome.tensor_maps else name
        if buffer in self.absent:
            if spec.optional:
                return Argument("null", name)
            raise spec.place.uncovered(
                f"case {self.case.name!r} has no tensor {buffer!r}", spec.text, f'write "{name}?" to pass null then'
            )
        if buffer in self.genome.scratch:
            self.scratch.add(buffer)
        elif buffer not in self.tensors:
            raise spec.place.error("no such tensor, scratch, tensor map or scalar", spec.text, "declare it")
        if name in self.genome.tensor_maps:
            self.maps.add(name)
            return Argument("map", name)
        return Argument("tensor" if buffer in self.tensors else "scratch", name)

    def given(self, spec: ArgumentSpec) -> int | float:
        """The case's value of an operator scalar."""
        if spec.name not in self.case.scalars:
            raise spec.place.error(f"case {self.case.name!r} gives no value for it", spec.name, "add it to the case")
        return self.case.scalars[spec.name]


def scalar(place: Place, name: str, width: str, value: int | float) -> Argument:
    """A scalar argument, in the range of its width. Raises `GenomeError`."""
    if width in _INTEGERS:
        limit = 1 << _INTEGERS[width]
        if not isinstance(value, int) or not -limit <= value < limit:
            fix = "pass it as i64" if width == "i32" and isinstance(value, int) else "pass an integer"
            raise place.error(f"{name} does not fit {width}", value, fix)
        return Argument("scalar", name, width, int(value))
    number = float(value)
    if width == "f32" and math.isfinite(number) and abs(number) > _MAX_F32:
        raise place.error(f"{name} does not fit f32", value, "scale it")
    return Argument("scalar", name, width, number)

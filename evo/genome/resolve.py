"""The launch plan of one candidate for one case: every expression evaluated, every limit checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

from evo.dtypes import ITEMSIZE
from evo.genome import language
from evo.genome.arguments import Binder
from evo.genome.closures import INT_MAX
from evo.genome.genome import Genome
from evo.genome.launches import LaunchSpec, ScratchSpec
from evo.genome.maps import resolve_map
from evo.genome.places import Term
from evo.genome.scope import Scope, case_scope, dtype_of, shape_names
from evo.operator import Case, Operator
from evo.plan import Launch, LaunchPlan, Scratch, TensorMap
from evo.records import DeviceFacts, Values

MAX_LAUNCHES = 4096
MAX_BLOCKS = 1 << 40
MAX_THREADS = 1024
MAX_CLUSTER = 16
MAX_SHARED = (1 << 31) - 1  # whether the device has as much is for the launcher to say
GRID_LIMITS = ((1 << 31) - 1, 65_535, 65_535)
BLOCK_LIMITS = (1024, 1024, 64)
CPU_LIMITS = (1 << 62, 1, 1)

Shape = tuple[int, int, int]


def buffer_shapes(operator: Operator, case: Case) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that the case has. Raises `LanguageError` for a fault in the operator's shapes."""
    names = shape_names(operator, case)
    return {
        tensor.name: tuple(language.parse(extent).integer(names) for extent in tensor.shape)
        for tensor in operator.tensors
        if not tensor.optional or tensor.name in case.present
    }


def resolve_plan(genome: Genome, operator: Operator, case: Case, values: Values, facts: DeviceFacts) -> LaunchPlan:
    """Raises `Uncovered` when the case lacks a tensor or nothing is launched, and `GenomeError` for what cannot run: an
    overflow, an empty or too large grid, a cluster that does not divide it, more than 4,096 launches, scratch beyond
    the device's memory, a map that leaves its tensor."""
    scope = case_scope(genome, operator, case, values, facts)
    binder = Binder(genome, operator, case)
    launches: list[Launch] = []
    for spec in genome.launches:
        if spec.when is None or spec.when.integer(scope):
            launches.extend(_repeated(spec, scope, binder, facts.target == "cpu", MAX_LAUNCHES - len(launches)))
    if not launches:
        raise genome.place("launch").uncovered(
            f"nothing is launched for case {case.name!r}",
            fix="let a `when` hold, or exclude the case by a constraint",
        )
    scratch = tuple(_scratch(genome.scratch[name], scope) for name in genome.scratch if name in binder.scratch)
    _check_memory(genome, scratch, facts)
    return LaunchPlan(tuple(launches), scratch, _maps(genome, operator, case, scope, binder, scratch))


def _repeated(spec: LaunchSpec, scope: Scope, binder: Binder, cpu: bool, room: int) -> Iterator[Launch]:
    """The launches of one entry, at most `room` of them."""
    count = spec.repeat.integer(scope) if spec.repeat else 1
    if not 0 <= count <= room:
        place = spec.repeat.place if spec.repeat else spec.place
        raise place.error(f"a plan has at most {MAX_LAUNCHES} launches", count, "loop inside the kernel instead")
    resolve = _cpu_launch if cpu else _cuda_launch
    if not any("ITER" in term.names for term in spec.repeated_terms()):
        if count:
            yield from [resolve(spec, scope, binder)] * count
        return
    for iteration in range(count):
        scope["ITER"] = iteration
        yield resolve(spec, scope, binder)
    scope.pop("ITER", None)


def _extents(terms: tuple[Term, ...], scope: Scope, limits: tuple[int, ...], what: str) -> Shape:
    extents = [term.positive(scope, limits[axis], f"{what} {'xyz'[axis]}") for axis, term in enumerate(terms)]
    return cast(Shape, (*extents, 1, 1, 1)[:3])


def _cuda_launch(spec: LaunchSpec, scope: Scope, binder: Binder) -> Launch:
    grid = _extents(spec.grid, scope, GRID_LIMITS, "grid")
    block = _extents(spec.block, scope, BLOCK_LIMITS, "block")
    cluster = _extents(spec.cluster, scope, (MAX_CLUSTER,) * 3, "cluster")
    if math.prod(grid) > MAX_BLOCKS:
        raise spec.grid[0].error(f"over 2^40 blocks: {grid}", math.prod(grid), "give a block more work")
    if math.prod(block) > MAX_THREADS:
        raise spec.block[0].error(f"over {MAX_THREADS} threads a block: {block}", math.prod(block), "make it smaller")
    if math.prod(cluster) > MAX_CLUSTER:
        raise spec.cluster[0].error(f"over {MAX_CLUSTER} blocks a cluster", math.prod(cluster), "make it smaller")
    for axis, (blocks, peers) in enumerate(zip(grid, cluster, strict=True)):
        if blocks % peers:
            raise spec.cluster[min(axis, len(spec.cluster) - 1)].error(
                f"cluster {'xyz'[axis]} {peers} does not divide grid {'xyz'[axis]} {blocks}",
                fix="grid counts blocks: make it a multiple of the cluster",
            )
    shared = spec.shared.integer(scope)
    if not 0 <= shared <= MAX_SHARED:
        raise spec.shared.error("shared memory cannot be this size", shared, "give bytes, 0 or more")
    return Launch(
        kernel=spec.kernel,
        grid=grid,
        block=block,
        args=binder.arguments(spec, scope),
        cluster=cluster,
        shared=shared,
        cooperative=bool(spec.cooperative.integer(scope)),
        pdl=bool(spec.pdl.integer(scope)),
    )


def _cpu_launch(spec: LaunchSpec, scope: Scope, binder: Binder) -> Launch:
    """On the CPU: grid counts work items, block those of one call; there is nothing else to say."""
    for term in (*spec.cluster, spec.shared, spec.cooperative, spec.pdl):
        value = term.integer(scope)
        if value not in ((0, 1) if term in spec.cluster else (0,)):
            raise term.error("has no meaning on the CPU target", value, "leave it out")
    grid = _extents(spec.grid, scope, CPU_LIMITS, "grid")
    block = _extents(spec.block, scope, CPU_LIMITS, "block")
    return Launch(kernel=spec.kernel, grid=grid, block=block, args=binder.arguments(spec, scope))


def _scratch(spec: ScratchSpec, scope: Scope) -> Scratch:
    shape = tuple(term.positive(scope, INT_MAX, "a scratch extent") for term in spec.shape)
    align = spec.align.positive(scope, 1 << 16, "align")
    if align & (align - 1):
        raise spec.align.error("align must be a power of two", align, "256 is the default")
    return Scratch(spec.name, spec.dtype, shape, align, spec.zero)


def _check_memory(genome: Genome, scratch: tuple[Scratch, ...], facts: DeviceFacts) -> None:
    total = 0
    for item in scratch:
        total += math.prod(item.shape) * ITEMSIZE[item.dtype]
        if total > facts.memory_bytes:
            raise genome.scratch[item.name].place.error(
                f"scratch needs {total} bytes, {facts.name} has {facts.memory_bytes}",
                fix="use less, or exclude the case by a constraint",
            )


def _maps(
    genome: Genome, operator: Operator, case: Case, scope: Scope, binder: Binder, scratch: tuple[Scratch, ...]
) -> tuple[TensorMap, ...]:
    """The tensor maps that a launch uses."""
    if not binder.maps:
        return ()
    shapes = buffer_shapes(operator, case) | {item.name: item.shape for item in scratch}
    dtypes = {tensor.name: dtype_of(tensor, case) for tensor in operator.tensors}
    dtypes |= {item.name: item.dtype for item in scratch}
    specs = [spec for name, spec in genome.tensor_maps.items() if name in binder.maps]
    return tuple(resolve_map(spec, scope, dtypes[spec.tensor], shapes[spec.tensor]) for spec in specs)

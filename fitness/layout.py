"""A case laid out in memory: one set of tensors is a slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from evo.dtypes import ITEMSIZE
from evo.fitness.protocols import promises
from evo.genome import buffer_shapes
from evo.operator import Case, Fill, Operator, Tensor
from evo.plan import LaunchPlan
from evo.target import Buffer, BufferSpec, Machine

EXPECTED = "expected."
ROTATION_BYTES = 192 << 20  # a rotation moves at least this much, several times any L2
MOST_SLOTS = 64  # the longest graph: calls under 3 MB then find some of their inputs in the cache
SCRATCH_BYTES = 1 << 30  # of all lanes' scratch; to poison it takes well under a millisecond on a GPU
ORACLE = "oracle"


def present(operator: Operator, case: Case) -> list[Tensor]:
    """The operator's tensors that this case has."""
    return [tensor for tensor in operator.tensors if not tensor.optional or tensor.name in case.present]


def oracle_case(operator: Operator, case: Case) -> Case:
    """The case that the oracle computes: the same, with 16-bit outputs in fp32 where the operator allows it, so that
    the truth is not rounded twice."""
    wider = {
        tensor.name: "fp32"
        for tensor in present(operator, case)
        if tensor.role == "out" and case.dtypes[tensor.name] in ("bf16", "fp16") and "fp32" in tensor.dtypes
    }
    return replace(case, dtypes={**case.dtypes, **wider})


def outputs(operator: Operator, case: Case) -> list[str]:
    return [tensor.name for tensor in present(operator, case) if tensor.role != "in"]


@dataclass(frozen=True)
class Slot:
    """Buffers by tensor name, scratch by owner ("candidate", "opponent"). `fills` is what the inputs were made from, so
    that they can be made again."""

    buffers: Mapping[str, Buffer]
    fills: dict[str, tuple[Fill | np.ndarray, int]]
    scratch: Mapping[str, Mapping[str, Buffer]]


@dataclass(frozen=True)
class Layout:
    """Slots, one set of expected outputs, and the oracle's scratch.

    Timed calls run on lanes: each has outputs of its own and the inputs of a slot, in turn, so that within a sample no
    call finds an output that another one has already written. The first lanes are the slots themselves. Scratch is each
    lane's own too, so that no call can leave notes for the next; what is too large for that lanes share in turn.
    """

    slots: list[Slot]
    lanes: list[Slot]
    expected: Mapping[str, Buffer]
    oracle: Mapping[str, Buffer]
    every: Sequence[Buffer]

    def bound(self, slot: Slot, owner: str) -> dict[str, Buffer]:
        """What a program of this owner is bound to on this slot."""
        return {**slot.buffers, **slot.scratch.get(owner, {})}

    def truth(self, slot: Slot) -> dict[str, Buffer]:
        """What the oracle is bound to: the slot's inputs, its own outputs and scratch."""
        return {**slot.buffers, **self.expected, **self.oracle}

    def scratches(self, owner: str) -> list[Mapping[str, Buffer]]:
        """Every set of the owner's scratch once."""
        return list({id(lane.scratch): lane.scratch.get(owner, {}) for lane in self.lanes}.values())


def lay_out(
    machine: Machine, operator: Operator, case: Case, plans: Mapping[str, LaunchPlan], *, count: int, lanes: int = 0,
    readonly: int = 0,
) -> Layout:  # fmt: skip
    """Allocates `count` slots, what `lanes` need beyond the slots, the plans' scratch and the expected outputs, at
    random places of the device's arena. Programs can only read the inputs of the last `readonly` slots."""
    tensors, shapes = present(operator, case), buffer_shapes(operator, case)
    writes = [t for t in tensors if t.role != "in"]
    specs: list[BufferSpec] = []

    def want(spec: BufferSpec) -> int:
        specs.append(spec)
        return len(specs) - 1

    def tensor(t: Tensor, readonly: bool = False) -> int:
        if t.role == "in":
            return want(BufferSpec(t.name, case.dtypes[t.name], shapes[t.name], "input", readonly=readonly))
        return want(BufferSpec(t.name, case.dtypes[t.name], shapes[t.name], "output"))

    def scratch(plan: LaunchPlan) -> dict[str, int]:
        return {s.name: want(BufferSpec(s.name, s.dtype, s.shape, "scratch", max(256, s.align))) for s in plan.scratch}

    sets = [{t.name: tensor(t, number >= count - readonly) for t in tensors} for number in range(count)]
    sets += [{**sets[i % count], **{t.name: tensor(t) for t in writes}} for i in range(count, lanes)]
    owners = {owner: plan for owner, plan in plans.items() if owner != ORACLE}
    nbytes = sum(prod(item.shape) * ITEMSIZE[item.dtype] for plan in owners.values() for item in plan.scratch)
    copies = scratch_copies(nbytes, count, len(sets))
    notes = [{owner: scratch(plan) for owner, plan in owners.items()} for _ in range(copies)]
    truth = oracle_case(operator, case).dtypes
    expected = {t.name: want(BufferSpec(EXPECTED + t.name, truth[t.name], shapes[t.name], "output")) for t in writes}
    oracle = scratch(plans[ORACLE]) if ORACLE in plans else {}

    buffers = machine.allocate(specs)

    def placed(indices: Mapping[str, int]) -> dict[str, Buffer]:
        return {name: buffers[index] for name, index in indices.items()}

    own = [{owner: placed(item) for owner, item in note.items()} for note in notes]
    fills: list[dict[str, tuple[Fill | np.ndarray, int]]] = [{} for _ in range(count)]
    made = [Slot(placed(each), fills[i % count], own[i % copies]) for i, each in enumerate(sets)]
    return Layout(made[:count], made, placed(expected), placed(oracle), buffers)


def scratch_copies(nbytes: int, slots: int, lanes: int) -> int:
    """One for every lane if they fit into `SCRATCH_BYTES`; else as many as fit, but such that lanes with the same
    inputs share scratch as seldom as can be."""
    copies = min(lanes, SCRATCH_BYTES // max(1, nbytes))
    while 1 < copies < lanes and gcd(copies, slots) > 1:
        copies -= 1
    return max(1, copies)


def slots_for(machine: Machine, operator: Operator, case: Case, protocol: str) -> int:
    """At least three; on a GPU enough that a rotation through them finds nothing in the cache, one where the same slot
    is wanted again and again.

    The CPU's protocol is warm: its last-level cache may hold hundreds of megabytes, and no rotation would empty it.
    """
    if machine.facts.target == "cpu":
        return 3
    promise = promises(protocol)
    if not promise.rotates:
        return 3 if promise.cold else 1
    cost = operator.cost(case)
    return min(MOST_SLOTS, max(3, -(-ROTATION_BYTES // max(1, cost.bytes_read + cost.bytes_written))))


def refill(
    machine: Machine, operator: Operator, case: Case, slot: Slot, rng: np.random.Generator, law: str, turn: int = 0
) -> None:
    """Fresh contents for every input of the slot, drawn from the operator's distribution `law`. With the same `rng`,
    the `turn`s from 0 to `turns` - 1 deal out every kind of row."""
    for name, data in operator.inputs(case, rng, law).items():
        seed = int(rng.integers(1 << 62))
        if turn and isinstance(data, Fill) and data.kinds:
            on = turn * _rows(slot.buffers[name].spec.shape) * data.deal(seed)[0] % len(data.kinds)
            data = replace(data, kinds=(*data.kinds[on:], *data.kinds[:on]))
        slot.fills[name] = (data, seed)
    restore(machine, slot, slot.fills)


def turns(operator: Operator, case: Case, law: str, rng: np.random.Generator) -> int:
    """How often contents must be dealt until every kind of row has been there: once, unless rows are few."""
    shapes = buffer_shapes(operator, case)
    fills = operator.inputs(case, rng, law).items()
    return max(
        (-(-len(f.kinds) // _rows(shapes[name])) for name, f in fills if isinstance(f, Fill) and f.kinds), default=1
    )


def _rows(shape: Sequence[int]) -> int:
    return max(1, prod(shape[:-1]))


def mirror(machine: Machine, source: Slot, target: Slot) -> None:
    """The same contents in another place."""
    target.fills.update(source.fills)
    restore(machine, target, target.fills)


def restore(machine: Machine, slot: Slot, names: Mapping[str, object] | Sequence[str]) -> None:
    """Writes the same contents again (for inputs that a call overwrites)."""
    for name in names:
        data, seed = slot.fills[name]
        machine.fill(slot.buffers[name], data, seed)

"""A case laid out in memory: one set of tensors is a slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evo.genome import buffer_shapes
from evo.operator import Case, Fill, Operator, Tensor
from evo.plan import LaunchPlan
from evo.target import Buffer, BufferSpec, Machine

EXPECTED = "expected."
ROTATION_BYTES = 192 << 20  # a rotation moves at least this much, several times any L2
MOST_SLOTS = 64  # the longest graph: calls under 3 MB then find some of their inputs in the cache


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
    """Buffers by tensor name. `fills` is what the inputs were made from, so that they can be made again."""

    buffers: Mapping[str, Buffer]
    fills: dict[str, tuple[Fill | np.ndarray, int]]


@dataclass(frozen=True)
class Layout:
    """Slots, scratch by owner ("candidate", "opponent", "oracle"), and one set of expected outputs.

    Timed calls run on lanes: each has outputs of its own and the inputs of a slot, in turn, so that within a sample no
    call finds an output that another one has already written. The first lanes are the slots themselves.
    """

    slots: list[Slot]
    lanes: list[Slot]
    scratch: Mapping[str, Mapping[str, Buffer]]
    expected: Mapping[str, Buffer]
    every: Sequence[Buffer]

    def bound(self, slot: Slot, owner: str) -> dict[str, Buffer]:
        """What a program of this owner is bound to on this slot."""
        return {**slot.buffers, **self.scratch.get(owner, {})}

    def truth(self, slot: Slot) -> dict[str, Buffer]:
        """What the oracle is bound to: the slot's inputs, its own outputs and scratch."""
        return {**slot.buffers, **self.expected, **self.scratch.get("oracle", {})}


def lay_out(
    machine: Machine, operator: Operator, case: Case, plans: Mapping[str, LaunchPlan], *, count: int, lanes: int = 0
) -> Layout:
    """Allocates `count` slots, the plans' scratch, the expected outputs and what `lanes` need beyond the slots, at
    random places of the device's arena."""
    tensors, shapes = present(operator, case), buffer_shapes(operator, case)
    specs: list[BufferSpec] = []
    for _ in range(count):
        specs += [
            BufferSpec(t.name, case.dtypes[t.name], shapes[t.name], "input" if t.role == "in" else "output")
            for t in tensors
        ]
    writes = [t for t in tensors if t.role != "in"]
    truth = oracle_case(operator, case).dtypes
    specs += [BufferSpec(EXPECTED + t.name, truth[t.name], shapes[t.name], "output") for t in writes]
    owned = [(owner, item) for owner, plan in plans.items() for item in plan.scratch]
    specs += [BufferSpec(item.name, item.dtype, item.shape, "scratch", max(256, item.align)) for _, item in owned]

    guarded = len(specs)
    for _ in range(count, lanes):
        specs += [BufferSpec(t.name, case.dtypes[t.name], shapes[t.name], "output") for t in writes]

    buffers = machine.allocate(specs)
    slots = [Slot({t.name: buffers[i * len(tensors) + j] for j, t in enumerate(tensors)}, {}) for i in range(count)]
    rest = buffers[count * len(tensors) : guarded]
    more = iter(buffers[guarded:])
    extra = [
        Slot({**slots[i % count].buffers, **{t.name: next(more) for t in writes}}, slots[i % count].fills)
        for i in range(count, lanes)
    ]
    expected = {t.name: rest[i] for i, t in enumerate(writes)}
    scratch: dict[str, dict[str, Buffer]] = {}
    for (owner, item), buffer in zip(owned, rest[len(writes) :], strict=True):
        scratch.setdefault(owner, {})[item.name] = buffer
    return Layout(slots, [*slots, *extra], scratch, expected, buffers[:guarded])


def slots_for(machine: Machine, operator: Operator, case: Case) -> int:
    """At least three; on a GPU enough that a rotation through them finds nothing in the cache.

    The CPU's protocol is warm: its last-level cache may hold hundreds of megabytes, and no rotation would empty it.
    """
    if machine.facts.target == "cpu":
        return 3
    cost = operator.cost(case)
    return min(MOST_SLOTS, max(3, -(-ROTATION_BYTES // max(1, cost.bytes_read + cost.bytes_written))))


def refill(machine: Machine, operator: Operator, case: Case, slot: Slot, rng: np.random.Generator, law: str) -> None:
    """Fresh contents for every input of the slot, drawn from the operator's distribution `law`."""
    for name, data in operator.inputs(case, rng, law).items():
        slot.fills[name] = (data, int(rng.integers(1 << 62)))
    restore(machine, slot, slot.fills)


def restore(machine: Machine, slot: Slot, names: Mapping[str, object] | Sequence[str]) -> None:
    """Writes the same contents again (for inputs that a call overwrites)."""
    for name in names:
        data, seed = slot.fills[name]
        machine.fill(slot.buffers[name], data, seed)

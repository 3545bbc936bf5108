"""The gate: is what a program computes right, everywhere, every time, and nothing else touched?

Truth is the operator's float64 reference on small cases and its oracle kernel on large ones. The oracle runs after the
candidate has stopped, into buffers that held poison while the candidate ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evo.fitness.compare import deviation
from evo.fitness.layout import Layout, Slot, outputs, present, restore
from evo.operator import Case, Operator
from evo.plan import LaunchPlan
from evo.records import Deviation, Status
from evo.target import Buffer, Call, Machine, Program, Rejected


@dataclass(frozen=True)
class Gate:
    """Checks calls of one operator's case on one machine."""

    machine: Machine
    operator: Operator
    case: Case
    layout: Layout
    oracle: Program | None  # None: the float64 reference is the truth
    rng: np.random.Generator

    def check(
        self, call: Call, plan: LaunchPlan, slot: Slot, owner: str = "candidate", *, repeat: bool = True,
        slack: float = 1.0,
    ) -> Deviation:  # fmt: skip
        """Runs the call (twice, where `repeat` and the operator is deterministic) on the slot's contents.

        Returns the deviation of the worst output; raises `Rejected`. `slack` widens the tolerance.
        """
        scratch = self.layout.scratch.get(owner, {})
        self.prepare(slot, scratch, plan)
        before = self._inputs(slot)
        truth_inputs = None if self.oracle else self._host_inputs(slot)
        self._run(call, slot, plan, scratch, before)
        worst = self._judge(slot, truth_inputs, slack)
        if repeat and self.operator.deterministic:
            first = self.digests(slot)
            self.prepare(slot, scratch, plan)
            self._run(call, slot, plan, scratch, before)
            if self.digests(slot) != first:
                raise Rejected(Status.NONDETERMINISTIC, "two calls on the same inputs gave different bits")
        return worst

    def prepare(self, slot: Slot, scratch: Mapping[str, Buffer], plan: LaunchPlan) -> None:
        """Poisons whatever the next call must write, with a pattern that no earlier call has seen."""
        zeroed = {item.name for item in plan.scratch if item.zero}
        for name, buffer in scratch.items():
            if name in zeroed:
                self.machine.zero(buffer)
            else:
                self.machine.poison(buffer, self._key())
        for name in outputs(self.operator, self.case):
            if name in slot.fills:
                restore(self.machine, slot, [name])
            else:
                self.machine.poison(slot.buffers[name], self._key())

    def seal(self) -> tuple[int, list[tuple[int, ...]]]:
        """Fresh guard bands, and what all inputs hold: for `unbroken` after calls that are not checked one by one."""
        key = self._key()
        self.machine.guard(self.layout.every, key)
        return key, [self._inputs(slot) for slot in self.layout.slots]

    def unbroken(self, seal: tuple[int, list[tuple[int, ...]]]) -> None:
        """Raises `Rejected` when since `seal` something was written outside the outputs."""
        key, inputs = seal
        where = self.machine.breach(self.layout.every, key)
        if where:
            raise Rejected(Status.OUT_OF_BOUNDS, f"timed calls wrote outside a buffer: {where}")
        if [self._inputs(slot) for slot in self.layout.slots] != inputs:
            raise Rejected(Status.INPUT_MUTATED, "timed calls changed an input tensor")

    def digests(self, *slots: Slot) -> list[tuple[int, ...]]:
        """Of all outputs of each slot."""
        names = outputs(self.operator, self.case)
        found = self.machine.digests([slot.buffers[name] for slot in slots for name in names], 0x5EED)
        return [tuple(found[i : i + len(names)]) for i in range(0, len(found), len(names))]

    def _run(
        self, call: Call, slot: Slot, plan: LaunchPlan, scratch: Mapping[str, Buffer], before: tuple[int, ...]
    ) -> None:
        key = self._key()
        self.machine.guard(self.layout.every, key)
        for buffer in self.layout.expected.values():
            self.machine.poison(buffer, self._key())
        self.machine.run(call)
        where = self.machine.breach(self.layout.every, key)
        if where:
            raise Rejected(Status.OUT_OF_BOUNDS, f"wrote outside a buffer: {where}")
        if self._inputs(slot) != before:
            raise Rejected(Status.INPUT_MUTATED, "an input tensor was changed")
        for item in plan.scratch:
            if item.zero == "kept" and not self.machine.is_zero(scratch[item.name]):
                raise Rejected(
                    Status.WRONG_RESULT, f'scratch {item.name!r} is declared zero = "kept" but was not left zero'
                )

    def _judge(self, slot: Slot, host_inputs: Mapping[str, np.ndarray] | None, slack: float) -> Deviation:
        """The worst output's deviation; `Rejected(WRONG_RESULT)` beyond the tolerance."""
        if host_inputs is None:
            self._ask_oracle(slot)
            found = {n: self.machine.compare(slot.buffers[n], b) for n, b in self.layout.expected.items()}
        else:
            truth = self.operator.reference(host_inputs, self.case)
            found = {n: deviation(self.machine.read(slot.buffers[n]), truth[n]) for n in self.layout.expected}
        for name, got in found.items():
            self._within(name, got, slack)
        return max(found.values(), key=lambda item: item.rms)

    def _within(self, name: str, got: Deviation, slack: float) -> None:
        limit = self.operator.tolerance(self.case)
        over = [
            f"{what} {value:.3g} is over {bound:.3g}"
            for what, value, bound in (
                ("relative RMS error", got.rms, limit.rms),
                ("worst element's scaled error", got.max, limit.max),
                ("worst row's relative RMS error", got.row, limit.row or float("inf")),
            )
            if not value <= bound * slack  # NaN is over
        ]
        if over:
            shape = self.layout.expected[name].spec.shape
            index = tuple(int(i) for i in np.unravel_index(got.index, shape)) if shape else ()
            place = f"{name}{list(index)}: got {got.got:.6g}, expected {got.expected:.6g}"
            raise Rejected(Status.WRONG_RESULT, f"{name}: {'; '.join(over)}", detail=f"worst element {place}")

    def _ask_oracle(self, slot: Slot) -> None:
        assert self.oracle is not None
        for name, buffer in self.layout.expected.items():
            if name in slot.fills:  # an inout tensor: the oracle starts from the same contents
                data, seed = slot.fills[name]
                self.machine.fill(buffer, data, seed)
        for item in self.oracle.plan.scratch:
            self.machine.zero(self.layout.scratch["oracle"][item.name])
        self.machine.run(self.machine.bind(self.oracle, self.layout.truth(slot)))

    def _inputs(self, slot: Slot) -> tuple[int, ...]:
        names = [t.name for t in present(self.operator, self.case) if t.role == "in"]
        return tuple(self.machine.digests([slot.buffers[name] for name in names], 0x1A9))

    def _host_inputs(self, slot: Slot) -> dict[str, np.ndarray]:
        return {n: self.machine.read(slot.buffers[n]) for n in slot.fills}

    def _key(self) -> int:
        return int(self.rng.integers(1 << 62))

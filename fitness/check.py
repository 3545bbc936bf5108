"""The gate: is what a program computes right, everywhere, every time, and nothing else touched?

Truth is the operator's float64 reference on small cases and its oracle kernel on large ones. The oracle runs after the
candidate has stopped, into buffers that held poison while the candidate ran.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from evo.fitness.compare import deviation
from evo.fitness.layout import Layout, Slot, mirror, outputs, present, restore
from evo.operator import Case, Operator
from evo.plan import LaunchPlan
from evo.records import Deviation, Status
from evo.target import Buffer, Call, Machine, Program, Rejected

# Relative RMS error that nobody is blamed for, by output type: one unit of rounding of a 16-bit result, four of a wider
# one, where the arithmetic itself shows.
ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-22, "fp64": 2.0**-51}
LESS_EXACT = 2.0

Seal = tuple[int, list[tuple[int, ...]]]  # the guard bands' key, and the digests of every slot's inputs


@dataclass(frozen=True)
class Gate:
    """Checks calls of one operator's case on one machine.

    `secret` keys every digest of this gate; it is not drawn from `rng`, whose draws lie about in memory as contents.
    """

    machine: Machine
    operator: Operator
    case: Case
    layout: Layout
    oracle: Program | None  # None: the float64 reference is the truth
    rng: np.random.Generator
    secret: int = field(default_factory=lambda: secrets.randbits(62), repr=False)
    scales: dict[str, float] = field(default_factory=dict)  # RMS of each output's truth, once it is known

    def check(
        self, call: Call, plan: LaunchPlan, slot: Slot, owner: str = "candidate", *,
        again: tuple[Call, Slot] | None = None, slack: float = 1.0, clean: bool = True,
    ) -> Deviation:  # fmt: skip
        """Runs the call on the slot's contents, then its twin `again` on the same contents in another place, where it
        may have inputs that can only be read. A deterministic operator's two calls give the same bits.

        Returns the deviation of the worst output; raises `Rejected`. `slack` widens the tolerance. With `clean` false
        scratch and outputs hold what earlier calls left there.
        """
        if clean:
            self.prepare(slot, plan, owner)
        else:
            self._rewind(slot)
        before = self._inputs(slot)
        truth_inputs = None if self.oracle else self._host_inputs(slot)
        self._run(call, slot, plan, owner, before)
        worst = self._judge(slot, truth_inputs, slack)
        if again:
            twin, place = again
            mirror(self.machine, slot, place)
            self.prepare(place, plan, owner)
            self._run_reading(twin, place, plan, owner)
            if self.operator.deterministic and len(set(self.digests(slot, place))) != 1:
                raise Rejected(Status.NONDETERMINISTIC, "two calls on the same inputs gave different bits")
        return worst

    def prepare(self, slot: Slot, plan: LaunchPlan, owner: str) -> None:
        """Poisons whatever the next call must write, with a pattern that no earlier call has seen."""
        self._spoil_scratch(slot.scratch.get(owner, {}), plan)
        self._spoil_outputs(slot)

    def prepare_lanes(self, plan: LaunchPlan, owner: str) -> None:
        """`prepare` for all lanes."""
        for scratch in self.layout.scratches(owner):
            self._spoil_scratch(scratch, plan)
        for lane in self.layout.lanes:
            self._spoil_outputs(lane)

    def on_leftovers(self, call: Call, plan: LaunchPlan, slot: Slot, owner: str) -> tuple[int, ...]:
        """Digests of what the call computes where scratch and outputs hold what earlier calls left there."""
        self._rewind(slot)
        self._run(call, slot, plan, owner, self._inputs(slot))
        return self.digests(slot)[0]

    def left_dirty(self, plan: LaunchPlan, *scratches: Mapping[str, Buffer]) -> str:
        """The first `kept` scratch that is not zero in all of the sets, else ""."""
        for item in plan.scratch:
            if item.zero == "kept" and not self.machine.is_zero(*(scratch[item.name] for scratch in scratches)):
                return item.name
        return ""

    def seal(self, before: Seal | None = None, *changed: int) -> Seal:
        """Fresh guard bands, and what all inputs hold: for `unbroken` after calls that are not checked one by one.

        With the seal `before`, only the slots with the numbers `changed` hold something else.
        """
        key, slots = self._key(), self.layout.slots
        self.machine.guard(self.layout.every, key)
        if before is None:
            return key, self._inputs(*slots)
        inputs = list(before[1])
        for number in changed:
            inputs[number] = self._inputs(slots[number])[0]
        return key, inputs

    def unbroken(self, seal: Seal) -> None:
        """Raises `Rejected` when since `seal` something was written outside the outputs."""
        key, inputs = seal
        where = self.machine.breach(self.layout.every, key)
        if where:
            raise Rejected(Status.OUT_OF_BOUNDS, f"timed calls wrote outside a buffer: {where}")
        if self._inputs(*self.layout.slots) != inputs:
            raise Rejected(Status.INPUT_MUTATED, "timed calls changed an input tensor")

    def as_exact_as(self, opponent_rms: float, rms: float) -> None:
        """Raises `Rejected` when a candidate's error is beyond rounding and more than twice its opponent's: it may then
        be faster because it computes less. A more exact candidate is welcome."""
        dtypes = [self.case.dtypes[name] for name in outputs(self.operator, self.case)]
        rounding = max((ROUNDING.get(dtype, 0.0) for dtype in dtypes), default=0.0)
        if rms > max(rounding, LESS_EXACT * opponent_rms):
            raise Rejected(
                Status.WRONG_RESULT,
                f"relative RMS error {rms:.3g} is over {LESS_EXACT:g} times the opponent's own, {opponent_rms:.3g}",
            )

    def digests(self, *slots: Slot) -> list[tuple[int, ...]]:
        """Of all outputs of each slot."""
        return self._digests(outputs(self.operator, self.case), *slots)

    def _digests(self, names: list[str], *slots: Slot) -> list[tuple[int, ...]]:
        found = self.machine.digests([slot.buffers[name] for slot in slots for name in names], self.secret)
        return [tuple(found[i * len(names) : (i + 1) * len(names)]) for i in range(len(slots))]

    def _inputs(self, *slots: Slot) -> list[tuple[int, ...]]:
        return self._digests([t.name for t in present(self.operator, self.case) if t.role == "in"], *slots)

    def _rewind(self, slot: Slot) -> None:
        """Gives tensors that a call reads and overwrites their first contents again."""
        restore(self.machine, slot, [name for name in outputs(self.operator, self.case) if name in slot.fills])

    def _spoil_outputs(self, slot: Slot) -> None:
        for name in outputs(self.operator, self.case):
            if name in slot.fills:
                restore(self.machine, slot, [name])
            else:
                self.machine.poison(slot.buffers[name], self._key(), self.scales.get(name, 1.0))

    def _spoil_scratch(self, scratch: Mapping[str, Buffer], plan: LaunchPlan) -> None:
        for item in plan.scratch:
            if item.zero == "kept":
                self.machine.zero(scratch[item.name])
            else:
                self.machine.poison(scratch[item.name], self._key())

    def _run(self, call: Call, slot: Slot, plan: LaunchPlan, owner: str, before: list[tuple[int, ...]]) -> None:
        key = self._key()
        self.machine.guard(self.layout.every, key)
        for buffer in (*self.layout.expected.values(), *self.layout.oracle.values()):
            self.machine.poison(buffer, self._key())
        self.machine.run(call)
        where = self.machine.breach(self.layout.every, key)
        if where:
            raise Rejected(Status.OUT_OF_BOUNDS, f"wrote outside a buffer: {where}")
        if self._inputs(slot) != before:
            raise Rejected(Status.INPUT_MUTATED, "an input tensor was changed")
        if dirty := self.left_dirty(plan, slot.scratch.get(owner, {})):
            raise Rejected(Status.WRONG_RESULT, f'scratch {dirty!r} is declared zero = "kept" but was not left zero')

    def _run_reading(self, call: Call, slot: Slot, plan: LaunchPlan, owner: str) -> None:
        """`_run` after a call that passed. If it now faults, and its inputs can only be read, then it wrote to one, and
        what it wrote was put back before anybody looked."""
        try:
            self._run(call, slot, plan, owner, self._inputs(slot))
        except Rejected as error:
            if error.status is not Status.CRASH or not any(b.spec.readonly for b in slot.buffers.values()):
                raise
            message = "writes to an input, if only for a while: it faults where inputs can only be read"
            raise Rejected(Status.INPUT_MUTATED, message, detail=error.message, fatal=error.fatal) from error

    def _judge(self, slot: Slot, host_inputs: Mapping[str, np.ndarray] | None, slack: float) -> Deviation:
        """The worst output's deviation; `Rejected(WRONG_RESULT)` beyond the tolerance."""
        if host_inputs is None:
            self._ask_oracle(slot)
            found = {
                n: self.machine.compare(slot.buffers[n], b, self._floor(n)) for n, b in self.layout.expected.items()
            }
        else:
            truth = self.operator.reference(host_inputs, self.case)
            found = {
                n: deviation(self.machine.read(slot.buffers[n]), truth[n], self._floor(n)) for n in self.layout.expected
            }
        for name, got in found.items():
            self._within(name, got, slack)
            self.scales[name] = got.scale
        return max(found.values(), key=lambda item: item.rms)

    def _floor(self, output: str) -> float:
        return self.operator.output_tolerance(self.case, output).row_floor

    def _within(self, name: str, got: Deviation, slack: float) -> None:
        limit = self.operator.output_tolerance(self.case, name)
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
        for buffer in self.layout.oracle.values():
            self.machine.zero(buffer)
        self.machine.run(self.machine.bind(self.oracle, self.layout.truth(slot)))

    def _host_inputs(self, slot: Slot) -> dict[str, np.ndarray]:
        return {n: self.machine.read(slot.buffers[n]) for n in slot.fills}

    def _key(self) -> int:
        return int(self.rng.integers(1 << 62))

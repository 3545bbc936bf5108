"""The CPU as an `evo.target.Machine`: buffers in shared memory, candidates in the runner, the clock here."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from evo.fitness import poison
from evo.fitness.compare import deviation
from evo.fitness.cpu import arena, contents, elf, runner
from evo.fitness.cpu.arena import Arena, HostBuffer
from evo.fitness.cpu.calls import (
    HostCall,
    HostFunction,
    KernelCall,
    Outputs,
    Steps,
    clear,
    host_block,
    objection,
    output,
    pack,
    step,
)
from evo.fitness.cpu.runner import Runner, Table
from evo.fitness.cpu.stopwatch import WarmStopwatch
from evo.fitness.protocols import offered
from evo.operator import Fill
from evo.plan import LaunchPlan
from evo.records import Build, Deviation, DeviceFacts, Status
from evo.target import Buffer, BufferSpec, Call, Program, Rejected, Stopwatch

DEADLINE_S = 2.0
_KNOCKS = 20  # before a timed block
_MAX_ARENA = 16 << 30


class CpuProgram:
    """A linked image in one slot of the code arena."""

    def __init__(self, plan: LaunchPlan, entries: Mapping[str, int], slot: int, free: Callable[[int], None]) -> None:
        self.plan = plan
        self.entries = entries
        self._slot: int | None = slot
        self._free = free

    def close(self) -> None:
        """Gives the slot to the next program; calls bound to this one are void."""
        if self._slot is not None:
            self._free(self._slot)
        self._slot = None


RATE_LOOKS = 12  # how often the copy rate of a size is measured, spread over the calls that ask for it


class CpuMachine:
    """All cores but one are workers of the runner; that one is left to the clock."""

    protocols = (WarmStopwatch.protocol,)

    def __init__(self, facts: DeviceFacts, *, deadline_s: float = DEADLINE_S) -> None:
        self._facts = facts
        self.deadline_s = deadline_s
        size = min(_MAX_ARENA, facts.memory_bytes // 3) // 4096 * 4096
        self._inputs, self._outputs = Arena("inputs", size), Arena("outputs", size)
        self._runner = Runner(self._inputs, self._outputs, facts.sms, self._locate)
        self._buffers: list[HostBuffer] = []
        self._used = (0, 0)  # first bytes behind all buffers of inputs and outputs
        self._free = set(range(runner.CODE_SLOTS))
        self._rates: dict[int, float] = {}  # bytes per second by size class
        self._asked: Counter[int] = Counter()
        self._rng = np.random.default_rng()

    @property
    def facts(self) -> DeviceFacts:
        return self._facts

    def allocate(self, specs: Sequence[BufferSpec]) -> list[Buffer]:
        places: dict[int, HostBuffer] = {}
        ends: list[int] = []
        for home, base, inputs in (
            (self._inputs, runner.INPUTS_BASE, True),
            (self._outputs, runner.OUTPUTS_BASE, False),
        ):
            chosen = [index for index, spec in enumerate(specs) if (spec.role == "input") == inputs]
            found, end = arena.lay_out([specs[index] for index in chosen], home, base, self._rng)
            places.update({chosen[index]: buffer for index, buffer in found.items()})
            ends.append(end)
        for home, end, before in zip((self._inputs, self._outputs), ends, self._used, strict=True):
            home.forget(min(end, before), before)
        self._used = (ends[0], ends[1])
        self._runner.expose(*self._used)
        self._buffers = [places[index] for index in range(len(specs))]
        return list(self._buffers)

    def load(self, build: Build, code: bytes, plan: LaunchPlan) -> CpuProgram:
        linked = elf.vet(code)
        for launch in plan.launches:
            if why := objection(launch, linked.entries):
                raise Rejected(Status.INVALID_GENOME, f"kernel {launch.kernel}: {why}")
        if len(linked.image) > runner.CODE_SLOT_BYTES:
            raise Rejected(
                Status.RESOURCE_LIMIT, f"{len(linked.image):,} bytes of code; the limit is {runner.CODE_SLOT_BYTES:,}"
            )
        if not self._free:
            raise RuntimeError(f"{runner.CODE_SLOTS} programs are loaded; close some first")
        slot = self._free.pop()
        base = runner.CODE_BASE + slot * runner.CODE_SLOT_BYTES
        self._runner.write_code(slot, linked.link(base, runner.JUMPS))
        entries = {name: base + offset for name, offset in linked.entries.items()}
        return CpuProgram(plan, entries, slot, self._free.add)

    def bind(self, program: Program, buffers: Mapping[str, Buffer]) -> KernelCall:
        assert isinstance(program, CpuProgram)
        plan = program.plan
        addresses = {name: _host(buffer).address for name, buffer in buffers.items()}
        clears = [clear(_host(buffers[item.name])) for item in plan.scratch if item.zero == "each"]
        steps = np.array(
            [*clears, *(step(launch, program.entries, addresses) for launch in plan.launches)], runner.STEP
        )
        kept = {item.name for item in plan.scratch if item.zero == "kept"}  # zero between calls
        written = [_host(b) for name, b in buffers.items() if b.spec.role != "input" and name not in kept]
        outputs = np.array([output(buffer) for buffer in written], runner.OUTPUT)
        return KernelCall(Table.of([steps]), steps, outputs)

    def adopt(self, run: HostFunction, buffers: Mapping[str, Buffer]) -> HostCall:
        views = {name: _host(buffer).view for name, buffer in buffers.items()}
        for name, buffer in buffers.items():
            views[name].flags.writeable = buffer.spec.role != "input"
        return HostCall(run, views)

    def fill(self, buffer: Buffer, data: Fill | np.ndarray[Any, Any], seed: int) -> None:
        view = _host(buffer).view
        if isinstance(data, Fill):
            contents.fill(view, data, seed)
        elif data.shape != view.shape:
            raise ValueError(f"{buffer.spec.name} has shape {view.shape}, its contents {data.shape}")
        else:
            view[...] = data.astype(view.dtype, copy=False)

    def poison(self, buffer: Buffer, key: int, scale: float = 1.0) -> None:
        contents.poison(_host(buffer).raw, buffer.spec.dtype, key, scale)

    def zero(self, buffer: Buffer) -> None:
        _host(buffer).raw[:] = 0

    def is_zero(self, *buffers: Buffer) -> bool:
        return not any(_host(buffer).raw.any() for buffer in buffers)

    def perturb(self, buffer: Buffer, key: int) -> None:
        flat = _host(buffer).view.reshape(-1)
        if flat.size > 1:
            source, target = poison.two_places(flat.size, key)
            flat[target] = flat[source]

    def guard(self, buffers: Sequence[Buffer], key: int) -> None:
        arena.guard([_host(buffer) for buffer in buffers], key)

    def breach(self, buffers: Sequence[Buffer], key: int) -> str:
        return arena.breach([_host(buffer) for buffer in buffers], key)

    def run(self, call: Call) -> None:
        if isinstance(call, KernelCall):
            self._runner.run(call.table, 0, 1, self.deadline_s)
            return
        assert isinstance(call, HostCall)
        for name, value in (call() or {}).items():
            call.views[name][...] = np.asarray(value)

    def read(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        return _host(buffer).view.copy()

    def digest(self, buffer: Buffer, key: int) -> int:
        return contents.digest(_host(buffer).raw, key)

    def digests(self, buffers: Sequence[Buffer], key: int) -> list[int]:
        return [self.digest(buffer, key) for buffer in buffers]

    def lanes(self, estimate_us: float, protocol: str = "") -> int:
        return 1  # the runner spoils outputs between the calls of a block

    def compare(self, actual: Buffer, expected: Buffer, row_floor: float = 0.0) -> Deviation:
        return deviation(_host(actual).view, _host(expected).view, row_floor)

    def stopwatch(self, calls: Sequence[Call], estimate_us: float, protocol: str = "") -> Stopwatch:
        offered(protocol, self.protocols, "the CPU")
        if all(isinstance(call, HostCall) for call in calls):
            return WarmStopwatch(host_block(cast(Sequence[HostCall], calls)), len(calls), estimate_us)
        kernels = cast(Sequence[KernelCall], calls)
        return self._watch([call.steps for call in kernels], [call.outputs for call in kernels], estimate_us)

    def _watch(self, calls: Sequence[Steps], outputs: Sequence[Outputs], estimate_us: float) -> WarmStopwatch:
        table = Table.of(calls, outputs)

        def block(first: int, count: int) -> tuple[int, int]:
            return self._runner.block(table, first, count, self.deadline_s, knocks=_KNOCKS)

        return WarmStopwatch(block, len(calls), estimate_us)

    def tempo(self) -> float:
        return 0.0  # cores change their clocks each on its own

    def clocks(self) -> Mapping[str, float]:
        found = re.findall(r"^cpu MHz\s*: ([\d.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return {"sm_mhz": sum(map(float, found)) / len(found)} if found else {}

    def copy_rate(self, nbytes: int) -> float:
        """Of `memcpy` by all workers from one buffer to another, half of `nbytes` each, warm: the best that was seen.

        A neighbour may slow a shared machine for a while, so the first calls look again.
        """
        bucket = max(16, math.ceil(math.log2(max(nbytes, 1))))
        if self._asked[bucket] < RATE_LOOKS:
            self._asked[bucket] += 1
            start = max(self._used)
            half = min(1 << (bucket - 1), self._inputs.size - start)
            self._inputs.bytes[start : start + half] = 1
            self._runner.expose(start + half, start + half)
            try:
                rate = 2 * half / (self._copy_us(start, half) * 1e-6)
            finally:
                self._runner.expose(*self._used)
                for home in (self._inputs, self._outputs):
                    home.forget(start, start + half)
            self._rates[bucket] = max(rate, self._rates.get(bucket, 0.0))
        return self._rates[bucket]

    def _copy_us(self, start: int, size: int) -> float:
        block = -(-size // self._facts.sms // 4096) * 4096
        words = (runner.OUTPUTS_BASE + start, runner.INPUTS_BASE + start, block, size)
        copy = pack(runner.JUMPS["evo_copy"], -(-size // block), 1, words, ())
        watch = self._watch([np.array([copy], runner.STEP)], [], 100.0)
        return min(watch.sample() for _ in range(9))  # what the machine can do, undisturbed

    def close(self) -> None:
        self._runner.close()
        self._inputs.close()
        self._outputs.close()

    def _locate(self, address: int) -> str:
        for buffer in self._buffers:
            low = buffer.base + buffer.low
            if low <= address < buffer.base + buffer.high:
                place = f"byte {address - buffer.address} of {buffer.spec.role} {buffer.spec.name}"
                return f"{place} ({buffer.nbytes} bytes{', read-only' if buffer.spec.role == 'input' else ''})"
        return f"address {address:#x}"


def _host(buffer: Buffer) -> HostBuffer:
    assert isinstance(buffer, HostBuffer)
    return buffer

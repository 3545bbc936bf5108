"""Calls: what one use of the operator takes, as steps for the runner or as a baseline's function."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from evo.dtypes import numpy_dtype
from evo.fitness.cpu import runner
from evo.fitness.cpu.arena import HostBuffer
from evo.fitness.cpu.runner import Records, Table
from evo.plan import Launch

_CLEAR_BLOCK = 1 << 16  # bytes that one worker zeroes at a time

HostFunction = Callable[[Mapping[str, Any], int], Mapping[str, Any] | None]
Steps: TypeAlias = Records
Outputs: TypeAlias = Records


@dataclass(frozen=True, slots=True, eq=False)
class KernelCall:
    table: Table
    steps: Steps
    outputs: Outputs


@dataclass(frozen=True, slots=True, eq=False)
class HostCall:
    """A baseline's callable, called in this process."""

    function: HostFunction
    views: Mapping[str, np.ndarray[Any, Any]]

    def __call__(self) -> Mapping[str, Any] | None:
        return self.function(self.views, 0)


def host_block(calls: Sequence[HostCall]) -> Callable[[int, int], tuple[int, int]]:
    """What `Runner.block` is to kernels: `count` calls from number `first` on; ns, and those without a core."""

    def block(first: int, count: int) -> tuple[int, int]:
        order = [calls[(first + number) % len(calls)] for number in range(count)]
        waited, start = _waited(), time.perf_counter_ns()
        for call in order:
            call()
        return time.perf_counter_ns() - start, _waited() - waited

    return block


def _waited() -> int:
    accounts = Path("/proc/thread-self/schedstat")
    return int(accounts.read_text().split()[1]) if accounts.exists() else 0


def objection(launch: Launch, entries: Mapping[str, int]) -> str:
    if launch.kernel not in entries:
        return f'not in the object file; there are: {", ".join(sorted(entries)) or "none"} (extern "C"?)'
    if launch.grid[1:] != (1, 1) or launch.block[1:] != (1, 1) or min(launch.grid[0], launch.block[0]) < 1:
        return f"grid {launch.grid} and block {launch.block}: only the first extent counts on the CPU, the others are 1"
    if launch.shared or launch.cooperative or launch.pdl or launch.cluster != (1, 1, 1):
        return "shared, cluster, cooperative and pdl have no meaning on the CPU"
    if any(argument.kind == "map" for argument in launch.args):
        return "there are no tensor maps on the CPU"
    floats = sum(argument.width in ("f32", "f64") for argument in launch.args)
    words = len(launch.args) - floats
    if words > runner.MAX_WORDS or floats > runner.MAX_FLOATS:
        most = f"{runner.MAX_WORDS} and {runner.MAX_FLOATS}"
        return f"{words} pointers and integers and {floats} floats; a CPU kernel takes at most {most}"
    return ""


def pack(entry: int, items: int, block: int, words: Sequence[int], floats: Sequence[int]) -> tuple[Any, ...]:
    return (
        entry,
        items,
        block,
        (*words, *(0 for _ in range(runner.MAX_WORDS - len(words)))),
        (*floats, *(0 for _ in range(runner.MAX_FLOATS - len(floats)))),
    )


def step(launch: Launch, entries: Mapping[str, int], addresses: Mapping[str, int]) -> tuple[Any, ...]:
    words: list[int] = []
    floats: list[int] = []
    for argument in launch.args:
        if argument.kind in ("tensor", "scratch"):
            words.append(addresses[argument.name])
        elif argument.kind == "null":
            words.append(0)
        elif argument.width in ("f32", "f64"):
            packed = struct.pack("<f4x" if argument.width == "f32" else "<d", argument.value)
            floats.append(int.from_bytes(packed, "little"))
        else:
            words.append(int(argument.value) & 0xFFFF_FFFF_FFFF_FFFF)
    return pack(entries[launch.kernel], launch.grid[0], launch.block[0], words, floats)


def output(buffer: HostBuffer) -> tuple[int, int, int]:
    itemsize = numpy_dtype(buffer.spec.dtype).itemsize
    return buffer.address, buffer.nbytes // itemsize, itemsize


def clear(buffer: HostBuffer) -> tuple[Any, ...]:
    words = (buffer.address, _CLEAR_BLOCK, buffer.nbytes)
    return pack(runner.JUMPS["evo_clear"], -(-buffer.nbytes // _CLEAR_BLOCK), 1, words, ())

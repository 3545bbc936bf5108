"""Runs a candidate's launches once under compute-sanitizer: `python -m evo.fitness.cuda.sanitized FOLDER`.

Every buffer is an allocation of its own, of exactly its size: in an arena the tool would see no end of a buffer. None
of evo's own kernels runs here, so that all that is reported is the candidate's.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

from evo import codec
from evo.fitness.cuda.arena import DeviceBuffer, size_of
from evo.fitness.cuda.driver import Stream, call
from evo.fitness.cuda.launch import bind
from evo.fitness.cuda.program import load
from evo.plan import LaunchPlan
from evo.records import Build, DeviceFacts
from evo.target import BufferSpec, Rejected

JOB, DONE = "job.json", "done"
RUN_LIMIT_S = 600.0  # the parent keeps a shorter one


@dataclass(frozen=True, slots=True)
class Contents:
    """A buffer; `file` holds its bytes, "" leaves them uninitialised, "0" makes them zero."""

    spec: BufferSpec
    file: str


@dataclass(frozen=True, slots=True)
class Item:
    case: str
    build: Build
    code: str  # file
    plan: LaunchPlan
    buffers: tuple[Contents, ...]


@dataclass(frozen=True, slots=True)
class SanitizeJob:
    facts: DeviceFacts
    items: tuple[Item, ...]


def main(folder: Path) -> None:
    """Writes the number of calls that ended well, and what stopped them, into the file `done`."""
    job = codec.loads(SanitizeJob, (folder / JOB).read_bytes())
    ran, fault = 0, ""
    try:
        call(driver.cuInit, 0)
        device = call(driver.cuDeviceGet, int(job.facts.id.partition(":")[2]))
        call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, device))
        stream = Stream(RUN_LIMIT_S)
        for item in job.items:
            _run(item, folder, job.facts, stream)
            ran += 1
    except Rejected as error:  # the tool has said why, or the caller reads it here
        fault = f"{error.status}: {error.message}"
    (folder / DONE).write_text(f"{ran} {fault}")


def _run(item: Item, folder: Path, facts: DeviceFacts, stream: Stream) -> None:
    program = load(item.build, (folder / item.code).read_bytes(), item.plan, facts, stream)
    addresses: list[Any] = []
    buffers = {}
    for contents in item.buffers:
        buffers[contents.spec.name] = buffer = _allocate(contents.spec, addresses)
        if contents.file == "0":
            call(driver.cuMemsetD8Async, buffer.address, 0, max(1, buffer.nbytes), stream.handle)
        elif contents.file and buffer.nbytes:
            data = np.fromfile(folder / contents.file, np.uint8)
            call(driver.cuMemcpyHtoD, buffer.address, data.ctypes.data, buffer.nbytes)
    bind(item.plan, program.functions, buffers, stream).enqueue()
    stream.wait()
    for address in addresses:
        call(driver.cuMemFree, address)
    program.close()


def _allocate(spec: BufferSpec, addresses: list[Any]) -> DeviceBuffer:
    nbytes = size_of(spec)
    room = spec.align if spec.align > 256 else 0
    addresses.append(call(driver.cuMemAlloc, max(1, nbytes) + room))
    address = int(addresses[-1])
    return DeviceBuffer(spec, nbytes, -(-address // spec.align) * spec.align)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

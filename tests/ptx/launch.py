"""From a genome to outputs: compiles to PTX, lays out buffers, and runs every launch of the plan."""

from __future__ import annotations

import functools
import math
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from evo.dtypes import ITEMSIZE, numpy_dtype
from evo.fitness.cuda.build import nvrtc_options
from evo.fitness.cuda.target import CudaTarget
from evo.genome import Genome, buffer_shapes, compile_request, resolve_plan
from evo.operator import Case, Operator
from evo.plan import Argument, Launch, LaunchPlan
from evo.records import CompileRequest, Values
from ptx import arithmetic, matrices, movement, synchronisation
from ptx.block import Block, Shape
from ptx.memory import Area, Array, Fault, Space
from ptx.parser import Kernel, parse
from ptx.warp import Code

INSTRUCTIONS = (arithmetic, matrices, movement, synchronisation)  # whose import registers what they emulate
MEMORY_BASE = 0x7F00_0000_0000
GUARD = 4096  # bytes between buffers that no kernel may touch
SHARED_BASE = 1024  # where sm_90's shared memory begins for a kernel
_FORMATS = {"i32": "<i", "i64": "<q", "f32": "<f", "f64": "<d"}


@dataclass
class Outcome:
    outputs: dict[str, Array]
    executed: list[dict[Shape, int]] = field(default_factory=list)  # instructions of every block, launch by launch


@functools.cache
def compiled(request: CompileRequest) -> dict[str, Code]:
    """The kernels of CUDA C++ by name, as NVRTC translates it for evo's build."""
    from cuda.bindings import nvrtc

    def called(answer: tuple[Any, ...]) -> Any:
        assert int(answer[0]) == 0, f"NVRTC: {answer[0]!r}"
        return answer[1] if len(answer) > 1 else None

    virtual = replace(request, arch=request.arch.replace("sm_", "compute_"))  # PTX is enough
    options = nvrtc_options(virtual).as_bytes("nvrtc")
    program = called(nvrtc.nvrtcCreateProgram(request.source.encode(), b"candidate.cu", 0, None, None))
    status, *_ = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = bytearray(called(nvrtc.nvrtcGetProgramLogSize(program)))
    called(nvrtc.nvrtcGetProgramLog(program, log))
    assert int(status) == 0, log.decode()
    text = bytearray(called(nvrtc.nvrtcGetPTXSize(program)))
    called(nvrtc.nvrtcGetPTX(program, text))
    called(nvrtc.nvrtcDestroyProgram(program))
    return {name: _code(kernel) for name, kernel in parse(text.rstrip(b"\0").decode()).items()}


def _code(kernel: Kernel) -> Code:
    shared = _shared(kernel, 0)
    return Code(kernel, {array.name: shared.address(array.name) for array in kernel.shared})


def run_genome(
    path: Path, operator: Operator, case: Case, genes: Values, inputs: Mapping[str, Array], seed: int
) -> Outcome:
    """One call of the operator on sm_90, in the order that `seed` draws. Raises `Fault`."""
    target, genome = CudaTarget("sm_90"), Genome.read(path)
    values, facts = genome.values(genes), replace(target.nominal(), sms=1)  # persistent kernels loop in small cases too
    plan = resolve_plan(genome, operator, case, values, facts)
    request = compile_request(genome, operator, case, values, target=target.name, arch=target.arch)
    shapes = buffer_shapes(operator, case)
    outputs = {
        name: np.empty(shape, numpy_dtype(case.dtypes[name])) for name, shape in shapes.items() if name not in inputs
    }
    return run_plan(plan, compiled(request), inputs, outputs, seed)


def run_plan(
    plan: LaunchPlan, code: Mapping[str, Code], inputs: Mapping[str, Array], outputs: Mapping[str, Array], seed: int
) -> Outcome:
    """Runs all launches; `outputs` says what there is to write. Everything not written yet is poison."""
    rng = random.Random(seed)
    memory = _lay_out(plan, inputs, outputs)
    outcome = Outcome({})
    with np.errstate(all="ignore"):
        for launch in plan.launches:
            outcome.executed.append(_launch(launch, code[launch.kernel], memory, rng))
    for scratch in plan.scratch:
        if scratch.zero == "kept" and memory.contents(scratch.name).any():
            raise Fault(f"scratch {scratch.name!r} is not left zero")
    for name, array in outputs.items():
        outcome.outputs[name] = memory.contents(name).copy().view(array.dtype).reshape(array.shape)
    return outcome


def _lay_out(plan: LaunchPlan, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Space:
    areas = [Area(name, array.nbytes, writable=False) for name, array in inputs.items()]
    areas += [Area(name, array.nbytes) for name, array in outputs.items()]
    areas += [Area(s.name, math.prod(s.shape) * ITEMSIZE[s.dtype], max(16, s.align)) for s in plan.scratch]
    memory = Space("global", areas, base=MEMORY_BASE, guard=GUARD)
    for name, array in inputs.items():
        memory.contents(name)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for scratch in plan.scratch:
        if scratch.zero:
            memory.contents(scratch.name)[:] = 0
    return memory


def _launch(launch: Launch, code: Code, memory: Space, rng: random.Random) -> dict[Shape, int]:
    """All blocks, one after the other, in random order."""
    if launch.cluster != (1, 1, 1):
        raise Fault("the emulator does not know clusters")
    parameters = dict(zip(code.kernel.parameters, (_argument(each, memory) for each in launch.args), strict=True))
    columns, rows, layers = launch.grid
    places = [(x, y, z) for z in range(layers) for y in range(rows) for x in range(columns)]
    rng.shuffle(places)
    executed: dict[Shape, int] = {}
    for place in places:
        shared = _shared(code.kernel, launch.shared)
        block = Block(code, memory, parameters, shared, place=place, grid=launch.grid, shape=launch.block, rng=rng)
        executed[place] = block.run()
    return executed


def _shared(kernel: Kernel, dynamic: int) -> Space:
    """Static arrays, then the dynamic one."""
    areas = [Area(array.name, array.nbytes or dynamic, array.align) for array in kernel.shared]
    return Space("shared", areas, base=SHARED_BASE, guard=0)


def _argument(argument: Argument, memory: Space) -> bytes:
    if argument.kind == "map":
        raise Fault("the emulator does not know tensor maps")
    if argument.kind == "scalar":
        return struct.pack(_FORMATS[argument.width], argument.value)
    return struct.pack("<Q", 0 if argument.kind == "null" else memory.address(argument.name))

"""CPU genomes compiled to a shared library and called block by block, as the runner does, for tests of operators."""

from __future__ import annotations

import ctypes
import dataclasses
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from evo.dtypes import numpy_dtype
from evo.fitness.compare import deviation
from evo.fitness.cpu import target as cpu
from evo.fitness.cpu.target import CpuTarget
from evo.genome import Genome, buffer_shapes, compile_request, resolve_plan
from evo.operator import Case, Operator
from evo.plan import Launch
from evo.records import Value
from evo.testing.operators import contents as made

WORKERS = 3
FLAGS = "-O2 -march=native -fopenmp-simd -std=c++17 -Wall -Werror -Wno-psabi -shared -fPIC".split()
Arrays = dict[str, np.ndarray]


def host_inputs(operator: Operator, case: Case, law: str) -> Arrays:
    rng, shapes = np.random.default_rng(7), buffer_shapes(operator, case)
    return {n: made(d, shapes[n], case.dtypes[n], rng) for n, d in operator.inputs(case, rng, law).items()}


def wrong(operator: Operator, case: Case, got: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray]) -> str:
    """ "" when every output is within its tolerance."""
    for name, expected in truth.items():
        found, limit = deviation(got[name], expected), operator.output_tolerance(case, name)
        if not (found.rms <= limit.rms and found.max <= limit.max and found.row <= (limit.row or np.inf)):
            return f"{name}: {found}, accepted {limit}"
    return ""


def run_on_host(
    operator: Operator, path: Path, case: Case, changes: Mapping[str, Value], law: str, folder: Path
) -> tuple[Arrays, Mapping[str, np.ndarray]]:
    """(outputs, truth); outputs and scratch start as NaN, guard bands are looked at."""
    genome, facts = Genome.read(path), dataclasses.replace(CpuTarget().nominal(), sms=WORKERS)
    values = genome.values(changes)
    request = compile_request(genome, operator, case, values, target="cpu", arch="native")
    plan = resolve_plan(genome, operator, case, values, facts)
    source, library = folder / "genome.cpp", folder / "genome.so"
    source.write_text(request.source)
    defines = [f"-D{name}={value}" for name, value in request.defines]
    include = f"-I{Path(cpu.__file__).parent}"
    subprocess.run(["g++", *FLAGS, *defines, include, "-o", str(library), str(source)], check=True, timeout=60)
    loaded = ctypes.CDLL(str(library))

    inputs = host_inputs(operator, case, law)
    truth = operator.reference(inputs, case)
    arrays: Arrays = dict(inputs)
    guards: list[np.ndarray] = []
    for name, shape, dtype in [
        *((n, truth[n].shape, case.dtypes[n]) for n in truth),
        *((item.name, item.shape, item.dtype) for item in plan.scratch),
    ]:
        arrays[name], bands = guarded(shape, dtype)
        guards += bands
    for launch in plan.launches:
        call(loaded, launch, arrays)
    assert all((guard == 0xA5).all() for guard in guards)
    return {name: arrays[name] for name in truth}, truth


def call(library: ctypes.CDLL, launch: Launch, arrays: Mapping[str, np.ndarray]) -> None:
    """All blocks of one launch, dealt to workers in turn."""
    arguments: list[ctypes.c_void_p | ctypes.c_float | ctypes.c_long] = []
    for item in launch.args:
        if item.kind in ("tensor", "scratch", "null"):
            arguments.append(ctypes.c_void_p(arrays[item.name].ctypes.data if item.kind != "null" else None))
        else:
            arguments.append(ctypes.c_float(item.value) if item.width == "f32" else ctypes.c_long(int(item.value)))
    entry = getattr(library, launch.kernel)
    for number, first in enumerate(range(0, launch.grid[0], launch.block[0])):
        last = min(first + launch.block[0], launch.grid[0])
        entry(ctypes.c_long(first), ctypes.c_long(last), ctypes.c_int(number % WORKERS), *arguments)


def guarded(shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """An array of NaN that starts at a multiple of 256 bytes (streaming stores need that), and its guard bands."""
    size = int(np.prod(shape)) * numpy_dtype(dtype).itemsize
    memory = np.full(size + 1024, 0xA5, np.uint8)
    start = 512 - memory.ctypes.data % 256
    array = memory[start : start + size].view(numpy_dtype(dtype)).reshape(shape)
    array[:] = np.nan
    return array, (memory[:start], memory[start + size :])

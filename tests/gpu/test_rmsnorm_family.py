"""Every CUDA genome of the two RMSNorm operators, run on small shapes in every mode and element type.

A few rows leave CTAs idle; many rows on a device that claims to have two SMs make persistent CTAs go round their rings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evo.fitness.compare import deviation
from evo.fitness.cuda.machine import CudaMachine
from evo.fitness.cuda.target import CudaTarget
from evo.genome import Genome, buffer_shapes, compile_request, resolve_plan, uncovered
from evo.operator import Case, Operator
from evo.operators.rmsnorm import RmsNorm
from evo.operators.rmsnorm import cases as forward_cases
from evo.operators.rmsnorm_backward import RmsNormBackward
from evo.operators.rmsnorm_backward import cases as backward_cases
from evo.plan import LaunchPlan
from evo.records import Build, CompileRequest, DeviceFacts, Status, Value
from evo.target import BlobStore, BufferSpec
from evo.testing.operators import contents as made

pytestmark = pytest.mark.gpu

FORWARD, BACKWARD = RmsNorm(), RmsNormBackward()
Genes = Mapping[str, Value]
Arrays = dict[str, np.ndarray[Any, Any]]
MANY = 301  # rows

# Genes that change the structure, with row lengths: no power of two, one that fills every thread.
VARIANTS: list[tuple[Operator, str, Genes, tuple[int, ...]]] = [
    (FORWARD, "oracle", {}, (264, 4096)),
    (FORWARD, "block", {}, (8, 264, 4096, 33000)),
    (FORWARD, "block", {"ROWS": 4, "KEEP": 8, "CTAS": 1, "SCHEDULE": "persistent"}, (264, 8200)),
    (FORWARD, "block", {"WEIGHT": "held", "FORM": "unpacked", "RSQRT": "exact", "CTAS": 2}, (1032, 4096)),
    (FORWARD, "warp", {}, (8, 264, 512)),
    (FORWARD, "warp", {"LANES": 8, "UNROLL": 4, "SCHEDULE": "persistent", "CTAS": 1}, (136, 256)),
    (FORWARD, "warp", {"LANES": 16, "WEIGHT": "held", "RSQRT": "newton", "CTAS": 1}, (264, 512)),
    (FORWARD, "cluster", {}, (8200, 32768)),
    (FORWARD, "cluster", {"EXCHANGE": "pull", "AHEAD": 0, "CLUSTER": 2, "WEIGHT": "late"}, (8200, 16384)),
    (FORWARD, "cluster", {"CLUSTER": 16, "THREADS": 128, "WEIGHT": "held"}, (8200, 16384)),
    (FORWARD, "smem", {"CTAS": 4}, (264, 4104)),
    (FORWARD, "smem", {"CTAS": 4, "TEAM": 32, "KEEP": "registers", "WEIGHT": "early"}, (264, 512)),
    (FORWARD, "smem", {"CTAS": 1, "TEAM": 256, "THREADS": 512}, (1032, 8192)),
    (FORWARD, "smem", {"CTAS": 4, "TEAM": 8}, (136, 256)),
    (FORWARD, "ring", {"CTAS": 1}, (136, 264, 512)),
    (FORWARD, "ring", {"CTAS": 1, "OUT": "bulk", "WEIGHT": "late", "STAGES": 2}, (136, 512)),
    (FORWARD, "ring", {"CTAS": 1, "OUT": "bulk", "LANES": 8, "ROWS": 1, "STAGES": 3}, (136, 256)),
    (FORWARD, "ring", {"CTAS": 1, "LANES": 16, "ROWS": 4, "STAGES": 2, "CONSUMERS": 128}, (136, 256)),
    (FORWARD, "chunks", {}, (8192, 20032)),
    (FORWARD, "chunks", {"CLUSTER": 1, "WEIGHT": "late", "BEHIND": 0, "CONSUMERS": 128}, (2056, 8192)),
    (FORWARD, "chunks", {"CLUSTER": 1, "CONSUMERS": 256, "DEPTH": 2, "RING": 96}, (2056, 4096)),
    (FORWARD, "chunks", {"CLUSTER": 8, "CONSUMERS": 128, "DEPTH": 2, "BEHIND": 0}, (8192, 20032)),
    (BACKWARD, "oracle", {}, (264, 4096)),
    (BACKWARD, "block", {}, (8, 264, 4096)),
    (BACKWARD, "block", {"WEIGHT": "held", "STAGES": 2, "THREADS": 128, "CTAS": 1}, (1032, 2048)),
    (BACKWARD, "block", {"STAGES": 6, "THREADS": 512, "PDL": 0, "CTAS": 1}, (264, 1032)),
    (BACKWARD, "warp", {"CTAS": 1}, (8, 264, 512)),
    (BACKWARD, "warp", {"CTAS": 1, "FINISH": "ticket"}, (264, 256)),
    (BACKWARD, "warp", {"CTAS": 1, "FINISH": "ticket", "LANES": 8, "WEIGHT": "late", "COLUMNS": 512}, (136, 128)),
    (BACKWARD, "warp", {"CTAS": 1, "LANES": 16, "UNROLL": 4, "THREADS": 128}, (136, 256)),
    (BACKWARD, "ring", {}, (8, 264, 512)),
    (BACKWARD, "ring", {"FINISH": "ticket"}, (264, 256)),
    (BACKWARD, "ring", {"FINISH": "ticket", "PER": 32, "HELD": 0, "COLUMNS": 128, "WARPS": 8}, (136, 128)),
    (BACKWARD, "ring", {"PER": 8, "TILE": 512, "STAGES": 2, "WARPS": 4, "CTAS": 2, "RING": 96}, (136, 256)),
    (BACKWARD, "cluster", {}, (1032, 8192, 32768)),
    (BACKWARD, "cluster", {"RING": 24, "BEHIND": 0, "STAGES": 2, "WEIGHT": "late"}, (4128, 8192)),
    (BACKWARD, "cluster", {"RING": 48, "PER": 16, "WEIGHT": "shared"}, (4128, 8192)),
    (BACKWARD, "cluster", {"RING": 96, "STAGES": 4, "FILL": 100}, (16384,)),
    (BACKWARD, "chunks", {}, (2048, 16384, 65536)),
    (BACKWARD, "chunks", {"RING": 192, "PER": 16, "WEIGHT": "late", "BEHIND": 0}, (8192,)),
]


def cases_of(operator: Operator, rows: int, columns: int) -> Iterator[Case]:
    """In bf16 every mode; in the other types the plain one and the one that has everything."""
    family = forward_cases if operator is FORWARD else backward_cases
    for mode in family.MODES:
        for dtype in ("bf16", "fp16", "fp32"):
            if dtype == "bf16" or mode in ("", "full"):
                yield family.make("check", dtype, rows, columns, mode)


def genome_of(operator: Operator, name: str) -> Genome:
    paths = [*operator.seeds("sm_90"), operator.oracle("sm_90")]
    return Genome.read(next(path for path in paths if path and path.stem == name))


def run(
    machine: CudaMachine, operator: Operator, genome: Genome, genes: Genes, case: Case, facts: DeviceFacts, law: str,
    blobs: BlobStore, built: dict[CompileRequest, Build],
) -> tuple[Arrays, Mapping[str, np.ndarray[Any, Any]]]:  # fmt: skip
    """(outputs, truth) after two calls that gave the same bits, wrote nowhere else and left kept scratch zero."""
    target = CudaTarget("sm_90")
    values = genome.values(genes)
    plan = resolve_plan(genome, operator, case, values, facts)
    request = compile_request(genome, operator, case, values, target="sm_90", arch=target.arch)
    if request not in built:
        built[request] = target.build(request, blobs)
    build = built[request]
    assert build.status is Status.OK, build.diagnosis
    rng, shapes = np.random.default_rng(11), buffer_shapes(operator, case)
    inputs = {n: made(d, shapes[n], case.dtypes[n], rng) for n, d in operator.inputs(case, rng, law).items()}
    truth = operator.reference(inputs, case)
    specs = [BufferSpec(n, case.dtypes[n], shapes[n], "input") for n in inputs]
    specs += [BufferSpec(n, case.dtypes[n], shapes[n], "output") for n in truth]
    specs += [BufferSpec(item.name, item.dtype, item.shape, "scratch", item.align) for item in plan.scratch]
    buffers = dict(zip((spec.name for spec in specs), machine.allocate(specs), strict=True))
    for name, data in inputs.items():
        machine.fill(buffers[name], data, 0)
    program = machine.load(build, blobs.get(build.blob), plan)
    try:
        call = machine.bind(program, buffers)
        results = [call_once(machine, call, buffers, truth, plan, key) for key in (1, 2)]
    finally:
        program.close()
    for name in truth:
        assert results[0][name].tobytes() == results[1][name].tobytes(), f"{name} differs between two calls"
    return results[0], truth


def call_once(
    machine: CudaMachine, call: Any, buffers: Mapping[str, Any], names: Mapping[str, Any], plan: LaunchPlan, key: int
) -> Arrays:
    for name in names:
        machine.poison(buffers[name], key)
    for item in plan.scratch:
        machine.zero(buffers[item.name]) if item.zero else machine.poison(buffers[item.name], key + 10)
    machine.guard(list(buffers.values()), key)
    machine.run(call)
    assert machine.breach(list(buffers.values()), key) == ""
    for item in plan.scratch:
        assert item.zero != "kept" or machine.is_zero(buffers[item.name]), f"{item.name} was not left zero"
    return {name: machine.read(buffers[name]) for name in names}


def wrong(operator: Operator, case: Case, got: Arrays, truth: Mapping[str, np.ndarray[Any, Any]]) -> str:
    for name, expected in truth.items():
        found, limit = deviation(got[name], expected), operator.output_tolerance(case, name)
        if not (found.rms <= limit.rms and found.max <= limit.max and found.row <= (limit.row or np.inf)):
            return f"{name}: {found}, accepted {limit}"
    return ""


@pytest.mark.parametrize(
    ("operator", "seed", "genes", "widths"),
    VARIANTS,
    ids=[f"{operator.name}-{seed}-{number}" for number, (operator, seed, _, _) in enumerate(VARIANTS)],
)
def test_genome_is_right_in_every_mode(
    machine: CudaMachine, operator: Operator, seed: str, genes: Genes, widths: tuple[int, ...], tmp_path: Path
) -> None:
    genome, blobs, built = genome_of(operator, seed), BlobStore(tmp_path), dict[CompileRequest, Build]()
    small = dataclasses.replace(machine.facts, sms=2)
    faults, ran = [], 0
    for columns in widths:
        for rows, facts, law in (
            (37, machine.facts, operator.distributions[-1]),
            (1, machine.facts, operator.distributions[1]),
            (MANY, small, "normal"),
        ):
            for case in cases_of(operator, rows, columns):
                if uncovered(genome, operator, case, genome.values(genes), facts):
                    continue
                ran += 1
                got, truth = run(machine, operator, genome, genes, case, facts, law, blobs, built)
                fault = wrong(operator, case, got, truth)
                faults += [f"{case.name} on {facts.sms} SMs, {law}: {fault}"] if fault else []
    assert ran >= 3, "hardly anything is covered"
    assert not faults, "\n".join(faults)

"""The gate on a device: large tensors in parts, nothing of the truth left behind, and attempts to carry state along."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_bad_kernels import CASE, GOOD

from evo import app
from evo.dtypes import numpy_dtype
from evo.fitness.check import Gate
from evo.fitness.clock import Side, seeded
from evo.fitness.compare import deviation
from evo.fitness.cuda.machine import CudaMachine
from evo.fitness.layout import lay_out, oracle_case, refill
from evo.fitness.renewal import Renewal
from evo.genome import Genome, compile_request, resolve_plan
from evo.operator import Case
from evo.operators.rmsnorm import RmsNorm
from evo.plugins.manager import Plugins
from evo.records import Status
from evo.target import BlobStore, BufferSpec, Program, Rejected

pytestmark = pytest.mark.gpu

OPERATOR = RmsNorm()
NEEDLE = "const long long row = blockIdx.x;"


def test_tall_tensors_are_compared_in_parts(machine: CudaMachine) -> None:
    rows = (2 << 20) + 5  # three parts
    rng = np.random.default_rng(3)
    want = rng.standard_normal((rows, 4), np.float32)
    got = want.astype(numpy_dtype("bf16"))
    got[rows - 2, 1] = 50
    actual, expected = machine.allocate(
        [BufferSpec("a", "bf16", want.shape, "output"), BufferSpec("e", "fp32", want.shape, "output")]
    )
    machine.fill(actual, got, 0)
    machine.fill(expected, want, 0)
    found, truth = machine.compare(actual, expected), deviation(got, want)
    assert found.index == truth.index == 4 * (rows - 2) + 1
    for name in ("rms", "max", "row", "scale"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-4)


def test_a_comparison_leaves_nothing_of_the_truth_behind(machine: CudaMachine) -> None:
    one, two = machine.allocate([BufferSpec(name, "fp32", (100, 3000), "output") for name in "ab"])
    for buffer in (one, two):
        machine.fill(buffer, np.full((100, 3000), 1.5, np.float32), 0)
    assert machine.compare(one, two).max == 0
    workspace = machine._comparison._workspace
    left = machine._trusted.fetch(workspace.get(1), 4096)
    assert left == bytes(4096)


def load(machine: CudaMachine, path: Path, folder: Path, *, oracle: bool = False) -> tuple[Program, Case]:
    target = Plugins.load(entry_points=False).target(machine.facts.target)
    case = next(case for case in OPERATOR.cases(target.name) if case.name == CASE)
    case = oracle_case(OPERATOR, case) if oracle else case
    genome, blobs = Genome.read(path), BlobStore(folder)
    values = genome.values({})
    request = compile_request(genome, OPERATOR, case, values, target=target.name, arch=target.arch)
    build = target.build(request, blobs)
    assert build.status is Status.OK, build.diagnosis
    plan = resolve_plan(genome, OPERATOR, case, values, machine.facts)
    return machine.load(build, blobs.get(build.blob), plan), case


def test_renewed_slots_are_checked_and_keep_their_digests(machine: CudaMachine, tmp_path: Path) -> None:
    oracle = OPERATOR.oracle(machine.facts.target)
    assert oracle
    good = tmp_path / "good.cu"
    good.write_text(GOOD)
    program, case = load(machine, good, tmp_path)
    truth, _ = load(machine, oracle, tmp_path, oracle=True)
    layout = lay_out(machine, OPERATOR, case, {"candidate": program.plan, "oracle": truth.plan}, count=2, lanes=5)
    gate = Gate(machine, OPERATOR, case, layout, truth, seeded(5, "renewal"))
    for slot in layout.slots:
        refill(machine, OPERATOR, case, slot, gate.rng, "normal")
    calls = [machine.bind(program, layout.bound(lane, "candidate")) for lane in layout.lanes]
    digests = []
    for call, slot in zip(calls, layout.slots, strict=False):
        gate.check(call, program.plan, slot)
        digests += gate.digests(slot)
    sides, renewal = [Side("candidate", program.plan, calls, tuple(digests))], Renewal(gate)
    for _ in range(12):
        gate.prepare_lanes(program.plan, "candidate")
        for call in calls:
            machine.run(call)
        for number, found in enumerate(gate.digests(*layout.lanes)):
            assert found == sides[0].digests[number % 2]
        sides = renewal.after_quad(sides)
    renewal.finish(sides)
    assert renewal.done >= 2
    seal = gate.seal()
    machine.guard([layout.lanes[4].buffers["y"]], seal[0] + 1)  # as a stray write round an extra lane's output
    with pytest.raises(Rejected, match="wrote outside a buffer"):
        gate.unbroken(seal)


# Every row keeps its output, and the address of x that it was made from, in scratch for the next call.
MEMO = GOOD.replace("*/\n#include", '[scratch.notes]\ndtype = "i64"\nshape = ["M * (1 + N // 4)"]\n*/\n#include', 1)
MEMO = MEMO.replace('"y", "i64:N"', '"y", "notes", "i64:N"').replace(
    "DTYPE_y* y, long long n", "DTYPE_y* y, long long* notes, long long n"
)
MEMO = MEMO.replace(
    NEEDLE,
    NEEDLE
    + """
    long long* mine = notes + row * (1 + n / 4);
    DTYPE_y* kept = (DTYPE_y*)(mine + 1);
    const bool known = mine[0] == (long long)x;
    __syncthreads();
    if (known) {
        for (long long i = threadIdx.x; i < n; i += 128) y[row * n + i] = kept[i];
        return;
    }""",
).replace(
    "/*end*/",
    "for (long long i = threadIdx.x; i < n; i += 128) kept[i] = y[row * n + i];\n"
    "    if (threadIdx.x == 0) mine[0] = (long long)x;",
)


def test_notes_in_scratch_are_not_believed(device: str, tmp_path: Path) -> None:
    """No timed call finds the notes of another one, and at a renewal the inputs change under those of its own."""
    honest, memo = tmp_path / "honest.cu", tmp_path / "memo.cu"
    honest.write_text(GOOD)
    memo.write_text(MEMO)
    found = app.bench(memo, target="auto", genes={}, cases=(CASE,), against=str(honest))
    assert found.status is Status.WRONG_RESULT
    assert found.diagnosis is not None
    assert "the answer depends on what earlier calls left behind" in found.diagnosis.message

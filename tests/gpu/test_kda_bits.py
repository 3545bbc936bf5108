"""The bit-exact class of KDA on a device: FlashKDA's recorded bits, and one kernel's bits by another of its class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kda_golden
import numpy as np
import pytest

from evo.fitness.cuda.machine import CudaMachine
from evo.fitness.cuda.target import CudaTarget
from evo.genome import Genome, buffer_shapes, compile_request, resolve_plan
from evo.operator import Case
from evo.operators.kda import Kda, cases
from evo.plan import LaunchPlan
from evo.records import Build, CompileRequest, Status, Value
from evo.target import BlobStore, Buffer, BufferSpec, Call
from evo.testing.operators import contents

pytestmark = pytest.mark.gpu

KDA = Kda()
HERE = Path(cases.__file__).parent
EXACT, CHUNKED = HERE / "exact.cu", HERE / "seeds" / "chunked.cu"
Arrays = dict[str, np.ndarray[Any, Any]]
Genes = Mapping[str, Value]

VARIANTS: list[Genes] = [
    {},
    {"SPLIT": 1, "TILES": 2, "THREADS": 64},
    {"SPLIT": 1, "STAGES": 2, "OVERLAP": 1, "FIRST": "given"},
    {"TILES": 2, "FACTORS": "st.global.v4.b32", "STORE": "st.global.cs.v4.b32"},
    {"SPLIT": 4, "THREADS": 256, "STAGES": 4},
    {"SPLIT": 4, "TILES": 2, "OVERLAP": 1, "FACTORS": "st.global.cg.v4.b32"},
]


class Bench:
    """Runs kernels of KDA on one device; equal builds are made once."""

    def __init__(self, machine: CudaMachine, blobs: BlobStore) -> None:
        self.machine, self.blobs, self.built = machine, blobs, dict[CompileRequest, Build]()

    def build(self, request: CompileRequest) -> Build:
        if request not in self.built:
            self.built[request] = CudaTarget(request.target).build(request, self.blobs)
        assert self.built[request].status is Status.OK, self.built[request].diagnosis
        return self.built[request]

    def run(self, path: Path, genes: Genes, case: Case, inputs: Arrays) -> Arrays:
        """The outputs, after two calls that gave the same bits and wrote nowhere else."""
        machine, genome, name = self.machine, Genome.read(path), self.machine.facts.target
        values, shapes = genome.values(genes), buffer_shapes(KDA, case)
        plan = resolve_plan(genome, KDA, case, values, machine.facts)
        request = compile_request(genome, KDA, case, values, target=name, arch=CudaTarget(name).arch)
        build, outputs = self.build(request), [each for each in ("out", "final_state") if each in shapes]
        specs = [BufferSpec(each, case.dtypes[each], shapes[each], "input") for each in inputs]
        specs += [BufferSpec(each, case.dtypes[each], shapes[each], "output") for each in outputs]
        specs += [BufferSpec(item.name, item.dtype, item.shape, "scratch", item.align) for item in plan.scratch]
        buffers = dict(zip((spec.name for spec in specs), machine.allocate(specs), strict=True))
        for each, data in inputs.items():
            machine.fill(buffers[each], data, 0)
        program = machine.load(build, self.blobs.get(build.blob), plan)
        try:
            call = machine.bind(program, buffers)
            first, second = (self.call(call, buffers, outputs, plan, key) for key in (1, 2))
        finally:
            program.close()
        assert different(first, second) == "", "two calls differ"
        return first

    def call(
        self, call: Call, buffers: Mapping[str, Buffer], outputs: Sequence[str], plan: LaunchPlan, key: int
    ) -> Arrays:
        for name in (*outputs, *(item.name for item in plan.scratch)):
            self.machine.poison(buffers[name], key)
        self.machine.guard(list(buffers.values()), key)
        self.machine.run(call)
        assert self.machine.breach(list(buffers.values()), key) == ""
        return {name: self.machine.read(buffers[name]) for name in outputs}


@pytest.fixture(scope="module")
def bench(machine: CudaMachine, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(machine, BlobStore(tmp_path_factory.mktemp("blobs")))


def drawn(case: Case, seed: int) -> Arrays:
    rng, shapes = np.random.default_rng(seed), buffer_shapes(KDA, case)
    made = KDA.inputs(case, rng, case.distribution)
    return {name: contents(data, shapes[name], case.dtypes[name], rng) for name, data in made.items()}


@pytest.fixture(scope="module")
def known(bench: Bench) -> list[tuple[Case, Arrays, Arrays]]:
    """(case, inputs, exact.cu's outputs): every state mode, batches, ragged lists, weak, wild and saturated gates, and
    more CTAs than fit at once."""
    some = [case for case in KDA.cases("sm_90") if case.group == "check"]
    some.append(cases.make("many", "check", 40, lengths=(5, 16, 131, 1, 33, 64, 17, 250), distribution="mixed"))
    inputs = [drawn(case, seed) for seed, case in enumerate(some)]
    return [(case, given, bench.run(EXACT, {}, case, given)) for case, given in zip(some, inputs, strict=True)]


def different(got: Arrays, expected: Arrays) -> str:
    """How many elements of each output have other bits, for a message; "" when none has."""
    wrong = []
    for name, want in expected.items():
        same = got[name].reshape(want.shape).view(f"u{want.itemsize}") == want.view(f"u{want.itemsize}")
        wrong += (
            [] if same.all() else [f"{name}: {(~same).sum()} of {same.size}, first {np.argwhere(~same)[0].tolist()}"]
        )
    return ", ".join(wrong)


@pytest.mark.parametrize("path", kda_golden.FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("kernel", [EXACT, CHUNKED], ids=lambda path: path.stem)
def test_kernel_reproduces_the_recorded_bits(bench: Bench, kernel: Path, path: Path) -> None:
    recording = kda_golden.read(path)
    got = bench.run(kernel, {}, recording.case, recording.inputs)
    assert different(got, recording.expected) == ""


@pytest.mark.parametrize("genes", VARIANTS, ids=range(len(VARIANTS)))
def test_chunked_gives_the_bits_of_exact(bench: Bench, genes: Genes, known: list[tuple[Case, Arrays, Arrays]]) -> None:
    faults = []
    for case, inputs, expected in known:
        fault = different(bench.run(CHUNKED, genes, case, inputs), expected)
        faults += [f"{case.name}: {fault}"] if fault else []
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("kernel", [EXACT, CHUNKED], ids=lambda path: path.stem)
def test_a_sequence_does_not_see_what_lies_behind_it(bench: Bench, kernel: Path) -> None:
    """17 tokens give the same bits whatever the next sequence holds, not-a-number included."""
    case = cases.make("poisoned", "check", 2, lengths=(17, 15), states=cases.STATES[1:])
    inputs = drawn(case, 1)
    dirty = {name: data.copy() for name, data in inputs.items()}
    for name in kda_golden.HEADED:
        dirty[name][:, 17:] = np.nan
    clean, got = bench.run(kernel, {}, case, inputs), bench.run(kernel, {}, case, dirty)
    assert different({"out": got["out"][:, :17]}, {"out": clean["out"][:, :17]}) == ""
    assert different({"state": got["final_state"][:1]}, {"state": clean["final_state"][:1]}) == ""

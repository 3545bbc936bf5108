"""A candidate that crashes, hangs, spoils or exhausts the device costs itself and nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rig import Rig, rig
from test_bad_kernels import CASE, END, FIRST, GOOD

from evo.fitness.cuda.devices import list_devices
from evo.fitness.cuda.machine import CudaMachine
from evo.fitness.proof import prove
from evo.records import Status
from evo.target import BufferSpec, Rejected

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def bench(device: str) -> Iterator[Rig]:
    target = next(facts.target for facts in list_devices() if facts.id == device)
    with rig("rmsnorm", target, CASE) as here:
        yield here


def test_the_device_proves_itself(machine: CudaMachine) -> None:
    free = prove(machine)
    assert 0 < free <= machine.facts.memory_bytes
    assert prove(machine, free) > 0.9 * free


def test_memory_that_is_not_given_back_fails_the_proof(machine: CudaMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evo.fitness.proof.FREE_WAIT_S", 0.0)
    with pytest.raises(Rejected, match="GiB of its memory are free") as caught:
        prove(machine, 2 * machine.facts.memory_bytes)
    assert caught.value.fatal


def test_more_memory_than_there_is_harms_nobody(machine: CudaMachine) -> None:
    free = prove(machine)
    elements = 2 * machine.facts.memory_bytes
    with pytest.raises(Rejected) as caught:
        machine.allocate([BufferSpec("x", "u8", (elements,), "scratch")])
    assert caught.value.status is Status.RESOURCE_LIMIT
    assert not caught.value.fatal
    assert prove(machine, free) > 0.9 * free


@pytest.mark.parametrize(
    ("fault", "body", "status"),
    [
        ("crash", "*(volatile float*)1024 = 1;", Status.CRASH),
        ("trap", 'asm volatile("trap;");', Status.CRASH),
        ("misaligned", "*(volatile int*)((char*)y + 1) = 1;", Status.CRASH),
        ("hang", 'for (;;) asm volatile("nanosleep.u32 100;");', Status.TIMEOUT),
        ("local memory", "float big[1024]; for (int i = 0; i < 1024; ++i) big[i] = i + eps; "
         "y[row * n] = evo_cast<DTYPE_y>(big[(int)eps + 77] * 1e3f);", Status.WRONG_RESULT),
    ],
)  # fmt: skip
def test_only_the_bad_one_pays(bench: Rig, fault: str, body: str, status: Status) -> None:
    found = bench.judge_raw(GOOD.replace(END, f"{FIRST}{{ {body} }}"), ".cu")
    assert found.status is status, (fault, found.diagnosis)
    for _ in range(2):
        good = bench.judge(GOOD, ".cu")
        assert good.status is Status.OK, (fault, good.diagnosis)


def test_scratch_beyond_the_devices_memory(bench: Rig) -> None:
    header = '[scratch.big]\ndtype = "u8"\nshape = ["1 << 40"]\n'.replace("1 << 40", str(1 << 40))
    text = GOOD.replace("*/", header + "*/", 1).replace('"eps"]', '"eps", "big"]', 1)
    text = text.replace("float eps) {", "float eps, unsigned char* big) {", 1)
    found = bench.judge_raw(text, ".cu")
    assert found.status in (Status.RESOURCE_LIMIT, Status.INVALID_GENOME), found.diagnosis
    assert bench.judge(GOOD, ".cu").status is Status.OK


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("if (clock64() & 1) y[row * n] = evo_cast<DTYPE_y>(1.f);", "reads a clock"),
        ('unsigned long long number; asm volatile("mov.u64 %0, %%gridid;" : "=l"(number)); '
         "if (number > 9) y[row * n] = evo_cast<DTYPE_y>(1.f);", "number or the graph"),
    ],
)  # fmt: skip
def test_what_tells_calls_apart_never_runs(bench: Rig, body: str, says: str) -> None:
    found = bench.judge_raw(GOOD.replace(END, body), ".cu")
    assert found.status is Status.FORBIDDEN, found.diagnosis
    assert found.diagnosis is not None
    assert says in found.diagnosis.message

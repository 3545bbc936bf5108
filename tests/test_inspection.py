"""Plans held against machine code, with no device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evo.fitness.inspection import inspect
from evo.plan import Argument, Launch, LaunchPlan
from evo.records import Build, DeviceFacts, Kernel, Status

FACTS = DeviceFacts("cuda:0", "H200", "sm_90", 132, 232448, 233472, 60 << 20, 1 << 37)
KERNEL = Kernel("k", parameters=(8, 8, 4), registers=64, shared_bytes=1024, max_threads=512)
BUILD = Build("key", Status.OK, "nvrtc", 0.1, kernels=(KERNEL,))
ARGS = (Argument("tensor", "x"), Argument("null", "bias"), Argument("scalar", "i32:M", "i32", 5))
LAUNCH = Launch("k", (10, 1, 1), (256, 1, 1), ARGS)


def test_a_plan_that_fits() -> None:
    assert inspect(BUILD, LaunchPlan((LAUNCH,)), FACTS) == (Status.OK, None)


@pytest.mark.parametrize(
    ("launch", "status", "says"),
    [
        (replace(LAUNCH, kernel="kk"), Status.INVALID_GENOME, "has: k"),
        (replace(LAUNCH, args=ARGS[:2]), Status.INVALID_GENOME, "2 arguments given, the kernel takes 3"),
        (
            replace(LAUNCH, args=(*ARGS[:2], Argument("scalar", "i64:M", "i64", 5))),
            Status.INVALID_GENOME,
            "argument 3 (i64:M) has 8 bytes, the kernel takes 4",
        ),
        (replace(LAUNCH, shared=300 * 1024), Status.RESOURCE_LIMIT, "308224 bytes of shared memory"),
        (replace(LAUNCH, block=(1024, 1, 1)), Status.RESOURCE_LIMIT, "bounded to 512"),
        (replace(LAUNCH, cluster=(32, 1, 1)), Status.RESOURCE_LIMIT, "cluster of 32"),
    ],
)
def test_a_plan_that_does_not(launch: Launch, status: Status, says: str) -> None:
    found, diagnosis = inspect(BUILD, LaunchPlan((LAUNCH, launch)), FACTS)
    assert found is status
    assert diagnosis is not None
    assert "launch 2" in diagnosis.message
    assert says in diagnosis.message


def test_too_many_registers_for_the_block() -> None:
    wide = replace(BUILD, kernels=(replace(KERNEL, registers=200, max_threads=0),))
    found, diagnosis = inspect(wide, LaunchPlan((replace(LAUNCH, block=(512, 1, 1)),)), FACTS)
    assert found is Status.RESOURCE_LIMIT
    assert diagnosis is not None
    assert "102400" in diagnosis.message or "65536" in diagnosis.message


def test_no_arguments_at_all_are_noticed() -> None:
    bare = replace(BUILD, kernels=(replace(KERNEL, parameters=()),))
    assert inspect(bare, LaunchPlan((LAUNCH,)), FACTS)[0] is Status.INVALID_GENOME

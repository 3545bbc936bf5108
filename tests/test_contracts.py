"""The shipped contract tests, inherited by the built-ins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evo.fitness.cpu.target import CpuTarget
from evo.fitness.cuda.target import CudaTarget
from evo.operator import Operator
from evo.operators.rmsnorm import RmsNorm
from evo.target import Machine, Target
from evo.testing import MachineContract, OperatorContract


class TestRmsNormOnCpu(OperatorContract):
    target_names = ("cpu",)

    @pytest.fixture
    def operator(self) -> Operator:
        return RmsNorm()

    @pytest.fixture
    def target(self) -> Target:
        return CpuTarget()


class TestRmsNormOnHopper(OperatorContract):
    target_names = ("sm_90",)

    @pytest.fixture
    def operator(self) -> Operator:
        return RmsNorm()

    @pytest.fixture
    def target(self) -> Target:
        return CudaTarget("sm_90")


@pytest.fixture(scope="module")
def opened() -> Iterator[Machine]:
    machine = CpuTarget().open("cpu:0")
    yield machine
    machine.close()


class TestCpuMachine(MachineContract):
    @pytest.fixture
    def machine(self, opened: Machine) -> Machine:
        return opened

"""The contract of `Machine`, on a real device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evo.fitness.cuda.machine import CudaMachine
from evo.target import Machine
from evo.testing import MachineContract

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def opened(device: str) -> Iterator[Machine]:
    machine = CudaMachine(device)
    yield machine
    machine.close()


class TestCudaMachine(MachineContract):
    @pytest.fixture
    def machine(self, opened: Machine) -> Machine:
        return opened

"""Contract tests that ship with evo: subclass one, provide its fixture, and every rule of the interface is tested.

class TestMine(OperatorContract):
    @pytest.fixture
    def operator(self) -> Operator:
        return Mine()
"""

from evo.testing.machines import MachineContract
from evo.testing.operators import OperatorContract

__all__ = ["MachineContract", "OperatorContract"]

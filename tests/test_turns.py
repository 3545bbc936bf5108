"""Every kind of row is in every check of a timed shape, however few rows it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from evo.dtypes import ITEMSIZE
from evo.fitness.layout import Slot, refill, turns
from evo.genome import buffer_shapes
from evo.operator import Case, Fill, Operator
from evo.operators.kda import Kda
from evo.operators.rmsnorm import RmsNorm
from evo.target import BufferSpec


@dataclass
class Shelf:
    spec: BufferSpec


@dataclass
class Recorder:
    """Stands for a machine: remembers what it was asked to write."""

    written: dict[str, tuple[Fill, int]] = field(default_factory=dict)

    def fill(self, buffer: Any, data: Fill, seed: int) -> None:
        self.written[buffer.spec.name] = (data, seed)


def slot_of(operator: Operator, case: Case) -> Slot:
    shapes = buffer_shapes(operator, case)
    buffers = {
        n: Shelf(BufferSpec(n, case.dtypes[n], shapes[n], "input")) for n in shapes if case.dtypes[n] in ITEMSIZE
    }
    return Slot(buffers, {}, {})  # type: ignore[arg-type]  # buffers without memory


@pytest.mark.parametrize("rows", [1, 2, 4, 7, 11, 12, 13, 64])
def test_all_kinds_are_dealt(rows: int) -> None:
    operator = RmsNorm()
    case = next(c for c in operator.cases("cpu") if c.group == "tune" and c.dtypes["x"] == "fp32")
    case = Case(**{**{f: getattr(case, f) for f in case.__slots__}, "dims": {**case.dims, "M": rows}})
    seen, rounds = set[str](), turns(operator, case, "mixed", np.random.default_rng(0))
    machine = Recorder()
    for turn in range(rounds):
        refill(machine, operator, case, slot_of(operator, case), np.random.default_rng(3), "mixed", turn)  # type: ignore[arg-type]
        data, seed = machine.written["x"]
        stride, shift = data.deal(seed)
        seen |= {data.kinds[(row * stride + shift) % len(data.kinds)] for row in range(rows)}
    assert seen == set(data.kinds)
    assert rounds == max(1, -(-len(data.kinds) // rows))


def test_an_operator_without_kinds_of_rows_is_dealt_once() -> None:
    operator = Kda()
    case = next(c for c in operator.cases("cpu") if c.group == "tune")
    assert turns(operator, case, "mixed", np.random.default_rng(0)) == 1

"""FlashKDA's recorded outputs (an H200, the same bits twice) as cases of the operator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from evo.operator import Case
from evo.operators.kda import cases

Array = np.ndarray[Any, Any]
FILES = sorted((Path(__file__).parent / "data" / "golden").glob("flashkda_*.npz"))
HEADED = ("q", "k", "v", "g", "beta")
GIVEN = (*HEADED, "A_log", "dt_bias", "cu_seqlens", "initial_state")


@dataclass(frozen=True, slots=True)
class Recording:
    case: Case
    inputs: dict[str, Array]  # in the operator's shapes and the case's types
    expected: dict[str, Array]


def read(path: Path) -> Recording:
    data = {
        name: array.view(ml_dtypes.bfloat16) if array.dtype == np.uint16 else array
        for name, array in np.load(path).items()
    }
    expected = {name: data[f"expected_{name}"] for name in ("out", "final_state") if f"expected_{name}" in data}
    lengths = tuple(int(each) for each in np.diff(data["cu_seqlens"])) if "cu_seqlens" in data else ()
    batch, states = int(data["batch"]), [array for array in (data.get("initial_state"), expected.get("final_state"))]
    narrow = any(state is not None and state.dtype == ml_dtypes.bfloat16 for state in states)
    case = cases.make(
        path.stem, "check", data["q"].shape[1], tokens=0 if lengths else len(data["q"]) // batch, batch=batch,
        lengths=lengths, states=[name for name, state in zip(cases.STATES, states, strict=True) if state is not None],
        state="bf16" if narrow else "fp32",
    )  # fmt: skip
    case = replace(case, scalars={name: float(data[name]) for name in ("scale", "lower_bound")})
    inputs = {name: data[name] for name in GIVEN if name in data}
    for name in HEADED:
        inputs[name] = inputs[name].reshape(batch, -1, *inputs[name].shape[1:])
    expected["out"] = expected["out"].reshape(inputs["v"].shape)
    return Recording(case, inputs, expected)

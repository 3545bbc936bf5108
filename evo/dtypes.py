"""Element types by the names that operators, genomes and cases use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "u8": 1, "i8": 1, "i32": 4, "u32": 4, "i64": 8, "u64": 8}
FLOATS = frozenset({"bf16", "fp16", "fp32", "fp64"})
SCALARS = {"i32": 4, "i64": 8, "f32": 4, "f64": 8}  # widths of scalar arguments, bytes


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of an element type; bf16 comes from `ml_dtypes`."""
    import ml_dtypes
    import numpy as np

    table = {
        "bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64, "u8": np.uint8,
        "i8": np.int8, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64,
    }  # fmt: skip
    dtype: np.dtype[Any] = np.dtype(table[name])
    return dtype

"""What buffers hold before a program must write them: nothing that could be told from a result.

Three kinds of contents, chosen by the secret key. `NAN`: quiet NaNs of varying payload and some huge numbers, which
nothing survives that reads them. `PLAUSIBLE`: only finite numbers as large as results are, which pass for work done.
`MIXED`: both, word by word. Integers get keyed bits.
"""

from __future__ import annotations

import math
import random
from enum import IntEnum


class Mode(IntEnum):
    """The numbers are those of trusted.cu."""

    BITS = 0
    NAN = 1
    PLAUSIBLE = 2
    MIXED = 3


# Bits of an element and of its mantissa, exponent bias.
LAYOUT = {"bf16": (16, 7, 127), "fp16": (16, 10, 15), "fp32": (32, 23, 127), "fp64": (64, 52, 1023)}
_MODES = (Mode.NAN, Mode.PLAUSIBLE, Mode.MIXED, Mode.PLAUSIBLE)


def mode(dtype: str, key: int) -> Mode:
    return _MODES[key % 4] if dtype in LAYOUT else Mode.BITS


def top(dtype: str, scale: float, key: int) -> int:
    """The largest exponent field of plausible numbers. They are uniform, with an RMS of about `scale`: a uniform
    number's exponent is `top` half of the time, one less a quarter of the time, and so on."""
    _, _, bias = LAYOUT[dtype]
    if not (scale > 0 and math.isfinite(scale)):
        scale = 1.0
    exponent = math.floor(math.log2(scale)) + (key >> 2) % 2
    return max(1, min(2 * bias, bias + exponent))


def two_places(count: int, key: int) -> tuple[int, int]:
    """Two different indices below `count`."""
    first, second = random.Random(key).sample(range(count), 2)
    return first, second

"""What lies in buffers: made from a seed, poisoned, digested. NumPy over bounded pieces."""

from __future__ import annotations

import functools
from statistics import NormalDist
from typing import Any

import numpy as np

from evo.dtypes import FLOATS, numpy_dtype
from evo.operator import Fill

Array = np.ndarray[Any, Any]

_PIECE = 1 << 15  # elements worked on at a time: what stays in the cache
_WORDS = 1 << 15  # 64-bit words of a tile of pattern or key
_EXPONENTS = {"bf16": 0x7FC0, "fp16": 0x7E00, "fp32": 0x7FC0_0000, "fp64": 0x7FF8_0000_0000_0000}


def rows(array: Array) -> Array:
    """The array as [rows, last axis]; a vector or scalar is one row."""
    return array.reshape(-1, array.shape[-1] if array.ndim else 1) if array.size else array.reshape(0, 1)


def fill(out: Array, data: Fill, seed: int) -> None:
    """Writes `out` as the fill says, the same for the same seed, dtype and shape."""
    rng = np.random.Generator(np.random.SFC64(seed))
    plain = data.row_log2 == (0.0, 0.0) and data.outlier_rate == 0
    values = _normals() * np.float32(data.b) + np.float32(data.a)
    values = values.astype(out.dtype) if plain else values
    table = rows(out)
    height = max(1, _PIECE // max(1, table.shape[1]))
    for first in range(0, table.shape[0], height):
        piece = table[first : first + height]
        drawn = _law(data, values, piece.shape, rng)
        with np.errstate(over="ignore"):  # a scaled value may be infinite in a narrow type; that is the fill's wish
            piece[...] = drawn if plain else _scaled(drawn, data, rng).astype(out.dtype)


def _law(data: Fill, normals: Array, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if data.law == "constant":
        return np.full(shape, data.a, np.float32)
    if data.law == "uniform":
        return rng.random(shape, np.float32) * np.float32(data.b - data.a) + np.float32(data.a)
    return np.take(normals, rng.integers(0, 1 << 16, shape, np.uint16))


def _scaled(values: Array, data: Fill, rng: np.random.Generator) -> Array:
    values *= np.exp2(rng.uniform(*data.row_log2, (len(values), 1))).astype(np.float32)
    values[rng.random(values.shape, np.float32) < data.outlier_rate] *= np.float32(data.outlier_scale)
    return values


@functools.cache
def _normals() -> Array:
    """65,536 equally likely values of the standard normal law: drawing from them is four times as fast as drawing
    anew, and a rotation's slots hold hundreds of megabytes."""
    law = NormalDist()
    return np.array([law.inv_cdf((i + 0.5) / (1 << 16)) for i in range(1 << 16)], np.float32)


@functools.lru_cache(maxsize=8)
def _tile(key: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Random words for one key; odd, so that multiplying by them loses nothing."""
    words = np.random.default_rng(key).integers(0, 1 << 64, _WORDS, np.uint64) | np.uint64(1)
    words.setflags(write=False)
    return words


def poison(raw: Array, dtype: str, key: int) -> None:
    """Overwrites bytes with a pattern that depends on `key` and place; floats become NaN, one in eight aside."""
    tile = _tile(key).view(np.uint8).copy()
    if dtype in FLOATS:
        exponent = _EXPONENTS[dtype]
        lanes = tile.view(f"<u{numpy_dtype(dtype).itemsize}")
        lanes[np.arange(lanes.size) % 8 != key % 8] |= lanes.dtype.type(exponent)
    for number, first in enumerate(range(0, raw.size, tile.size)):
        piece = raw[first : first + tile.size]
        piece[:] = np.roll(tile, 64 * number)[: piece.size]


def digest(raw: Array, key: int) -> int:
    """A keyed 64-bit digest: sums of products with secret odd words, chained over tiles. Not for signatures."""
    tile = _tile(key)
    step = int(tile[0])
    total = raw.size
    whole = raw[: raw.size // 8 * 8]
    words = (whole if whole.ctypes.data % 8 == 0 else whole.copy()).view(np.uint64)
    for first in range(0, words.size, _WORDS):
        piece = words[first : first + _WORDS]
        mixed = np.dot(piece ^ (piece >> np.uint64(32)), tile[: piece.size])
        total = (total * step + int(mixed)) % (1 << 64)
    tail = int.from_bytes(raw[whole.size :].tobytes(), "little")
    return (total * step + tail) % (1 << 64)

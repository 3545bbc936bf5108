"""What lies in buffers: made from a seed, poisoned, digested. NumPy over bounded pieces."""

from __future__ import annotations

import functools
from statistics import NormalDist
from typing import Any

import ml_dtypes
import numpy as np

from evo.dtypes import numpy_dtype
from evo.fitness import poison as patterns
from evo.operator import Fill

Array = np.ndarray[Any, Any]

_PIECE = 1 << 15  # elements worked on at a time: what stays in the cache
_WORDS = 1 << 15  # 64-bit words of a tile of pattern or key
_HEAVIEST = 2.0**14  # fits fp16


def rows(array: Array) -> Array:
    """The array as [rows, last axis]; a vector or scalar is one row."""
    return array.reshape(-1, array.shape[-1] if array.ndim else 1) if array.size else array.reshape(0, 1)


def fill(out: Array, data: Fill, seed: int) -> None:
    """Writes `out` as the fill says, the same for the same seed, dtype and shape."""
    rng = np.random.Generator(np.random.SFC64(seed))
    plain = data.row_log2 == (0.0, 0.0) and data.outlier_rate == 0 and not data.kinds
    values = _normals() * np.float32(data.b) + np.float32(data.a)
    values = values.astype(out.dtype) if plain else values
    table = rows(out)
    height = max(1, _PIECE // max(1, table.shape[1]))
    for first in range(0, table.shape[0], height):
        piece = table[first : first + height]
        drawn = _law(data, values, piece.shape, rng)
        # A scaled value may be infinite in a narrow type, or zero; that is the fill's wish.
        with np.errstate(over="ignore", under="ignore"):
            if data.kinds:
                piece[...] = _dealt(drawn.astype(np.float64), first, data, seed, rng, out.dtype).astype(out.dtype)
            else:
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


def _dealt(values: Array, first: int, data: Fill, seed: int, rng: np.random.Generator, dtype: np.dtype[Any]) -> Array:
    """Rows `first` and following, each made into what its kind is."""
    stride, shift = data.deal(seed)
    for number, row in enumerate(values, first):
        _become(data.kinds[(number * stride + shift) % len(data.kinds)], row, data, rng, dtype)
    return values


def _become(kind: str, row: Array, data: Fill, rng: np.random.Generator, dtype: np.dtype[Any]) -> None:
    place = int(rng.integers(row.size))
    match kind:
        case "zeros":
            row[:] = 0.0
        case "constant":
            row[:] = row[place]
        case "tiny" | "huge":
            row *= 2.0 ** data.row_log2[kind == "huge"]
        case "heavy":
            np.clip(row / np.sqrt(rng.standard_exponential(row.size)), -_HEAVIEST, _HEAVIEST, out=row)
        case "first" | "last":
            row[slice(1, None) if kind == "first" else slice(-1)] = 0.0
        case "alternating":
            row[::2], row[1::2] = 3.0, -3.0
        case "subnormal":
            row *= float(ml_dtypes.finfo(dtype).smallest_normal) / 4  # type: ignore[no-untyped-call]
        case "outlier" | "nan" | "inf":
            row[place] = {"outlier": data.outlier_scale, "nan": np.nan, "inf": np.inf}[kind]


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


def poison(raw: Array, dtype: str, key: int, scale: float) -> None:
    """Overwrites bytes with a pattern that depends on `key` and place; see `evo.fitness.poison`."""
    tile = _tile(key).view(np.uint8).copy()
    mode = patterns.mode(dtype, key)
    if mode is not patterns.Mode.BITS:
        _spoil(tile.view(f"<u{numpy_dtype(dtype).itemsize}"), dtype, key, scale, mode)
    for number, first in enumerate(range(0, raw.size, tile.size)):
        piece = raw[first : first + tile.size]
        piece[:] = np.roll(tile, 64 * number)[: piece.size]


def _spoil(lanes: Array, dtype: str, key: int, scale: float, mode: patterns.Mode) -> None:
    """Random bits become numbers of the mode's kinds: one in eight of the NaN kind is huge instead."""
    width, mantissa, _ = patterns.LAYOUT[dtype]
    kind = lanes.dtype.type
    exponents = kind(((1 << (width - 1 - mantissa)) - 1) << mantissa)
    draw = np.random.default_rng([key, 1]).integers(0, 1 << 16, lanes.size, np.uint16)
    zeros = _trailing_zeros()[draw]  # 0 half of the time, 1 a quarter of the time, ...
    top = patterns.top(dtype, scale, key)
    plausible = lanes & ~exponents | np.maximum(top - zeros, 0).astype(lanes.dtype) << kind(mantissa)
    nan = lanes | exponents | kind(1 << (mantissa - 1))
    huge = lanes & ~exponents | exponents - kind(1 << mantissa)
    spoiled = np.where(draw >> 13 == 0, huge, nan)
    if mode is patterns.Mode.PLAUSIBLE:
        spoiled = plausible
    elif mode is patterns.Mode.MIXED:
        spoiled = np.where(draw >> 12 & 1, plausible, spoiled)
    lanes[:] = spoiled


@functools.cache
def _trailing_zeros() -> Array:
    """Of every 16-bit number; 11 at most, as on the device."""
    numbers = np.arange(1 << 16) | 1 << 11
    zeros: Array = np.log2(numbers & -numbers).astype(np.int64)
    return zeros


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

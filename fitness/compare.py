"""How far an output is from the truth, in NumPy; the device's compare kernel follows the same rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from evo.records import Deviation

Array = np.ndarray[Any, Any]
CHUNK = 1 << 16  # elements a step: the float64 copies stay in a core's cache


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)


def deviation(actual: Array, expected: Array, row_floor: float = 0.0) -> Deviation:
    """`Deviation` of `actual` from `expected`, equal shapes, any float dtypes; rows are along the last axis.

    A row counts as no smaller than `row_floor` times the tensor (`Tolerance.row_floor`).

    An element is right where both are NaN or the same infinity; where only one is finite the deviation is infinite. A
    row whose truth is all zero must be zero exactly.
    """
    got, want = _rows(actual), _rows(expected)
    step = max(1, CHUNK // max(1, got.shape[1]))
    starts = range(0, got.shape[0], step)
    least = row_floor * _scale(want, starts, step) if row_floor else 0.0
    parts = [_chunk(got[i : i + step], want[i : i + step], i, least) for i in starts]
    squares, truth = sum(part[0] for part in parts), sum(part[1] for part in parts)
    worst = max(parts, key=lambda part: part[3])
    rms = float(np.sqrt(squares / truth)) if truth > 0 else (0.0 if squares == 0 else float("inf"))
    flat = worst[4]
    return Deviation(
        rms=rms,
        max=float(worst[3]),
        row=float(max(part[2] for part in parts)),
        index=flat,
        got=float(got.reshape(-1)[flat]),
        expected=float(want.reshape(-1)[flat]),
        scale=float(np.sqrt(truth / max(1, want.size))),
    )


def _scale(want: Array, starts: range, step: int) -> float:
    """RMS of the finite elements."""
    squares = 0.0
    for i in starts:
        part = want[i : i + step].astype(np.float64)
        squares += float(np.sum(np.square(part, where=np.isfinite(part), out=np.zeros_like(part))))
    return float(np.sqrt(squares / max(1, want.size)))


def _chunk(got: Array, want: Array, first_row: int, least: float) -> tuple[float, float, float, float, int]:
    """Squared error, squared truth, worst row ratio, worst scaled element and its flat index; `least` is the smallest
    RMS of a row."""
    with np.errstate(all="ignore"):  # poison and hostile outputs hold whatever they like
        out, ref = got.astype(np.float64), want.astype(np.float64)
        error = np.abs(out - ref)
        if not np.isfinite(error.sum()):
            error, ref = _non_finite(out, ref)
        row_squares = np.einsum("ij,ij->i", ref, ref)
        row_errors = np.einsum("ij,ij->i", error, error)
        row_truth = np.maximum(np.sqrt(row_squares / got.shape[1]), least)
        scaled = error / np.maximum(np.abs(ref), row_truth[:, None])
        scaled[error == 0] = 0.0  # also where the row's truth is all zero
        row = np.sqrt(row_errors / got.shape[1]) / row_truth
        row[row_errors == 0] = 0.0
    place = int(np.argmax(scaled))
    return (
        float(row_errors.sum()),
        float(row_squares.sum()),
        float(row.max()),
        float(scaled.reshape(-1)[place]),
        first_row * got.shape[1] + place,
    )


def _non_finite(out: Array, ref: Array) -> tuple[Array, Array]:
    """Errors and truth where some element is not finite: equal ones are right, all others infinitely wrong."""
    both = np.isfinite(out) & np.isfinite(ref)
    same = (np.isnan(out) & np.isnan(ref)) | (out == ref)
    safe = np.where(both, ref, 0.0)
    error = np.where(both, np.abs(np.where(both, out, 0.0) - safe), np.where(same, 0.0, np.inf))
    return error, safe

"""FlashKDA's arithmetic, rounding by rounding, on the CPU: what the bit-exact class of kernels reproduces.

Chunks of 16 tokens; the state is rounded to bf16 after each. Tensor cores are modelled too (see `fused`). What only the
hardware knows are the last bits of ex2.approx, rsqrt.approx and tanh.approx; here they are rounded correctly. So the
recorded outputs of the kernel come out bit for bit where these do not show (saturated gates, hardly any decay), and
elsewhere but for a few bits: most rows agree, as if tanh.approx were off by about 2^-18 (PTX promises only 2^-11).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
CHUNK, WIDTH = 16, 128
KEPT = 25  # bits below the largest exponent of a sum that Hopper's tensor cores keep
F32, F64 = np.float32, np.float64


def bf16(x: Array) -> Array:
    """fp32, rounded to the nearest bf16."""
    return x.astype(F32).astype(ml_dtypes.bfloat16).astype(F32)


def fp16(x: Array) -> Array:
    """fp32 or fp64, rounded to the nearest fp16."""
    with np.errstate(over="ignore"):  # above the diagonal of L, where it is masked away
        return x.astype(np.float16).astype(F32)


def exp2(x: Array) -> Array:
    """Like tanh and rsqrt of fp32 arrays: rounded correctly, which the chip's own instructions are not always."""
    return np.exp2(x.astype(F64)).astype(F32)


def tanh(x: Array) -> Array:
    return np.tanh(x.astype(F64)).astype(F32)


def rsqrt(x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x.astype(F64)), F32)


def fused(a: Array, b: Array, c: Array, kept: int = KEPT) -> Array:
    """a [..., m, 16] b [..., 16, n] + c [..., m, n] in float64, as one step of a tensor core: every product and c are
    cut to `kept` bits below the largest exponent, then summed without error (arXiv 2511.10909)."""
    products = a[..., :, :, None].astype(F64) * b[..., None, :, :].astype(F64)
    scales = np.frexp(a)[1][..., :, :, None] + np.frexp(b)[1][..., None, :, :] - 1  # of exponents, not of the product
    scales = np.where(products == 0, -1000, scales).max(axis=-2)
    top = np.maximum(scales, np.where(c == 0, -1000, np.frexp(c)[1])) - 1
    unit = np.ldexp(1.0, np.maximum(top, -900) - kept)
    return np.asarray((np.trunc(products / unit[..., None, :]).sum(axis=-2) + np.trunc(c / unit)) * unit)


def product(a: Array, b: Array) -> Array:
    """fp32 a [..., m, k] b [..., k, n] of bf16 values: a chain of steps over k, each cut to fp32 towards zero."""
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
    for step in range(0, a.shape[-1], CHUNK):
        total = fused(a[..., step : step + CHUNK], b[..., step : step + CHUNK, :], total)
        total = (total.view(np.int64) & ~((1 << 29) - 1)).view(F64)  # float64's mantissa has 29 bits more
    return total.astype(F32)


def inverse(low: Array) -> Array:
    """(I + low)^-1 of strictly lower fp16 matrices [..., 16, 16] by three squarings, every product rounded to fp16."""
    zero = np.zeros(low.shape)
    total, power = np.eye(CHUNK, dtype=F32) - low, low
    for _ in range(3):
        power = fp16(fused(power, power, zero))
        total = fp16(total + fp16(fused(total, power, zero)))
    return bf16(total)


def sigmoid(x: Array) -> Array:
    return F32(0.5) * tanh(F32(0.5) * x) + F32(0.5)


def normalised(x: Array) -> Array:
    """bf16 rows [..., 128] of length 1: 16 lanes sum 8 squares each by fused multiply-adds, then a tree."""
    lanes = np.zeros((*x.shape[:-1], 16), F32)
    for i in range(8):
        part = x[..., i::8].astype(F64)
        lanes = (part * part + lanes).astype(F32)
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return bf16(x * rsqrt(lanes + F32(1e-6)))


@dataclass(frozen=True, slots=True)
class Factors:
    """What a chunk does to any state: kd, qd, kr [H, 16, 128], inv, mqk [H, 16, 16], decay [H, 128], beta [H, 16]."""

    kd: Array
    qd: Array
    kr: Array
    inv: Array
    mqk: Array
    decay: Array
    beta: Array


def prepare(
    q: Array, k: Array, g: Array, beta: Array, a_log: Array, bias: Array, scale: float, bound: float
) -> Factors:
    """Of up to 16 tokens: q, k, g [tokens, H, 128], beta [tokens, H], fp32 arrays of bf16 values."""
    count = len(q)
    rate = exp2(a_log * F32(np.log2(np.e)))[:, None]
    gate = F32(F64(F32(bound)) * np.log2(np.e)) * sigmoid(rate * (g + bias))
    grown = np.zeros((CHUNK, *q.shape[1:]), F32)
    for i in range(CHUNK):
        grown[i] = (grown[i - 1] if i else F32(0)) + (gate[i] if i < count else F32(0))
    q, k, grown = (np.moveaxis(_padded(each), 0, 1) for each in (normalised(q), normalised(k), grown))
    decay = exp2(grown[:, -1])
    fade, rise = bf16(exp2(grown)), bf16(exp2(-grown))
    kd, ki = bf16(k * fade), bf16(k * rise)
    qd = bf16(bf16(q * fade) * bf16(np.full(1, scale)))
    kr = bf16(ki * bf16(decay)[:, None])
    weight = np.moveaxis(_padded(sigmoid(beta)), 0, 1)
    turned = np.swapaxes(ki, 1, 2)
    low = fp16(np.tril(fp16(product(kd, turned)), -1) * fp16(weight)[..., None])
    return Factors(kd, qd, kr, inverse(low), np.tril(bf16(product(qd, turned))), decay, bf16(weight))


def advance(state: Array, made: Factors, v: Array) -> tuple[Array, Array]:
    """(state after, out [H, 16, V]) of the state [H, K, V] and v [H, 16, V], all bf16 values."""
    seen = bf16(product(made.kd, state))
    change = bf16(product(made.inv, bf16(bf16(v - seen) * made.beta[..., None])))
    out = bf16(bf16(product(made.qd, state)) + bf16(product(made.mqk, change)))
    gained = product(np.swapaxes(made.kr, 1, 2), change)
    return bf16((state.astype(F64) * made.decay[..., None] + gained).astype(F32)), out


def forward(
    q: Array, k: Array, v: Array, g: Array, beta: Array, a_log: Array, dt_bias: Array, *, scale: float,
    lower_bound: float, bounds: Sequence[tuple[int, int]], initial_state: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """As `reference.forward`, but rounded as FlashKDA rounds. Returns fp32 arrays of bf16 values."""
    q, k, v, g, beta, a_log, dt_bias = (each.astype(F32) for each in (q, k, v, g, beta, a_log, dt_bias))
    out, final = np.zeros(v.shape, F32), np.zeros((len(bounds), v.shape[1], WIDTH, WIDTH), F32)
    for number, (first, last) in enumerate(bounds):
        state = np.zeros(final.shape[1:], F32) if initial_state is None else bf16(initial_state[number])
        state = np.swapaxes(state, 1, 2)
        for start in range(first, last, CHUNK):
            rows = slice(start, min(last, start + CHUNK))
            made = prepare(q[rows], k[rows], g[rows], beta[rows], a_log, dt_bias, scale, lower_bound)
            state, values = advance(state, made, np.moveaxis(_padded(v[rows]), 0, 1))
            out[rows] = np.moveaxis(values, 0, 1)[: rows.stop - start]
        final[number] = np.swapaxes(state, 1, 2)
    return out, final


def _padded(rows: Array) -> Array:
    return np.concatenate([rows, np.zeros((CHUNK - len(rows), *rows.shape[1:]), F32)])

"""Tensor maps: a box and a view over a tensor or scratch, with the rules of `cuTensorMapEncodeTiled`.

The driver answers a breach with one bare error code; here each has its sentence. Rules: CUDA driver API, section 6.28
(tensor map object management).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from evo.dtypes import ITEMSIZE
from evo.genome.closures import INT_MAX
from evo.genome.launches import MapSpec
from evo.genome.places import Term
from evo.genome.scope import Scope
from evo.plan import TensorMap

MAX_EXTENT = 1 << 32
MAX_STRIDE_BYTES = 1 << 40
SWIZZLE_BYTES = {"32B": 32, "64B": 64, "128B": 128}


def resolve_map(spec: MapSpec, scope: Scope, dtype: str, whole: tuple[int, ...]) -> TensorMap:
    """The map over a buffer of shape `whole`. Raises `GenomeError` where the view leaves the buffer or the hardware
    cannot do it."""
    shape = _extents(spec.shape, scope, MAX_EXTENT, "an extent") if spec.shape else whole
    strides = _extents(spec.strides, scope, INT_MAX, "a stride") if spec.strides else contiguous(shape)
    offset = spec.offset.integer(scope)
    box = _extents(spec.box, scope, 256, "a box extent")
    steps = _extents(spec.element_strides, scope, 8, "an element stride") if spec.element_strides else (1,) * len(box)
    if len(shape) != len(box):
        raise spec.place.error(
            f"the box has {len(box)} entries, {spec.tensor} {len(shape)}", fix="give a shape with as many as the box"
        )
    last = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if offset < 0 or last >= math.prod(whole):
        raise spec.place.error(
            f"the view reaches from element {offset} to {last}, {spec.tensor} has {math.prod(whole)}",
            fix="correct shape, strides or offset",
        )
    _check_hardware(spec, ITEMSIZE[dtype], strides, offset, box)
    return TensorMap(
        spec.name, spec.tensor, dtype, shape, strides, offset, box, steps, spec.swizzle, spec.interleave, spec.l2,
        spec.oob,
    )  # fmt: skip


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _extents(terms: tuple[Term, ...], scope: Scope, limit: int, what: str) -> tuple[int, ...]:
    return tuple(term.positive(scope, limit, what) for term in terms)


def _check_hardware(spec: MapSpec, itemsize: int, strides: tuple[int, ...], offset: int, box: tuple[int, ...]) -> None:
    unit = 32 if spec.interleave == "32B" else 16
    if strides[-1] != 1:
        raise spec.place.error("the innermost stride must be 1 element", strides[-1], "order the axes so that it is")
    if offset * itemsize % unit:
        raise spec.place.error(f"the offset must be a multiple of {unit} bytes", offset * itemsize, "align it")
    for stride in strides[:-1]:
        if stride * itemsize % unit or stride * itemsize >= MAX_STRIDE_BYTES:
            raise spec.place.error(
                f"a stride must be a multiple of {unit} bytes below 2^40",
                stride * itemsize,
                "exclude the case by a constraint",
            )
    inner = box[-1] * itemsize
    if spec.interleave == "none" and inner % 16:
        raise spec.place.error("the innermost box extent must be a multiple of 16 bytes", inner, "widen the box")
    span = SWIZZLE_BYTES.get(spec.swizzle, inner)
    if spec.interleave == "none" and inner > span:
        raise spec.place.error(f"swizzle {spec.swizzle} takes a box of at most {span} bytes a row", inner, "narrow it")
    if spec.interleave != "none" and len(box) < 3:
        raise spec.place.error("interleave needs three axes or more", len(box), "leave it out")
    if spec.interleave == "32B" and spec.swizzle != "32B":
        raise spec.place.error("interleave 32B needs swizzle 32B", spec.swizzle, "set it")

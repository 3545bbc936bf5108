"""What the memory system gives at best: the speed of a plain copy, timed by the same protocol as candidates."""

from __future__ import annotations

import statistics

from cuda.bindings import driver

from evo.fitness.cuda.clockwork import Clockwork
from evo.fitness.cuda.driver import call
from evo.fitness.cuda.launch import LaunchCall
from evo.fitness.cuda.protocols.rotation import Rotation
from evo.fitness.cuda.trusted import Trusted

_LEAST, _MOST = 1 << 20, 1 << 30  # bytes moved by one copy
_POOL = 192 << 20  # bytes that a rotation moves at least, several times any L2
_SAMPLES = 15
_GUESS_BYTES_PER_US = 3e6  # only to pick the stopwatch's lengths


def round_size(nbytes: int) -> int:
    """The nearest size that is measured in place of `nbytes`: four steps an octave, from 1 MiB to 1 GiB."""
    nbytes = min(max(nbytes, _LEAST), _MOST)
    step = 1 << (nbytes.bit_length() - 3)
    return min((nbytes + step // 2) // step * step, _MOST)


def measure_copy(clockwork: Clockwork, trusted: Trusted, size: int) -> float:
    """Bytes per second, read plus written, of copies that move `size` bytes in all (half read, half written)."""
    half = size // 2
    slots = max(3, -(-_POOL // size))
    pool = int(call(driver.cuMemAlloc, slots * size))
    try:
        call(driver.cuMemsetD8Async, pool, 0x5A, slots * size, clockwork.stream.handle)
        starts = [pool + slot * size for slot in range(slots)]
        calls = [LaunchCall([trusted.copy(start, start + half, half)]) for start in starts]
        watch = Rotation(clockwork, calls, size / _GUESS_BYTES_PER_US)
        try:
            microseconds = statistics.median(watch.sample() for _ in range(_SAMPLES))
        finally:
            watch.close()
    finally:
        call(driver.cuMemFree, pool)
    return size / (microseconds * 1e-6)

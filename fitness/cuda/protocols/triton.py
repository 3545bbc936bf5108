"""`triton`: as `triton.testing.do_bench` does it, for comparison with numbers taken that way.

25 ms of warm-up without a flush; then calls for about 100 ms, flushes included, as many as an estimate over five
flushed calls gives. Before every call 256 MB are overwritten with zeros; events stand round every call. A sample is the
median (do_bench's default is the mean of the same times). The flush leaves dirty lines, whose write-back falls into the
call. The slots go round; outputs are spoiled now and then, outside the brackets.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Mapping, Sequence

from evo.fitness.cuda import clockwork as parts
from evo.fitness.cuda.clockwork import Clockwork
from evo.fitness.cuda.driver import Timer
from evo.fitness.cuda.launch import DeviceCall
from evo.fitness.cuda.protocols.brackets import AT_ONCE, Brackets, rough_us

WARMUP_MS = 25.0
REP_MS = 100.0


class TritonBench:
    protocol = "triton"
    method = "events"

    def __init__(self, clockwork: Clockwork, calls: Sequence[DeviceCall], estimate_us: float) -> None:
        self._clockwork = clockwork
        self._calls = tuple(calls)
        self._brackets = Brackets(clockwork, estimate_us)
        try:
            rough = rough_us(clockwork, self._brackets, calls)
            self._flushed_ms = self._estimate_ms()
            for number in range(max(1, min(2000, int(1e3 * WARMUP_MS / max(rough, 1.0))))):
                self._calls[number % len(calls)].enqueue()
                if number % AT_ONCE == AT_ONCE - 1:
                    clockwork.stream.wait()
            clockwork.stream.wait()
        except BaseException:
            self.close()
            raise

    @property
    def readings(self) -> Mapping[str, float]:
        return {}

    def sample(self) -> float:
        """The median of as many calls as `do_bench` makes, microseconds."""
        count = max(len(self._calls), 1, int(REP_MS / self._flushed_ms))
        times: list[float] = []
        for first in range(0, count, AT_ONCE):
            members = range(first, min(first + AT_ONCE, count))
            spoiled = members[secrets.randbelow(len(members))]
            for number in members:
                each = self._calls[number % len(self._calls)]
                if number == spoiled:
                    self._clockwork.spoil(each)
                self._flush()
                self._brackets.call(each)
                self._clockwork.release()
            times += self._brackets.times()
        return statistics.median(times)

    def close(self) -> None:
        self._brackets.close()

    def _flush(self) -> None:
        """As do_bench does, behind a gate; but before it, lines marked as persisting are made ordinary. Most of 8 MiB
        of them survived do_bench's flush on an H200, so that a kernel would find its inputs in the cache.

        That waits for the device, which do_bench does not: there the host is calls ahead. The gate gives it that lead
        back. Without one, a library that takes the host longer than the flush takes the device was timed up to 20 %
        too slow."""
        if parts.RESET_PERSISTING:
            self._clockwork.forget_persisting()
        self._clockwork.hold()
        self._clockwork.write_flush()

    def _estimate_ms(self) -> float:
        """Of one flush and one call, over five."""
        timer = Timer(self._clockwork.stream, 2)
        timer.mark(0)
        for number in range(5):
            self._flush()
            self._calls[number % len(self._calls)].enqueue()
            self._clockwork.release()
        timer.mark(1)
        self._clockwork.stream.wait()
        elapsed_us = timer.between(0, 1)
        timer.close()
        return max(elapsed_us, 1.0) / 5e3

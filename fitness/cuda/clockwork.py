"""What every protocol of the CUDA clock is made of: the stream with its gate, the flushes, the tempo, the spoiler."""

from __future__ import annotations

import ctypes
import secrets
import struct
import time
from collections.abc import Callable

from cuda.bindings import driver

from evo.fitness.cuda.arena import Workspace
from evo.fitness.cuda.driver import Stream, call
from evo.fitness.cuda.launch import DeviceCall, Prepared
from evo.fitness.cuda.trusted import THREADS, Kernels, Trusted, compile_kernels, derive
from evo.records import DeviceFacts

GATE_US = 50_000.0  # the longest that a gate waits for the host: many times what queueing takes on a loaded machine
TEMPO_NS = 40_000  # a tick of at most 1 us is found to about 20 ns at both ends: 0.1 %
READ_FLUSH = 3  # times the L2
WRITE_FLUSH_BYTES = 256 << 20  # as `triton.testing.do_bench` clears
SPOILED = 1024  # words of every output
# Lines that a kernel marked as persisting (an evict_last policy) are made ordinary again before a flush, which leaves
# most of them otherwise: `benchmarks/clock_selftest.py` measures it.
RESET_PERSISTING = True
_BLOCKS_A_SM = 8


class Clockwork:
    """`energy_mj` reads the device's energy counter in mJ; 0 where there is none."""

    def __init__(self, facts: DeviceFacts, stream: Stream, trusted: Trusted, energy_mj: Callable[[], float]) -> None:
        self.stream = stream
        self._opened = ctypes.c_uint64.from_address(int(call(driver.cuMemAllocHost, ctypes.sizeof(ctypes.c_uint64))))
        self._opened.value = 0
        self._ticket = ctypes.c_uint64(0)
        self._gate = trusted.gate(ctypes.addressof(self._opened), self._ticket, GATE_US)
        self._closed_s = 0.0
        self.empty = trusted.null()
        self.energy_mj = energy_mj
        self._facts = facts
        self._trusted = trusted
        self._kernels = Kernels(compile_kernels("clock.cu", facts.target), stream)
        self._result = int(call(driver.cuMemAlloc, 256))
        self._tempo = self._kernels.prepare(
            "tempo", (1, 1, 1), ctypes.c_uint64(TEMPO_NS), ctypes.c_uint64(self._result), threads=1
        )
        self._pool = Workspace()
        self._pool_bytes = max(READ_FLUSH * facts.l2_bytes, WRITE_FLUSH_BYTES)
        self._read: Prepared | None = None

    def hold(self) -> None:
        """Queues a gate: what is queued next does not start before `release`."""
        self._ticket.value += 1
        self._gate()
        self._closed_s = time.perf_counter()

    def release(self) -> bool:
        """Opens the gate. False when it may have opened by itself, since queueing took too long."""
        held_s = time.perf_counter() - self._closed_s
        self._opened.value = self._ticket.value
        return held_s < 1e-6 * GATE_US

    def tempo(self) -> float:
        """MHz of one multiprocessor, now. Waits."""
        self._tempo()
        cycles, nanoseconds = (int(word) for word in struct.unpack("<2Q", self._trusted.fetch(self._result, 16)))
        return 1e3 * cycles / nanoseconds

    def read_flush(self) -> None:
        """Queues a clean flush: afterwards the L2 holds nothing of anyone's, and nothing dirty."""
        if self._read is None:
            size = -(-max(READ_FLUSH * self._facts.l2_bytes, 192 << 20) // 16) * 16
            words = (ctypes.c_uint64(self._flush_pool()), ctypes.c_uint64(size // 16), ctypes.c_uint64(self._result))
            self._read = self._kernels.prepare("flush_read", (self._facts.sms * _BLOCKS_A_SM, 1, 1), *words)
        self._read()

    def write_flush(self) -> None:
        """Queues a flush by zeros, as most harnesses do: dirty lines stay, and are written back under the next call."""
        call(driver.cuMemsetD8Async, self._flush_pool(), 0, WRITE_FLUSH_BYTES, self.stream.handle)

    def forget_persisting(self) -> None:
        """Waits, and makes persisting lines ordinary, where the device has such a thing."""
        self.stream.wait()
        driver.cuCtxResetPersistingL2Cache()  # CUDA_ERROR_NOT_SUPPORTED: no such lines either

    def spoil(self, each: DeviceCall) -> None:
        """Queues changes at secret places of the call's outputs. A later call that takes its work for done, since its
        output is there, leaves them; the digest then fails."""
        for buffer in each.buffers:
            words = buffer.nbytes // 4
            if buffer.spec.role == "output" and words:
                key = derive(secrets.randbits(62), 8)
                blocks = -(-min(SPOILED, words) // THREADS)
                arguments = map(ctypes.c_uint64, (buffer.live(), words, key))
                self._kernels.prepare("spoil", (blocks, 1, 1), *arguments)()

    def close(self) -> None:
        self._pool.close()
        call(driver.cuMemFree, self._result)
        call(driver.cuMemFreeHost, ctypes.addressof(self._opened))
        self._kernels.close()

    def _flush_pool(self) -> int:
        address = self._pool.get(self._pool_bytes)
        if self._read is None:
            call(driver.cuMemsetD8Async, address, 0, self._pool_bytes, self.stream.handle)
        return address

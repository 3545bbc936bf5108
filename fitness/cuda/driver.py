"""The CUDA driver with every result checked: a failing call raises `Rejected` with the status that it stands for.

The plain driver API carries launches, graphs and memory here: `cuda.core` compiles (`trusted`), but its launch path
costs the host about 7 us a kernel and counts clusters where launch plans count blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

from evo.records import Status
from evo.target import Rejected

RUN_LIMIT_S = 10.0  # how long one wait may take before the kernels before it count as hung
_SPINS = 2000  # polls without sleeping: about 2 ms, longer than most waits

_RESOURCES = frozenset(
    {"OUT_OF_MEMORY", "LAUNCH_OUT_OF_RESOURCES", "COOPERATIVE_LAUNCH_TOO_LARGE", "INVALID_CLUSTER_SIZE"}
)
_CRASHES = frozenset(
    {
        "ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "ILLEGAL_INSTRUCTION", "INVALID_ADDRESS_SPACE", "INVALID_PC",
        "LAUNCH_FAILED", "ASSERT", "HARDWARE_STACK_ERROR", "TENSOR_MEMORY_LEAK", "CONTAINED",
    }
)  # fmt: skip
_LAUNCH = frozenset(
    {
        "INVALID_VALUE", "INVALID_IMAGE", "INVALID_PTX", "NO_BINARY_FOR_GPU", "UNSUPPORTED_PTX_VERSION",
        "INVALID_SOURCE", "JIT_COMPILER_NOT_FOUND", "SHARED_OBJECT_SYMBOL_NOT_FOUND",
        "SHARED_OBJECT_INIT_FAILED", "NOT_SUPPORTED", "INVALID_RESOURCE_CONFIGURATION", "NOT_PERMITTED",
        "STREAM_CAPTURE_UNSUPPORTED", "STREAM_CAPTURE_INVALIDATED", "STREAM_CAPTURE_UNJOINED",
        "STREAM_CAPTURE_IMPLICIT",
    }
)  # fmt: skip
_LOST = frozenset({"CONTEXT_IS_DESTROYED", "DEINITIALIZED", "ECC_UNCORRECTABLE", "NVLINK_UNCORRECTABLE", "UNKNOWN"})

SUCCESS = driver.CUresult.CUDA_SUCCESS
NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY


def name_of(result: Any) -> str:
    """ "ILLEGAL_ADDRESS" of CUDA_ERROR_ILLEGAL_ADDRESS."""
    return str(getattr(result, "name", result)).removeprefix("CUDA_ERROR_")


def failure(result: Any, what: str) -> Rejected:
    """The rejection that a driver result other than success stands for."""
    name = name_of(result)
    _, text = driver.cuGetErrorString(result)
    message = f"{what}: {name}" + (f" ({text.decode(errors='replace')})" if text else "")
    if name in _CRASHES:
        return Rejected(Status.CRASH, message, fatal=True)
    if name in {"LAUNCH_TIMEOUT", "TIMEOUT"}:
        return Rejected(Status.TIMEOUT, message, fatal=True)
    if name in _RESOURCES:
        return Rejected(Status.RESOURCE_LIMIT, message)
    if name in _LAUNCH:
        return Rejected(Status.LAUNCH_ERROR, message)
    return Rejected(Status.EVALUATOR_ERROR, message, fatal=name in _LOST)


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a driver function; its value (None, one, or a tuple of several). Raises `Rejected`."""
    result, *values = function(*args)
    if result != SUCCESS:
        raise failure(result, function.__name__)
    if len(values) < 2:
        return values[0] if values else None
    return tuple(values)


class Stream:
    """One non-blocking stream, waited for by polling, so that a hung kernel becomes an error instead of a hang."""

    def __init__(self, limit_s: float = RUN_LIMIT_S) -> None:
        self.limit_s = limit_s
        self._lost = False
        self.handle = call(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.address = int(self.handle)  # what a library takes as a raw stream
        self._done = call(driver.cuEventCreate, int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def wait(self, limit_s: float = 0.0) -> None:
        """Returns when all queued work is done. Raises `Rejected`: CRASH, or TIMEOUT at the limit (both fatal)."""
        try:
            call(driver.cuEventRecord, self._done, self.handle)
            self._poll(limit_s or self.limit_s)
        except Rejected as error:
            self._lost = self._lost or error.fatal
            raise

    def _poll(self, limit_s: float) -> None:
        deadline = time.perf_counter() + limit_s
        spins = 0
        while True:
            (result,) = driver.cuEventQuery(self._done)
            if result == SUCCESS:
                return
            if result != NOT_READY:
                raise failure(result, "the device reported")
            spins += 1
            if spins > _SPINS:
                if time.perf_counter() > deadline:
                    raise Rejected(Status.TIMEOUT, f"still running after {limit_s:g} s", fatal=True)
                time.sleep(5e-5)

    def usable(self) -> bool:
        """False after a fault or a hang: then freeing anything would fail, or wait for ever."""
        (result,) = driver.cuStreamQuery(self.handle)
        return not self._lost and result in (SUCCESS, NOT_READY)

    def close(self) -> None:
        call(driver.cuEventDestroy, self._done)
        call(driver.cuStreamDestroy, self.handle)


class Timer:
    """Marks on a stream; `between(i, j)` is the time from one mark to another in microseconds."""

    def __init__(self, stream: Stream, marks: int) -> None:
        self._stream = stream
        self._events = [call(driver.cuEventCreate, 0) for _ in range(marks)]

    def mark(self, index: int) -> None:
        call(driver.cuEventRecord, self._events[index], self._stream.handle)

    def between(self, first: int, last: int) -> float:
        """Only after the stream was waited for."""
        return float(call(driver.cuEventElapsedTime, self._events[first], self._events[last])) * 1e3

    def close(self) -> None:
        for event in self._events:
            call(driver.cuEventDestroy, event)

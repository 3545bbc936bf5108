"""Baselines: a library's callable as a call over evo's buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cuda.bindings import driver

from evo.errors import RunError
from evo.fitness.cuda.arena import DeviceBuffer
from evo.fitness.cuda.dlpack import DeviceTensor, describe
from evo.fitness.cuda.driver import Stream, call
from evo.fitness.cuda.launch import DeviceCall
from evo.records import Status
from evo.target import Rejected


class AdoptedCall(DeviceCall):
    """Calls the library; outputs that it returns instead of writing in place are copied by `finish`, untimed."""

    def __init__(
        self,
        run: Callable[[Mapping[str, Any], int], Mapping[str, Any] | None],
        buffers: Mapping[str, DeviceBuffer],
        stream: Stream,
        device: int,
    ) -> None:
        self.buffers = tuple(buffers.values())
        self._run = run
        self._named = dict(buffers)
        self._stream = stream
        self._tensors = {name: DeviceTensor(buffer, device) for name, buffer in buffers.items()}
        self._returned: Mapping[str, Any] | None = None

    def enqueue(self) -> None:
        self._returned = None  # frees the outputs of the call before, as the library's user would
        try:
            self._returned = self._run(self._tensors, self._stream.address)
        except Rejected:
            raise
        except Exception as error:  # a library may raise anything; it is then listed as failed here
            raise Rejected(Status.LAUNCH_ERROR, f"the baseline raised {type(error).__name__}: {error}") from error

    def finish(self) -> None:
        returned, self._returned = self._returned, None
        for name, tensor in (returned or {}).items():
            if name not in self._named:
                raise _unfit(name, f"is not one of {sorted(self._named)}")
            buffer = self._named[name]
            try:
                found = describe(tensor)
            except (RunError, TypeError, BufferError, RuntimeError) as error:  # as `__dlpack__` of libraries raises
                raise _unfit(name, f"cannot be read: {error}") from error
            wanted = (buffer.spec.dtype, buffer.spec.shape)
            if found.device != self._tensors[name].__dlpack_device__():
                raise _unfit(name, f"lies on DLPack device {found.device}")
            if (found.dtype, found.shape) != wanted or not found.contiguous:
                layout = "" if found.contiguous else ", not contiguous"
                raise _unfit(
                    name, f"is {found.dtype} {list(found.shape)}{layout}; wanted {wanted[0]} {list(wanted[1])}"
                )
            if found.address != buffer.live() and buffer.nbytes:
                call(driver.cuMemcpyDtoDAsync, buffer.live(), found.address, buffer.nbytes, self._stream.handle)


def _unfit(name: str, what: str) -> Rejected:
    return Rejected(Status.LAUNCH_ERROR, f"the baseline's output {name!r} {what}")

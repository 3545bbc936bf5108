"""NVIDIA GPUs as targets, one a compute capability. Building needs no GPU; light to import and to construct."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evo.errors import TargetError
from evo.fitness.cuda.architectures import ARCHITECTURES, CHIPS, canonical_target
from evo.records import Build, CompileRequest, DeviceFacts
from evo.target import BlobStore, Machine

if TYPE_CHECKING:
    from evo.target import Target

__all__ = ["CudaTarget", "canonical_target"]


class CudaTarget:
    """`CudaTarget("sm_90")`; "sm_90a", "H100" and "H200" mean the same. Raises `UnknownNameError` for other names."""

    def __init__(self, name: str) -> None:
        self._architecture = ARCHITECTURES[canonical_target(name)]

    @property
    def name(self) -> str:
        return self._architecture.target

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (".cu", ".ptx")

    @property
    def protocols(self) -> tuple[str, ...]:
        from evo.fitness.protocols import PROTOCOLS

        return tuple(PROTOCOLS)

    @property
    def arch(self) -> str:
        return self._architecture.arch

    def describe(self) -> str:
        chips = ", ".join(chip.name for chip in CHIPS if chip.target == self.name)
        missing = self.missing()
        builds = f"cannot build here ({missing})" if missing else f"builds here with {self.toolchain()}"
        found = self.devices()
        runs = ", ".join(f"{device.id} is {device.name}" for device in found) or "no such GPU here"
        return f"NVIDIA {self.arch} ({chips}); {builds}; {runs}"

    def missing(self) -> str:
        from evo.fitness.cuda import toolchain

        return toolchain.missing()

    def devices(self) -> tuple[DeviceFacts, ...]:
        from evo.fitness.cuda.devices import list_devices

        return tuple(device for device in list_devices() if device.target == self.name)

    def nominal(self) -> DeviceFacts:
        from evo.fitness.cuda.devices import nominal_facts

        return nominal_facts(self.name)

    def toolchain(self) -> str:
        from evo.fitness.cuda import toolchain

        return toolchain.toolchain()

    def build(self, request: CompileRequest, blobs: BlobStore) -> Build:
        from evo.fitness.cuda.build import build

        return build(request, blobs)

    def examine(self, build: Build, blobs: BlobStore) -> Build:
        """Adds SASS histograms; a disassembler's start costs about 0.3 s."""
        from evo.fitness.cuda.build import inspect_code

        return inspect_code(build, blobs)

    def open(self, device: str) -> Machine:
        """Takes the device ("cuda:0") for this process. Raises `TargetError` when it is not one of `devices()`."""
        ids = [facts.id for facts in self.devices()]
        if device not in ids:
            there = f"of this kind there are: {', '.join(ids)}" if ids else "there is no GPU of this kind here"
            raise TargetError(f"device {device!r} is no {self.name}", fix=there)
        from evo.fitness.cuda.machine import CudaMachine

        return CudaMachine(device)


if TYPE_CHECKING:
    _checked: Target = CudaTarget("sm_90")

"""Device memory under two addresses: one to write through, one that only reads."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from evo.fitness.cuda.driver import call

_Access = driver.CUmemAccess_flags
_DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
_SUPPORTED = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED


class Mapping:
    """`nbytes` bytes at `base`; the same bytes at `readonly`, where a write is a fault.

    Both addresses are multiples of the mapping's granularity (2 MiB). Where the device cannot map memory itself, the
    two are one. Raises `Rejected(RESOURCE_LIMIT)`.
    """

    def __init__(self, nbytes: int) -> None:
        self._undo: list[tuple[Any, ...]] = []
        device = call(driver.cuCtxGetDevice)
        try:
            if call(driver.cuDeviceGetAttribute, _SUPPORTED, device):
                self._map(nbytes, int(device))
            else:
                self.base = self.readonly = int(call(driver.cuMemAlloc, nbytes))
                self._undo.append((driver.cuMemFree, self.base))
        except BaseException:
            self.close()
            raise

    def _map(self, nbytes: int, device: int) -> None:
        kind = driver.CUmemAllocationProp()
        kind.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        kind.location.type, kind.location.id = _DEVICE, device
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        step = int(call(driver.cuMemGetAllocationGranularity, kind, least))
        size = -(-nbytes // step) * step
        handle = call(driver.cuMemCreate, size, kind, 0)
        self._undo.append((driver.cuMemRelease, handle))
        self.base = self._view(handle, size, device, _Access.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        self.readonly = self._view(handle, size, device, _Access.CU_MEM_ACCESS_FLAGS_PROT_READ)

    def _view(self, handle: Any, size: int, device: int, access: Any) -> int:
        address = call(driver.cuMemAddressReserve, size, 0, 0, 0)
        self._undo.append((driver.cuMemAddressFree, address, size))
        call(driver.cuMemMap, address, size, 0, handle, 0)
        self._undo.append((driver.cuMemUnmap, address, size))
        allowed = driver.CUmemAccessDesc()
        allowed.location.type, allowed.location.id, allowed.flags = _DEVICE, device, access
        call(driver.cuMemSetAccess, address, size, [allowed], 1)
        return int(address)

    def close(self) -> None:
        while self._undo:
            function, *arguments = self._undo.pop()
            call(function, *arguments)

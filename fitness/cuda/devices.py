"""The GPUs of this machine, listed through NVML: no CUDA context is made, so that a worker can still own one."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Sequence
from typing import Any

from evo.fitness.cuda.architectures import ARCHITECTURES, CHIPS, find_chip
from evo.fitness.cuda.toolchain import nvrtc_version
from evo.records import DeviceFacts


def list_devices() -> tuple[DeviceFacts, ...]:
    """Every GPU that this process may use and evo has an architecture for; empty without driver or NVML.

    "cuda:N" counts as CUDA does within `CUDA_VISIBLE_DEVICES`, in PCI order: where GPUs of several kinds are mixed,
    set `CUDA_DEVICE_ORDER=PCI_BUS_ID` so that CUDA agrees. The limits are the architecture's; a machine that is opened
    reads its own.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no pynvml, no libnvidia-ml, no driver, no permission: all mean that there is no GPU to use
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        uuids = [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        order = visible_order(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
        found = (_facts(pynvml, handles[index], rank) for rank, index in enumerate(order))
        return tuple(facts for facts in found if facts is not None)
    except pynvml.NVMLError:  # a GPU that fell off the bus, or a query that this driver refuses
        return ()
    finally:
        pynvml.nvmlShutdown()


def visible_order(setting: str | None, uuids: Sequence[str]) -> list[int]:
    """NVML indices in the order in which CUDA numbers them. As CUDA does it: the list ends at the first invalid entry,
    and an entry named twice hides all."""
    if setting is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdigit() and int(entry) < len(uuids):
            index = int(entry)
        else:
            matches = [rank for rank, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
            if len(matches) != 1:
                break
            index = matches[0]
        if index in chosen:
            return []
        chosen.append(index)
    return chosen


def nominal_facts(target: str) -> DeviceFacts:
    """An architecture's facts, those of its usual chip, for building and constraint checks with no device."""
    architecture = ARCHITECTURES[target]
    chip = next(chip for chip in CHIPS if chip.name == architecture.chip)
    return DeviceFacts(
        id="",
        name=chip.name,
        target=target,
        sms=chip.sms,
        smem_block=architecture.smem_block,
        smem_sm=architecture.smem_sm,
        l2_bytes=chip.l2_bytes,
        memory_bytes=chip.memory_bytes,
        peak_bytes_per_s=chip.bytes_per_s,
        peak_flops=chip.flops,
    )


def versions() -> dict[str, str]:
    """Versions that a result depends on, as far as they can be told without CUDA's driver API."""
    found = {"nvrtc": nvrtc_version()}
    for distribution in ("cuda-core", "cuda-bindings"):
        try:
            found[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {name: version for name, version in found.items() if version}


def _facts(nvml: Any, handle: Any, rank: int) -> DeviceFacts | None:
    """Facts of one GPU; None for an architecture that evo has no target for."""
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    architecture = ARCHITECTURES.get(f"sm_{major}{minor}")
    if architecture is None:
        return None
    name = _text(nvml.nvmlDeviceGetName(handle))
    chip = find_chip(name, architecture.target)
    nominal = nominal_facts(architecture.target)
    cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return DeviceFacts(
        id=f"cuda:{rank}",
        name=name,
        target=architecture.target,
        sms=chip.sms if chip else _multiprocessors(nvml, handle, architecture.cores_per_sm) or nominal.sms,
        smem_block=architecture.smem_block,
        smem_sm=architecture.smem_sm,
        l2_bytes=chip.l2_bytes if chip else nominal.l2_bytes,
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        peak_bytes_per_s=chip.bytes_per_s if chip else 0.0,
        peak_flops=chip.flops if chip else 0.0,
        versions={
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            **versions(),
        },
    )


def _multiprocessors(nvml: Any, handle: Any, cores_per_sm: int) -> int:
    """Multiprocessors by NVML's core count; 0 where it does not tell."""
    try:
        return int(nvml.nvmlDeviceGetNumGpuCores(handle)) // cores_per_sm
    except nvml.NVMLError:
        return 0


def _text(value: str | bytes) -> str:
    """NVML's strings, which old bindings return as bytes."""
    return value.decode() if isinstance(value, bytes) else value

"""What NVML tells about the GPUs of this machine. No CUDA context is made."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.fitness.cuda.devices import visible_order


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU as NVML shows it; None for what this GPU or driver does not tell. Clocks in MHz, memory in bytes."""

    index: int
    name: str
    uuid: str = ""
    visible: str = ""  # "cuda:0", "" where CUDA_VISIBLE_DEVICES hides it
    target: str = ""  # "sm_90"
    memory_total: int | None = None
    memory_used: int | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    application_mhz: int | None = None
    application_default_mhz: int | None = None
    memory_mhz: int | None = None
    memory_max_mhz: int | None = None
    reasons: int | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    busy_percent: int | None = None
    processes: tuple[tuple[int, str, int | None], ...] | None = None  # pid, name, bytes
    ecc: bool | None = None
    uncorrected: int | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    compute_mode: int | None = None  # 0 default, 2 prohibited, 3 exclusive process


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """`fault` says why there is no GPU to read."""

    fault: str = ""
    driver: str = ""
    cuda: tuple[int, int] = (0, 0)
    gpus: tuple[GpuReading, ...] = ()


def read_nvml() -> NvmlReading:
    """Every GPU of the machine; never raises."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # no pynvml, no libnvidia-ml, no driver, no permission: there is no GPU to use
        return NvmlReading(fault=f"{error}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        uuids = [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        order = visible_order(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
        names = {index: f"cuda:{rank}" for rank, index in enumerate(order)}
        gpus = [_read_gpu(pynvml, h, i, uuids[i], names.get(i, "")) for i, h in enumerate(handles)]
        version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        cuda = (version // 1000, version % 1000 // 10)
        return NvmlReading("", _text(pynvml.nvmlSystemGetDriverVersion()), cuda, tuple(gpus))
    except pynvml.NVMLError as error:
        return NvmlReading(fault=f"NVML fails: {error}")
    finally:
        pynvml.nvmlShutdown()


def _read_gpu(nvml: Any, handle: Any, index: int, uuid: str, visible: str) -> GpuReading:
    def ask(query: Callable[[], Any]) -> Any:
        """None where this GPU, driver or binding does not tell, or where a container may not know."""
        try:
            return query()
        except (nvml.NVMLError, AttributeError):
            return None

    sm, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
    capability = ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    held = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    remapped = ask(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    return GpuReading(
        index,
        _text(ask(lambda: nvml.nvmlDeviceGetName(handle)) or "a GPU without a name"),
        uuid,
        visible,
        target=f"sm_{capability[0]}{capability[1]}" if capability else "",
        memory_total=int(held.total) if held else None,
        memory_used=int(held.used) if held else None,
        sm_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, sm)),
        sm_max_mhz=ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, sm)),
        application_mhz=ask(lambda: nvml.nvmlDeviceGetApplicationsClock(handle, sm)),
        application_default_mhz=ask(lambda: nvml.nvmlDeviceGetDefaultApplicationsClock(handle, sm)),
        memory_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, memory)),
        memory_max_mhz=ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, memory)),
        reasons=ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
        temperature_c=ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        slowdown_c=ask(
            lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        ),
        power_w=_watts(ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))),
        power_limit_w=_watts(ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))),
        power_default_w=_watts(ask(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))),
        busy_percent=ask(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        processes=ask(lambda: _processes(nvml, handle)),
        ecc=ask(lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
        uncorrected=ask(
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        ),
        remap_pending=bool(remapped[2]) if remapped else None,
        remap_failed=bool(remapped[3]) if remapped else None,
        mig=ask(lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0])),
        persistence=ask(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        compute_mode=ask(lambda: int(nvml.nvmlDeviceGetComputeMode(handle))),
    )


def _processes(nvml: Any, handle: Any) -> tuple[tuple[int, str, int | None], ...]:
    """Other processes with a context on the GPU. Names of those outside a container cannot be told."""
    running = (*nvml.nvmlDeviceGetComputeRunningProcesses(handle), *nvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
    found = {int(each.pid): each.usedGpuMemory for each in running if int(each.pid) != os.getpid()}
    return tuple((pid, _process_name(pid), used) for pid, used in sorted(found.items()))


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

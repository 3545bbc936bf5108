"""Clocks, heat and power of one GPU through NVML. A query takes about 3 ms: between blocks of timing, never inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Clocks:
    """NVML's view of the GPU at a PCI address; what this GPU or driver does not tell is left out of the readings."""

    def __init__(self, pci_bus_id: str) -> None:
        self._nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # no pynvml, no libnvidia-ml, no permission: the clock works without its readings
            return
        self._nvml = pynvml
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
        except pynvml.NVMLError:
            self.close()

    def read(self) -> Mapping[str, float]:
        """sm_mhz, memory_mhz, temperature_c, power_w, event_reasons (bit mask of what holds the clocks down)."""
        nvml = self._nvml
        if nvml is None:
            return {}
        queries: dict[str, Callable[[], float]] = {
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
            "event_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle),
        }
        readings: dict[str, float] = {}
        for name, query in queries.items():
            try:
                readings[name] = float(query())
            except nvml.NVMLError:
                continue
        return readings

    def energy_mj(self) -> float:
        """What the GPU has used since the driver was loaded; 0 where it does not tell."""
        if self._nvml is None:
            return 0.0
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except self._nvml.NVMLError:
            return 0.0

    def driver_version(self) -> str:
        """ "580.159.04", or "" where NVML does not tell."""
        if self._nvml is None:
            return ""
        try:
            version = self._nvml.nvmlSystemGetDriverVersion()
        except self._nvml.NVMLError:
            return ""
        return version.decode() if isinstance(version, bytes) else str(version)

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None

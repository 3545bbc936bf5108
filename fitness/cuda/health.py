"""Is this machine's GPU fit for measuring? Judges what NVML reads, so that it can be tested without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from evo.fitness.cuda.architectures import ARCHITECTURES
from evo.fitness.cuda.nvml import GpuReading, NvmlReading
from evo.fitness.findings import Finding, Health

OK, WARNING, PROBLEM = Health.OK, Health.WARNING, Health.PROBLEM
MIB = 1 << 20
BUSY_PERCENT = 5  # NVML's utilisation of an idle GPU is 0

# What holds clocks down, by NVML's documentation of its event reasons; idleness holds nothing down that matters.
SLOWDOWNS = {
    0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}  # fmt: skip
CAPS = {
    0x2: "application clocks", 0x4: "software power cap", 0x10: "sync boost", 0x100: "display clocks",
    0x200: "board limit", 0x400: "reliability limit",
}  # fmt: skip


def driver_findings(reading: NvmlReading, nvrtc: str) -> Iterator[Finding]:
    """The driver, whether it runs what the installed compiler builds, and which GPUs there are for evo."""
    major, minor = reading.cuda
    seen = f"{reading.driver}, CUDA {major}.{minor}"
    built = int(nvrtc.partition(".")[0]) if nvrtc else major
    if built > major:
        yield Finding(
            "gpu", "driver", PROBLEM, f"{seen}; the compiler is NVRTC {nvrtc}, whose code this driver cannot load",
            f"install a driver for CUDA {built}, or an older compiler: pip install 'nvidia-cuda-nvrtc<{built}'",
        )  # fmt: skip
    else:
        yield Finding("gpu", "driver", OK, seen)
    hidden = [gpu.name for gpu in reading.gpus if not gpu.visible]
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden:
        state = OK if len(hidden) < len(reading.gpus) else PROBLEM
        yield Finding(
            "gpu", "visible GPUs", state, f"CUDA_VISIBLE_DEVICES={setting} hides {len(hidden)} of {len(reading.gpus)}",
            "" if state is OK else "unset CUDA_VISIBLE_DEVICES or name a GPU in it",
        )  # fmt: skip
    if len({gpu.name for gpu in reading.gpus}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        yield Finding(
            "gpu", "device order", WARNING, "GPUs of several kinds, which CUDA may number in another order than evo",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )  # fmt: skip


def part_of(gpu: GpuReading) -> str:
    """As evo calls it, or by NVML's number where CUDA_VISIBLE_DEVICES hides it."""
    return gpu.visible or f"GPU {gpu.index}"


def gpu_findings(gpu: GpuReading) -> Iterator[Finding]:
    """One GPU: what it is, its clocks, heat, power, neighbours, memory errors and modes."""
    part = part_of(gpu)
    for judge in (_identity, _clocks, _heat_and_power, _neighbours, _memory_errors, _modes):
        for what, state, seen, fix in judge(gpu):
            yield Finding(part, what, state, seen, fix)


Judged = Iterator[tuple[str, Health, str, str]]


def _identity(gpu: GpuReading) -> Judged:
    known = gpu.target in ARCHITECTURES
    seen = f"{gpu.name}, {gpu.target or 'compute capability unknown'}"
    yield "device", OK if known else WARNING, seen, "" if known else f"evo has targets for {', '.join(ARCHITECTURES)}"
    if gpu.memory_total is not None and gpu.memory_used is not None:
        free = gpu.memory_total - gpu.memory_used
        tight = free < gpu.memory_total // 2
        seen = f"{gpu.memory_used / MIB:,.0f} MiB used, {free / MIB:,.0f} MiB free"
        fix = "end the processes that hold it: the largest cases may not fit"
        yield "memory", WARNING if tight else OK, seen, fix if tight else ""


def _clocks(gpu: GpuReading) -> Judged:
    if gpu.sm_mhz is not None:
        yield (
            "clocks",
            OK,
            f"SM {_of(gpu.sm_mhz, gpu.sm_max_mhz)} MHz, memory {_of(gpu.memory_mhz, gpu.memory_max_mhz)} MHz",
            "",
        )
    if gpu.application_mhz and gpu.application_default_mhz and gpu.application_mhz < gpu.application_default_mhz:
        seen = f"set to {gpu.application_mhz} MHz, by default {gpu.application_default_mhz}"
        yield "application clocks", WARNING, seen, "times are of a slowed GPU; as root: nvidia-smi -rac (or -rgc)"
    if gpu.reasons is None:
        return
    slow, capped = _named(gpu.reasons, SLOWDOWNS), _named(gpu.reasons, CAPS)
    if slow:
        yield (
            "throttling",
            PROBLEM,
            ", ".join(slow + capped),
            "cool the GPU or mend its power supply before you measure",
        )
    elif capped:
        yield "throttling", WARNING, ", ".join(capped), "ratios stand, absolute times are of a capped GPU"
    else:
        yield "throttling", OK, "idle" if gpu.reasons & 1 else "none", ""


def _heat_and_power(gpu: GpuReading) -> Judged:
    if gpu.temperature_c is not None:
        hot = gpu.slowdown_c is not None and gpu.temperature_c >= gpu.slowdown_c - 5
        seen = f"{gpu.temperature_c} C" + (f", slows down at {gpu.slowdown_c} C" if gpu.slowdown_c else "")
        yield "temperature", WARNING if hot else OK, seen, "let it cool: clocks are about to fall" if hot else ""
    if gpu.power_limit_w is not None:
        low = gpu.power_default_w is not None and gpu.power_limit_w < 0.98 * gpu.power_default_w
        seen = (
            f"{gpu.power_w:.0f} W of {gpu.power_limit_w:.0f} W" if gpu.power_w else f"limit {gpu.power_limit_w:.0f} W"
        )
        if low:
            seen += f", by default {gpu.power_default_w:.0f} W"
        yield (
            "power",
            WARNING if low else OK,
            seen,
            "heavy kernels run slower than on others' GPUs: nvidia-smi -pl" if low else "",
        )


def _neighbours(gpu: GpuReading) -> Judged:
    fix = "end them, or measure later: their work falls into your times"
    if gpu.processes is not None:
        shown = ", ".join(f"{pid} {name or '(name hidden)'}" for pid, name, _ in gpu.processes[:5])
        more = f" and {len(gpu.processes) - 5} more" if len(gpu.processes) > 5 else ""
        yield "other processes", WARNING if gpu.processes else OK, shown + more or "none", fix if gpu.processes else ""
    if gpu.busy_percent is not None:
        busy = gpu.busy_percent > BUSY_PERCENT
        yield "utilisation", WARNING if busy else OK, f"{gpu.busy_percent} %", fix if busy else ""


def _memory_errors(gpu: GpuReading) -> Judged:
    if gpu.ecc is not None:
        on = "on" if gpu.ecc else "off"
        wrong = bool(gpu.uncorrected)
        seen = (
            on if gpu.uncorrected is None else f"{on}, {gpu.uncorrected} uncorrected errors since the driver was loaded"
        )
        fix = "results may be wrong: reset the GPU (nvidia-smi -r) or replace it" if wrong else ""
        yield "ECC", PROBLEM if wrong else OK, seen, fix
    if gpu.remap_failed or gpu.remap_pending:
        seen = "row remapping failed" if gpu.remap_failed else "a row waits for being remapped"
        yield (
            "memory rows",
            PROBLEM if gpu.remap_failed else WARNING,
            seen,
            "reset the GPU (nvidia-smi -r) or replace it",
        )


def _modes(gpu: GpuReading) -> Judged:
    if gpu.mig is not None:
        fix = "a slice has fewer SMs than evo assumes; as root: nvidia-smi -mig 0" if gpu.mig else ""
        yield "MIG", PROBLEM if gpu.mig else OK, "on" if gpu.mig else "off", fix
    if gpu.persistence is not None:
        fix = "" if gpu.persistence else "starts are slow and clocks wander; as root: nvidia-smi -pm 1"
        yield "persistence mode", OK if gpu.persistence else WARNING, "on" if gpu.persistence else "off", fix
    if gpu.compute_mode == 2:
        yield "compute mode", PROBLEM, "prohibited", "as root: nvidia-smi -c DEFAULT"


def _named(mask: int, names: Mapping[int, str]) -> list[str]:
    return [name for bit, name in names.items() if mask & bit]


def _of(now: int | None, most: int | None) -> str:
    return f"{'?' if now is None else now} of {'?' if most is None else most}"

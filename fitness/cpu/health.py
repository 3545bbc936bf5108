"""Is this machine's processor fit for the CPU target? The compiler by a real build; cores, load, clocks, caches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from evo.fitness.cpu.target import CpuTarget
from evo.fitness.findings import Finding, Health
from evo.records import BuildOptions, CompileRequest, Status
from evo.target import BlobStore

OK, WARNING, PROBLEM, SKIPPED = Health.OK, Health.WARNING, Health.PROBLEM, Health.SKIPPED
SYSTEM = Path("/sys/devices/system/cpu")
NOISE = "times will be noisy: end other work, or expect more unstable_timing"
TINY = 'extern "C" void tiny(long first, long last, int, float* y) { while (first < last) y[first++] = 1.0f; }\n'


def compiler_findings(folder: Path, *, needed: bool) -> Iterator[Finding]:
    """A real build of a tiny genome into `folder`; without a compiler only a warning, where the CPU is not `needed`."""
    target = CpuTarget()
    if missing := target.missing():
        yield Finding("cpu", "compiler", PROBLEM if needed else WARNING, "the cpu target cannot be used", missing)
        return
    request = CompileRequest("cpu", target.arch, ".cpp", TINY, (), BuildOptions(), ("tiny",))
    made = target.build(request, BlobStore(folder))
    if made.status is Status.OK:
        yield Finding("cpu", "compiler", OK, f"{made.toolchain}, in {made.seconds * 1e3:.0f} ms")
    else:
        why = made.diagnosis.message if made.diagnosis else str(made.status)
        yield Finding("cpu", "compiler", PROBLEM, why, "install another g++ or clang++, or set CXX")


def processor_findings(root: Path = SYSTEM, load: float | None = None) -> Iterator[Finding]:
    """Cores that this process may use, their load, what sets their clocks, and the last-level cache."""
    cores = len(os.sched_getaffinity(0))
    fix = "builders and the clock take turns on a single core: give evo two or more"
    yield Finding("cpu", "cores", OK if cores > 1 else WARNING, str(cores), "" if cores > 1 else fix)
    average = os.getloadavg()[0] if load is None else load
    busy = average > max(0.5, 0.25 * (os.cpu_count() or 1))
    yield Finding("cpu", "load", WARNING if busy else OK, f"{average:.2f} in the last minute", NOISE if busy else "")
    governor = _read(root / "cpu0" / "cpufreq" / "scaling_governor")
    if governor:
        steady = governor == "performance"
        fix = "" if steady else "clocks wander; as root: cpupower frequency-set -g performance"
        yield Finding("cpu", "governor", OK if steady else WARNING, governor, fix)
    else:
        yield Finding("cpu", "governor", SKIPPED, "the system does not show it (a virtual machine?)")
    no_turbo, boost = _read(root / "intel_pstate" / "no_turbo"), _read(root / "cpufreq" / "boost")
    if no_turbo or boost:
        on = no_turbo == "0" if no_turbo else boost == "1"
        yield Finding("cpu", "turbo", OK, "on: clocks depend on heat and neighbours" if on else "off")
    caches = {
        _read(index / "level"): _read(index / "size") for index in sorted((root / "cpu0" / "cache").glob("index*"))
    }
    if caches:
        yield Finding("cpu", "last-level cache", OK, f"L{max(caches)} {caches[max(caches)]}")


def _read(path: Path) -> str:
    """A file's text, "" where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""

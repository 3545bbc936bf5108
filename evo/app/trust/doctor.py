"""`evo doctor`: is this machine fit for measuring, and is an operator's gate worth anything?"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from evo.app.stand import CPU, find_target
from evo.app.telling import Say
from evo.archive import Archive
from evo.archive.connect import locate
from evo.errors import ArchiveError, UsageError
from evo.fitness.cache import BuildCache
from evo.fitness.cpu import health as processor
from evo.fitness.cuda import health, nvml, toolchain, tooling
from evo.fitness.findings import Finding, Health, look
from evo.plugins.manager import Plugins
from evo.report import notation
from evo.target import Target
from evo.wording import count

OK, WARNING, PROBLEM, SKIPPED = Health.OK, Health.WARNING, Health.PROBLEM, Health.SKIPPED
LITTLE_BYTES = 1 << 30  # free space below which a night's builds and archive may not fit
NO_BYTES = 64 << 20
LIBRARIES = ("evo-kernels", "numpy", "cuda-core", "cuda-bindings", "nvidia-ml-py")


def doctor(
    target: str = "auto", operator: str = "", archive: str = "evo.db", say: Say = lambda message: None
) -> list[Finding]:
    """All findings: of the machine, and of the operator where one is named. Raises `UsageError` for unknown names."""
    plugins = Plugins.load()
    place = None if target == "auto" else find_target(plugins, target)
    item = plugins.operator(operator) if operator else None
    say("looking at the machine")
    found = machine_findings(place, archive)
    if item is not None:
        from evo.app.trust.operator_doctor import operator_findings

        found += operator_findings(plugins, item, target, say)
    return found


def machine_findings(target: Target | None, archive: str) -> list[Finding]:
    """Python, disk, archive, processor and GPU. A target that is not the CPU's needs a GPU of its kind."""
    found = look("machine", "python", _python) + look("machine", "plugins", _plugins)
    found += look("machine", "cache", _cache) + look("machine", "archive", lambda: _archive(archive))
    with tempfile.TemporaryDirectory(prefix="evo-doctor-") as name:
        folder = Path(name)
        reading = nvml.read_nvml()
        needed = target.name == CPU if target is not None else not reading.gpus
        found += look("cpu", "compiler", lambda: processor.compiler_findings(folder, needed=needed))
        found += look("cpu", "processor", processor.processor_findings)
        if target is None or target.name != CPU:
            found += _gpu_part(reading, target, folder)
    return found


def _gpu_part(reading: nvml.NvmlReading, target: Target | None, folder: Path) -> list[Finding]:
    """Without a GPU a line says so, and only the compilers are looked at."""
    found: list[Finding] = []
    if reading.gpus:
        found += look("gpu", "driver", lambda: health.driver_findings(reading, toolchain.nvrtc_version()))
        for gpu in reading.gpus:
            found += look(health.part_of(gpu), "readings", functools.partial(health.gpu_findings, gpu))
        found += look("gpu", "profilers", tooling.profiler_findings)
    wanted = target is not None and not target.devices()
    if not reading.gpus or wanted:
        why = reading.fault or (f"none that target {target.name!r} can use" if target else "the driver shows none")
        fix = "run evo on a machine that has one, or choose another --target" if wanted else ""
        found.append(Finding("gpu", "GPU", PROBLEM if wanted else SKIPPED, f"none found here: {why}", fix))
    arches = _architectures(reading, target)
    if reading.gpus or wanted or not toolchain.missing():
        found += look("gpu", "compilers", lambda: tooling.compiler_findings(arches, folder))
    else:
        found.append(Finding("gpu", "NVRTC", SKIPPED, "not installed; needed to build for GPUs", toolchain.INSTALL))
    return found


def _architectures(reading: nvml.NvmlReading, target: Target | None) -> Mapping[str, str]:
    """What a tiny kernel is built for, by target: sm_90a, the GPUs here, and the target that was named."""
    from evo.fitness.cuda.architectures import ARCHITECTURES

    names = ["sm_90", *(gpu.target for gpu in reading.gpus), *([target.name] if target else [])]
    return {name: ARCHITECTURES[name].arch for name in names if name in ARCHITECTURES}


def _python() -> Iterator[Finding]:
    fit = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    seen = f"Python {platform.python_version()} on {platform.platform(terse=True)}, {platform.machine()}"
    yield Finding("machine", "python", OK if fit else WARNING, seen, "" if fit else "evo is written for Linux")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES if _installed(name)]
    yield Finding("machine", "libraries", OK, ", ".join(versions))


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _plugins() -> Iterator[Finding]:
    plugins = Plugins.load()
    names = [f"{entry.name} ({entry.distribution} {entry.version})" for entry in plugins.operators()]
    yield Finding("machine", "operators", OK if names else PROBLEM, ", ".join(names) or "none are registered")


def _cache() -> Iterator[Finding]:
    try:
        root = BuildCache().root
    except UsageError as error:
        yield Finding("machine", "build cache", PROBLEM, error.what, error.fix)
        return
    yield _space(
        "build cache", root, count(len(list(root.glob("*.json"))), "build"), "set EVO_CACHE to a roomier place"
    )


def _archive(name: str) -> Iterator[Finding]:
    """The archive opens for reading, and its folder takes writes; nothing is made or migrated."""
    path = locate(name)
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        why = f"{path.parent} {'may not be written' if path.parent.is_dir() else 'is no folder'}"
        yield Finding("machine", "archive", PROBLEM, why, "name another with --archive")
        return
    seen = f"{path}: none yet, `evo run` makes one"
    if path.exists():
        try:
            with Archive.open(name, create=False, readonly=True) as store:
                seen = f"{path}: {notation.count(len(store.runs(1_000_000)), 'run')}"
        except ArchiveError as error:
            older = "older schema" in error.what
            yield Finding("machine", "archive", WARNING if older else PROBLEM, error.what, error.fix)
            return
        if not os.access(path, os.W_OK):
            yield Finding("machine", "archive", PROBLEM, f"{path} may not be written", "name another with --archive")
            return
    yield _space("archive", path.parent, seen, "make room there, or name another place with --archive")


def _space(what: str, folder: Path, seen: str, fix: str) -> Finding:
    free = shutil.disk_usage(folder).free
    state = OK if free >= LITTLE_BYTES else WARNING if free >= NO_BYTES else PROBLEM
    where = f"{seen}, {free / (1 << 30):.1f} GiB free at {folder}"
    return Finding("machine", what, state, where, "" if state is OK else fix)

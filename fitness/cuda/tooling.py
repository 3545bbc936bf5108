"""Do the CUDA compilers and profilers work here? Versions, and a real build; neither driver nor GPU is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evo.fitness.cuda import sass, toolchain
from evo.fitness.cuda.build import build
from evo.fitness.findings import Finding, Health
from evo.records import BuildOptions, CompileRequest, Status
from evo.target import BlobStore

OK, WARNING, PROBLEM, SKIPPED = Health.OK, Health.WARNING, Health.PROBLEM, Health.SKIPPED
PARAMS = Path("/proc/driver/nvidia/params")
ADMIN_CAPABILITIES = (1 << 21) | (1 << 38)  # CAP_SYS_ADMIN; CAP_PERFMON, enough from driver 565 on
TOOL_LIMIT_S = 20.0

TINY_CU = 'extern "C" __global__ void tiny(float *y) { y[threadIdx.x] = 1.0f; }\n'
TINY_PTX = """.version 7.8
.target {arch}
.address_size 64
.visible .entry tiny() {{ ret; }}
"""


def compiler_findings(arches: Mapping[str, str], folder: Path) -> Iterator[Finding]:
    """NVRTC, nvJitLink and nvdisasm: versions, and a real build of a tiny kernel for each target in `arches`
    (target: arch). `folder` takes the builds."""
    if missing := toolchain.missing():
        yield Finding("gpu", "NVRTC", PROBLEM, "not installed, or without CUDA's headers", missing)
        return
    blobs = BlobStore(folder)
    for target, arch in arches.items():
        made = build(_request(target, arch, ".cu", TINY_CU), blobs)
        good = made.status is Status.OK
        seen = f"{toolchain.nvrtc_version()}, {arch} in {made.seconds * 1e3:.0f} ms"
        why = made.diagnosis.message if made.diagnosis else str(made.status)
        yield Finding("gpu", "NVRTC", OK if good else PROBLEM, seen if good else f"{arch}: {why}",
                      "" if good else toolchain.INSTALL)  # fmt: skip
        if good and made.blob:
            yield _disassembler(blobs.get(made.blob), arch)
    yield _assembler(arches, blobs)


def _assembler(arches: Mapping[str, str], blobs: BlobStore) -> Finding:
    if missing := toolchain.missing_assembler():
        return Finding("gpu", "nvJitLink", WARNING, "not installed: .ptx genomes cannot be built", missing)
    target, arch = next(iter(arches.items()))
    made = build(_request(target, arch, ".ptx", TINY_PTX.format(arch=target)), blobs)
    if made.status is Status.OK:
        return Finding("gpu", "nvJitLink", OK, f"{toolchain.nvjitlink_version()}, {arch}")
    why = made.diagnosis.message if made.diagnosis else str(made.status)
    return Finding("gpu", "nvJitLink", PROBLEM, f"{arch}: {why}", "pip install --upgrade nvidia-nvjitlink")


def _disassembler(code: bytes, arch: str) -> Finding:
    tool = sass.find_tool("nvdisasm")
    if not tool:
        seen = "not found: kernels that hold tables in device memory are refused, opcodes are not counted"
        return Finding("gpu", "nvdisasm", WARNING, seen, toolchain.INSTALL)
    counts = sass.histogram(code)
    good = counts.get("tiny", {}).get("EXIT", 0) > 0
    seen = f"{_tool_version(tool)}, reads {arch}" if good else f"{tool} shows no EXIT in a tiny kernel: {counts}"
    return Finding("gpu", "nvdisasm", OK if good else PROBLEM, seen, "" if good else toolchain.INSTALL)


def _request(target: str, arch: str, suffix: Any, source: str) -> CompileRequest:
    return CompileRequest(target, arch, suffix, source, (), BuildOptions(), ("tiny",))


def profiler_findings(params: Path = PARAMS, capabilities: int | None = None) -> Iterator[Finding]:
    """Whether this process may read the GPU's counters, and whether ncu and compute-sanitizer are there."""
    setting = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", params.read_text() if params.exists() else "", re.MULTILINE)
    held = _capabilities() if capabilities is None else capabilities
    if setting is None:
        yield Finding("gpu", "profiling", SKIPPED, f"{params} does not tell")
    elif setting[1] == "0" or held & ADMIN_CAPABILITIES:
        yield Finding("gpu", "profiling", OK, "allowed" if setting[1] == "0" else "for administrators, which this is")
    else:
        yield Finding(
            "gpu", "profiling", WARNING, "restricted to administrators: ncu will show ERR_NVGPUCTRPERM",
            "as root: echo options nvidia NVreg_RestrictProfilingToAdminUsers=0 > /etc/modprobe.d/evo.conf, and load "
            "the driver anew; in a container: --cap-add SYS_ADMIN",
        )  # fmt: skip
    for tool in ("ncu", "compute-sanitizer"):
        path = shutil.which(tool) or next((str(p) for p in (Path("/usr/local/cuda/bin") / tool,) if p.exists()), "")
        seen = _tool_version(path) if path else "not found; evo works without it"
        yield Finding("gpu", tool, OK if path else SKIPPED, seen, "" if path else "comes with the CUDA toolkit")


def _capabilities() -> int:
    """Effective Linux capabilities of this process, a bit mask."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1], 16) if found else 0


def _tool_version(path: str) -> str:
    """The last version number in what `--version` says, "version unknown" where it says none."""
    said = subprocess.run(
        [path, "--version"], capture_output=True, text=True, errors="replace", timeout=TOOL_LIMIT_S, check=False
    ).stdout
    numbers = re.findall(r"\d+\.\d+[.\d]*\d", said)
    return numbers[-1] if numbers else "version unknown"

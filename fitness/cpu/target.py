"""The embedded `cpu` target: usable wherever x86-64 Linux has a C++ compiler; measured for real, never the headline."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import time
from pathlib import Path

from evo.codec import dumps
from evo.errors import TargetError
from evo.fitness.cpu import compiler, elf, runner, vet
from evo.fitness.cpu.machine import CpuMachine
from evo.ids import digest
from evo.records import Build, CompileRequest, DeviceFacts, Diagnosis, Kernel, Stage, Status
from evo.target import BlobStore, Rejected

DEVICE = "cpu:0"


class CpuTarget:
    name = "cpu"
    suffixes = (".cpp",)
    protocols = ("warm",)
    arch = "native"

    def missing(self) -> str:
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            return f"the cpu target runs on x86-64 Linux; this is {platform.machine()} {platform.system()}"
        return compiler.fault()

    def describe(self) -> str:
        if missing := self.missing():
            return f"embedded CPU target; cannot be used here: needs {missing}"
        facts = _facts()
        return f"embedded CPU target: {facts.name}, {facts.sms} worker thread(s), {self.toolchain()}"

    def devices(self) -> tuple[DeviceFacts, ...]:
        return () if self.missing() else (_facts(),)

    def nominal(self) -> DeviceFacts:
        return DeviceFacts("", "a CPU", "cpu", sms=8, smem_block=0, smem_sm=0, l2_bytes=32 << 20, memory_bytes=16 << 30)

    def toolchain(self) -> str:
        if missing := self.missing():
            raise TargetError("the cpu target cannot build here", fix=missing)
        return compiler.version(compiler.find())

    def build(self, request: CompileRequest, blobs: BlobStore) -> Build:
        start = time.perf_counter()
        toolchain = self.toolchain()
        key = digest([dumps(request), toolchain])
        try:
            compiled = compiler.compile_genome(request)
            linked = elf.vet(compiled.code)
        except Rejected as fault:
            diagnosis = Diagnosis(Stage.BUILD, fault.message, detail=fault.detail)
            return Build(key, fault.status, toolchain, time.perf_counter() - start, diagnosis)
        counts = vet.opcodes(compiled.assembly)
        # Linked at one fixed address, so that equal code has an equal hash whatever its symbols are called.
        image = linked.link(runner.CODE_BASE, runner.JUMPS)
        starts = ",".join(str(linked.entries.get(name, -1)) for name in request.kernels)
        return Build(
            key,
            Status.OK,
            toolchain,
            time.perf_counter() - start,
            blob=blobs.put(compiled.code),
            code_hash=hashlib.sha256(image + starts.encode()).hexdigest(),
            kernels=tuple(Kernel(name, opcodes=counts.get(name, {})) for name in sorted(linked.entries)),
            log=compiled.log,
        )

    def examine(self, build: Build, blobs: BlobStore) -> Build:
        """The compiler's assembly was counted when it was vetted."""
        return build

    def open(self, device: str) -> CpuMachine:
        """Raises `TargetError` when there is no such device or no compiler for the runner."""
        found = {facts.id: facts for facts in self.devices()}
        if device not in found:
            raise TargetError(f"the cpu target has no device {device!r}", fix=self.missing() or f"there is {DEVICE}")
        runner.binary()
        return CpuMachine(found[device])


@functools.cache
def _facts() -> DeviceFacts:
    cores = len(os.sched_getaffinity(0))
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return DeviceFacts(
        DEVICE,
        model[1] if model else platform.machine(),
        "cpu",
        sms=max(1, cores - 1),  # one core stays with the clock
        smem_block=0,
        smem_sm=0,
        l2_bytes=_last_level_cache(Path("/sys/devices/system/cpu/cpu0/cache")),
        memory_bytes=_memory(),
        versions={"compiler": compiler.version(compiler.find()), "kernel": platform.release()},
    )


def _last_level_cache(folder: Path) -> int:
    """Bytes of the highest cache level, 32 MiB where the system does not tell."""
    sizes = {
        int((cache / "level").read_text()): int((cache / "size").read_text().strip().removesuffix("K")) << 10
        for cache in folder.glob("index*")
    }
    return sizes[max(sizes)] if sizes else 32 << 20


def _memory() -> int:
    """Bytes that this process may use: the machine's memory or its control group's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return total if text == "max" else min(total, int(text))

"""The host compiler: found, named, and run on text that it must not trust, within limits."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evo.fitness.cpu import vet
from evo.records import CompileRequest, Status
from evo.target import Rejected

INCLUDE = Path(__file__).parent  # where evo.h lies
LIMIT_S = 45.0
MEMORY_KIB = 4 << 20
FILE_BLOCKS = 1 << 17  # of 512 bytes: no file over 64 MiB
LOG_CHARS = 4000
SAID_BYTES = 1 << 16

# Freestanding in effect: nothing that would need a loader, a libc start-up, an unwinder or a thread pointer.
CODE_FLAGS = (
    "-O3", "-march=native", "-mcmodel=small", "-fno-pic", "-fno-pie", "-fopenmp-simd",
    "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-stack-protector", "-fcf-protection=none",
    "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-math-errno", "-fno-common", "-fno-ident",
    "-Wall", "-Wno-psabi", "-Wno-unknown-pragmas", "-fdiagnostics-color=never",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compiled:
    """An ELF relocatable object, the assembly that it was made of, and the compiler's notices."""

    code: bytes
    assembly: str
    log: str


@functools.cache
def find() -> str:
    """The compiler's path: `CXX` if set, else g++, else clang++; "" where there is none."""
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), "")


def fault() -> str:
    """ "" when `find` gives a C++ compiler that works, else what is needed."""
    if compiler := find():
        return _fault(compiler)
    return "a C++ compiler: install g++ or clang++ (Debian, Ubuntu: apt install g++), or set CXX"


@functools.cache
def _fault(compiler: str) -> str:
    origin = "CXX" if os.environ.get("CXX") else "PATH"
    command = [compiler, "-x", "c++", "-E", "-dM", os.devnull]
    try:
        said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=20).stdout  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"another C++ compiler: {compiler} (from {origin}) cannot be run: {error}"
    if "#define __GNUC__ " not in said or "#define __x86_64__ " not in said:
        return f"a C++ compiler like g++ or clang++ for x86-64: {compiler} (from {origin}) is none"
    return ""


@functools.cache
def version(compiler: str) -> str:
    """The compiler's own first line and the processor that `-march=native` stands for."""
    shown = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, check=True)
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    features = hashlib.sha256(flags[1].encode() if flags else b"").hexdigest()[:8]
    return f"{shown.stdout.splitlines()[0]}, native {features}"


def run(command: Sequence[str], folder: Path, limit_s: float = LIMIT_S) -> tuple[int, str]:
    """Runs a compiler step in `folder` with a bare environment; its exit code and the beginning of what it said.

    Memory, file size (also of what it says) and processor time are limited; after `limit_s` seconds its whole process
    group is killed and `Rejected(TIMEOUT)` raised.
    """
    limits = " && ".join(
        (
            f"ulimit -v {MEMORY_KIB}",
            f"ulimit -f {FILE_BLOCKS}",
            f"ulimit -t {int(limit_s) + 1}",
            "ulimit -c 0",
            'exec "$@"',
        )
    )
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TMPDIR": str(folder)}
    with tempfile.TemporaryFile(dir=folder) as said:
        process = subprocess.Popen(
            ["/bin/sh", "-c", limits, "sh", *command], cwd=folder, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Rejected(Status.TIMEOUT, f"the compiler took more than {limit_s:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return process.returncode, os.pread(said.fileno(), SAID_BYTES, 0).decode(errors="replace")


def compile_genome(request: CompileRequest, limit_s: float = LIMIT_S) -> Compiled:
    """Source to object file by way of assembly text, which is read before the assembler may see it.

    Raises `Rejected` (FORBIDDEN, BUILD_ERROR, TIMEOUT). `ftz` and `maxrregcount` have no meaning here.
    """
    if why := vet.source_objection(request.source):
        raise Rejected(Status.FORBIDDEN, why)
    flags = [f"-std={request.options.std}", f"-ffp-contract={'fast' if request.options.fmad else 'off'}"]
    defines = [f"-D{name}={value}" for name, value in request.defines]
    with tempfile.TemporaryDirectory(prefix="evo-build-") as name:
        folder = Path(name)
        (folder / "genome.cpp").write_text(request.source)
        log = _step([*CODE_FLAGS, *flags, *defines, f"-I{INCLUDE}", "-S", "genome.cpp", "-o", "genome.s"],
                    folder, limit_s)  # fmt: skip
        assembly = (folder / "genome.s").read_text(errors="replace")
        if why := vet.assembly_objection(assembly):
            raise Rejected(Status.FORBIDDEN, why)
        log += _step(["-c", "genome.s", "-o", "genome.o"], folder, limit_s)
        return Compiled((folder / "genome.o").read_bytes(), assembly, log)


def _step(arguments: Sequence[str], folder: Path, limit_s: float) -> str:
    code, said = run([find(), *arguments], folder, limit_s)
    said = said[:LOG_CHARS]
    if code != 0:
        first = next((line for line in said.splitlines() if "error" in line), f"the compiler ended with {code}")
        raise Rejected(Status.BUILD_ERROR, first, detail=said)
    return said

"""A builder opens no file but what compilers need, and no socket, whatever a source brings its compiler to do."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evo import ids
from evo.fitness import sandbox
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.cuda.target import CudaTarget
from evo.fitness.executor import LocalExecutor
from evo.fitness.process import BUILDER_FOLDER, WorkerProcess
from evo.fitness.tasks import BuildTask, Outcome
from evo.records import BuildOptions, CompileRequest, Status
from evo.target import BlobStore

HAS_LANDLOCK = ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1
landlocked = pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
PRELUDE = """
import json, os, socket, subprocess, sys, tempfile
from pathlib import Path
from evo.fitness import sandbox
from evo.fitness.cuda import policy, toolchain
def attempt(function):
    try:
        return str(function())
    except Exception as error:
        return type(error).__name__
toolchain.toolchain()
folder = Path(sys.argv[1])
os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
sandbox.limit_resources()
lacking = sandbox.lock_in([folder])
"""
SECRET = "#define SECRET 41\n"
PROBES = """
from evo.fitness.cuda.target import CudaTarget
from evo.fitness.cpu import compiler, vet
from evo.records import BuildOptions, CompileRequest
from evo.target import BlobStore
secret = sys.argv[2]
policy.source_violation = lambda source, defines=(): ""  # as if somebody had found a way round them
vet.source_objection = lambda source: ""
def cuda(source):
    request = CompileRequest("sm_90", "sm_90a", ".cu", source, (), BuildOptions(), ("k",))
    built = CudaTarget("sm_90").build(request, BlobStore(folder / "blobs"))
    return built.status + " " + (built.diagnosis.message if built.diagnosis else "")
def cpp(source):
    request = CompileRequest("cpu", "native", ".cpp", source, (), BuildOptions(), ("k",))
    return len(compiler.compile_genome(request).code) > 0
kernel = 'extern "C" __global__ void k(int* p) { p[0] = %s; }'
print(json.dumps({
    "lacking": lacking,
    "passwd": attempt(lambda: open("/etc/passwd").read()),
    "secret": attempt(lambda: open(secret).read()),
    "listing": attempt(lambda: os.listdir(Path(secret).parent)),
    "write": attempt(lambda: open(secret + ".new", "w")),
    "parent": attempt(lambda: open(f"/proc/{os.getppid()}/environ").read()),
    "socket": attempt(socket.socket),
    "child": attempt(lambda: subprocess.run(["cat", secret], capture_output=True, check=True)),
    "own": attempt(lambda: (folder / "mine").write_text("x")),
    "cuda": attempt(lambda: cuda(kernel % 1)),
    "cuda include": attempt(lambda: cuda(f'#include "{secret}"\\n' + kernel % "SECRET")),
    "cuda has_include": attempt(lambda: cuda(
        f'#define C(a, b) a##b\\n#if C(__has_inc,lude)("{secret}")\\n#error seen\\n#endif\\n' + kernel % 1)),
    "cpp": attempt(lambda: cpp('extern "C" void k() {}')),
    "cpp include": attempt(lambda: cpp(f'#include "{secret}"\\nextern "C" void k() {{ }}')),
}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    secret = tmp_path_factory.mktemp("secret") / "secret.h"
    secret.write_text(SECRET)
    mine = tmp_path_factory.mktemp("builder")
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + PROBES, str(mine), str(secret)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@landlocked
def test_no_file_of_the_users_is_opened(seen: dict[str, Any]) -> None:
    assert seen["lacking"] == ""
    for what in ("passwd", "secret", "listing", "write", "parent"):
        assert seen[what] == "PermissionError", what
    assert seen["child"] == "CalledProcessError"
    assert seen["own"] == "1"


@landlocked
def test_a_compiler_that_is_led_to_a_file_gets_nothing(seen: dict[str, Any]) -> None:
    assert seen["cuda"] == "ok "
    assert seen["cuda include"].startswith("build_error")
    assert "secret.h" in seen["cuda include"]
    assert seen["cpp"] == "True"
    assert seen["cpp include"] == "Rejected"


def test_no_socket(seen: dict[str, Any]) -> None:
    assert seen["socket"] == "PermissionError"


def test_what_a_builder_may_read() -> None:
    paths = sandbox.readable()
    assert Path("/usr") in paths
    assert Path("/") not in paths
    assert Path("/etc") not in paths
    assert not any(Path("/etc/passwd").is_relative_to(path) for path in paths)


def test_builders_know_no_home_and_leave_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret")
    builder, device = WorkerProcess(builder=True), WorkerProcess()
    try:
        known = [environment(worker) for worker in (builder, device)]
    finally:
        folder = builder._folder
        builder.close(wait_s=0)
        device.close(wait_s=0)
    assert folder is not None
    assert known[0][BUILDER_FOLDER] == folder.name
    assert not Path(folder.name).exists()
    assert "EVO_CACHE" in known[0]
    assert "HOME" not in known[0]
    assert BUILDER_FOLDER not in known[1]
    assert not any("MY_API_KEY" in environ for environ in known)


def environment(worker: WorkerProcess) -> dict[str, str]:
    text = Path(f"/proc/{worker._process.pid}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def test_a_builder_process_builds_locked_in() -> None:
    executor = LocalExecutor(CudaTarget("sm_90").devices(), builders=1)
    source = f"""#include "evo.h"
    #include <cuda_bf16.h>
    extern "C" __global__ void k(int* p) {{ p[0] = 1; }} // {ids.new_id()}, so that no cache has it"""
    request = CompileRequest("sm_90", "sm_90a", ".cu", source, (), BuildOptions(), ("k",))
    try:
        executor.submit(BuildTask(ids.new_id(), "sm_90", request, examine=True))
        outcomes: list[Outcome] = []
        while not outcomes:
            outcomes += executor.poll(1.0)
    finally:
        executor.close()
    assert outcomes[0].status is Status.OK, outcomes
    assert outcomes[0].build is not None
    assert outcomes[0].build.kernels[0].opcodes


@pytest.mark.parametrize(
    "text",
    [
        '".inc" "bin \\"FILE\\";"',
        '"\\x2eincbin \\"FILE\\";"',
        'R"(.incbin "FILE")"',
        '"." TEXT(PASTE(inc, bin)) " \\"FILE\\";"',
        '".inc" "lude \\"FILE\\";"',
    ],
)
def test_no_assembler_reads_a_file(text: str, tmp_path: Path) -> None:
    """However the directive is pasted together: ptxas knows none, and g++'s output is read before it is assembled."""
    (tmp_path / "secret").write_text("int secret;\n")
    head = "#define TEXT_(x) #x\n#define TEXT(x) TEXT_(x)\n#define PASTE(a, b) a##b\n"
    asm = f"asm volatile({text.replace('FILE', str(tmp_path / 'secret'))});"
    cuda = head + f'extern "C" __global__ void k(int* p) {{ {asm} p[0] = 1; }}'
    built = CudaTarget("sm_90").build(
        CompileRequest("sm_90", "sm_90a", ".cu", cuda, (), BuildOptions(), ("k",)), BlobStore(tmp_path / "blobs")
    )
    assert built.status in (Status.BUILD_ERROR, Status.FORBIDDEN), built
    cpp = head + f'extern "C" void k(long, long, int, float* y) {{ {asm} y[0] = 1; }}'
    made = CpuTarget().build(
        CompileRequest("cpu", "native", ".cpp", cpp, (), BuildOptions(), ("k",)), BlobStore(tmp_path / "blobs")
    )
    assert made.status is Status.FORBIDDEN, made

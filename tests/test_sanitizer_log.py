"""What compute-sanitizer writes, read; and what happens where it is not installed or gets stuck. Needs no GPU."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evo.cli.root import app
from evo.errors import UsageError
from evo.fitness.cuda import sanitizer
from evo.fitness.cuda.sanitized import SanitizeJob
from evo.fitness.cuda.sanitizer import Finding, SanitizerReport, parse
from evo.fitness.cuda.target import CudaTarget
from evo.fitness.job import Job, plan_job
from evo.fitness.tasks import Subject
from evo.genome import Genome, make_candidate
from evo.operators.rmsnorm import RmsNorm
from evo.records import Proposal, Purpose
from evo.target import BlobStore

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at row_norm(const float *, float *, int)+0x70
=========     by thread (1,0,0) in block (0,0,0)
=========     Access to 0x7f2a00000404 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2a00000000 of size 1,028 bytes
=========
========= Invalid __global__ read of size 4 bytes
=========     at row_norm(const float *, float *, int)+0x70
=========     by thread (2,0,0) in block (0,0,0)
=========     Access to 0x7f2a00000408 is out of bounds
=========
========= Misaligned __shared__ write of size 8 bytes
=========     at other+0x1a0
=========     by thread (0,0,0) in block (7,0,0)
=========     Address 0x3 is misaligned
=========
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on CUDA API call.
=========
========= Target application returned an error
========= ERROR SUMMARY: 4 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at row_norm(const float *, float *)+0xe0
=========     and Read access at row_norm(const float *, float *)+0x1e0 [508 hazards]
=========
========= Warning: Race reported between Read access at fold+0x30
=========     and Write access at fold+0x60 [32 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
INITCHECK = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 2 bytes
=========     at 0x150 in row_norm(unsigned short const *, int)
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7fc406200400
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at row_norm+0x90
=========     by thread (0,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""


def test_memcheck() -> None:
    reads, misaligned = parse(MEMCHECK, "memcheck")
    assert (reads.level, reads.kind, reads.kernel, reads.count) == ("error", "Invalid __global__ read", "row_norm", 2)
    assert "by thread (1,0,0)" in reads.message
    assert (misaligned.kind, misaligned.kernel, misaligned.count) == ("Misaligned __shared__ write", "other", 1)


def test_racecheck_tells_errors_from_warnings() -> None:
    race, warp = parse(RACECHECK, "racecheck")
    assert (race.level, race.kernel, race.count) == ("error", "row_norm", 508)
    assert race.kind == "Race reported between Write access"
    assert (warp.level, warp.kernel, warp.count) == ("warning", "fold", 32)
    assert SanitizerReport(("racecheck",), (warp,)).clean
    assert not SanitizerReport(("racecheck",), (race, warp)).clean


def test_initcheck_and_synccheck() -> None:
    (uninitialised,) = parse(INITCHECK, "initcheck")
    assert (uninitialised.kind, uninitialised.kernel) == ("Uninitialized __global__ memory read", "row_norm")
    (barrier,) = parse(SYNCCHECK, "synccheck")
    assert (barrier.kind, barrier.kernel) == ("Barrier error detected. Divergent thread(s) in block", "row_norm")


def test_a_clean_log_has_no_findings() -> None:
    assert parse("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", "memcheck") == []


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """The first seed, built for its smallest case; the blobs lie in this test's own cache."""
    folder = tmp_path_factory.mktemp("cache")
    environment = pytest.MonkeyPatch()
    environment.setenv("EVO_CACHE", str(folder))
    operator, target = RmsNorm(), CudaTarget("sm_90")
    genome = Genome.read(operator.seeds("sm_90")[0])
    check = next(case for case in operator.cases("sm_90") if case.group == "check" and case.dims.get("H", 1) == 1)
    candidate = make_candidate("rmsnorm", "sm_90", genome, {})
    job = Job(Proposal("p", "", candidate), Purpose.FINAL, genome, (check,), frozenset({check.name}))
    for task in plan_job(job, operator, target.nominal(), target.arch):
        blobs = BlobStore(folder / "builds-1" / "blobs")
        job.built[job.waiting.pop(task.id)] = target.build(task.request, blobs)
    yield job.subject()
    environment.undo()


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for compute-sanitizer; a test writes its body."""
    path = tmp_path / "bin" / "compute-sanitizer"
    path.parent.mkdir()
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return path


def script(path: Path, body: str) -> None:
    """`$tool`, `$log` and `$folder` are what the command names."""
    head = "#!/bin/sh\nfor a; do case $prev in --tool) tool=$a;; --log-file) log=$a;; esac; prev=$a; done; folder=$a\n"
    path.write_text(head + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run(subject: Subject, limit_s: float = 20.0) -> SanitizerReport:
    return sanitizer.sanitize(subject, RmsNorm(), CudaTarget("sm_90").nominal(), tools=("memcheck",), limit_s=limit_s)


def test_the_job_is_complete_and_the_log_is_read(subject: Subject, tool: Path, tmp_path: Path) -> None:
    log = tmp_path / "recorded.log"
    log.write_text(MEMCHECK)
    script(tool, f'cp -r "$folder" {tmp_path}/seen; cp {log} "$log"; echo "0 crash: x" > "$folder/done"\n')
    report = run(subject)
    assert report.tools == ("memcheck",)
    assert [finding.count for finding in report.findings] == [2, 1]
    assert not report.clean
    from evo import codec

    job = codec.loads(SanitizeJob, (tmp_path / "seen" / "job.json").read_bytes())
    assert [item.case for item in job.items] == list(report.cases)
    for item in job.items:
        files = {contents.spec.name: contents.file for contents in item.buffers}
        assert files["y"] == ""
        (x,) = [contents for contents in item.buffers if contents.spec.name == "x"]
        from evo.fitness.cuda.arena import size_of

        assert (tmp_path / "seen" / x.file).stat().st_size == size_of(x.spec)
        assert (tmp_path / "seen" / item.code).read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sleep 30\n", "took more than 0.5 s"),
        ("echo cannot find the driver; exit 1\n", "cannot find the driver"),
        ('echo "========= ERROR SUMMARY: 0 errors" > "$log"\n', "none of 3 calls ran"),
        (
            'echo "========= ERROR SUMMARY: 0 errors" > "$log"; echo "0 resource_limit: no memory" > "$folder/done"\n',
            "no memory",
        ),
    ],
)
def test_a_tool_that_says_nothing_is_not_clean(subject: Subject, tool: Path, body: str, why: str) -> None:
    script(tool, body)
    report = run(subject, limit_s=0.5)
    assert report.tools == ()
    assert why in report.missing["memcheck"]
    assert not report.clean


def test_a_clean_run(subject: Subject, tool: Path) -> None:
    script(tool, 'echo "========= ERROR SUMMARY: 0 errors" > "$log"; echo "3 " > "$folder/done"\n')
    report = run(subject)
    assert report.clean
    assert report.tools == ("memcheck",)


def test_where_it_is_not_installed(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "find_tool", lambda: "")
    report = run(subject)
    assert not report.clean
    assert "part of the CUDA toolkit" in report.missing["memcheck"]
    with pytest.raises(UsageError, match="memcheck, racecheck"):
        sanitizer.sanitize(subject, RmsNorm(), CudaTarget("sm_90").nominal(), tools=("valgrind",))


def test_the_verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = Finding("memcheck", "error", "Invalid __global__ read", "k", 3, "Invalid __global__ read of size 4 bytes")
    reports = {"bad": SanitizerReport(("memcheck",), (found,), {}, ("a",)), "good": SanitizerReport(("memcheck",), ())}
    monkeypatch.setattr("evo.app.trust.sanitize.sanitize", lambda identity, **options: reports[identity])
    bad = CliRunner().invoke(app, ["sanitize", "bad"])
    assert bad.exit_code == 1
    assert "Invalid __global__ read of size 4 bytes" in " ".join(bad.output.split())
    good = CliRunner().invoke(app, ["sanitize", "good", "--json"])
    assert good.exit_code == 0
    assert json.loads(good.output)["tools"] == ["memcheck"]


def test_no_gpu_is_a_users_error(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["sanitize", str(tmp_path / "none.cu")])
    assert found.exit_code == 2
    assert "no such file" in found.output

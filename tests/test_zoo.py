"""The zoo: a sound manifest, every CPU member judged for real, every CUDA member built with no device."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from zoo_judge import judged

from evo import codec
from evo.app.stand import find_target
from evo.app.trust.zoo import build_zoo, needed_cases
from evo.fitness.cuda.target import CudaTarget
from evo.fitness.zoo import HERE, Finding, Member, file_members, generic_members, kinds, members
from evo.genome import Genome
from evo.plugins.manager import Plugins
from evo.records import Status

PLUGINS = Plugins.load(entry_points=False)
RMSNORM = PLUGINS.operator("rmsnorm")
CPU, CUDA = members(RMSNORM, "cpu"), members(RMSNORM, "sm_90")
HOST_ONLY = {"28 process state"}  # a kind that only a CPU candidate can attempt
needs_compiler = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
needs_nvrtc = pytest.mark.skipif(bool(CudaTarget("sm_90").missing()), reason="no NVRTC")


def test_every_kind_has_two_members() -> None:
    files = Counter(member.kind for member in file_members("rmsnorm", "sm_90"))
    for kind in kinds():
        if kind.startswith("0 "):
            continue
        count = Counter(m.kind for m in file_members("rmsnorm", "cpu"))[kind] if kind in HOST_ONLY else files[kind]
        assert count >= 2, kind


@pytest.mark.parametrize("target", ["cpu", "sm_90", "sm_100"])
def test_manifest_is_sound(target: str) -> None:
    found = members(RMSNORM, target)
    assert len({member.name for member in found}) == len(found)
    known = {case.name for case in RMSNORM.cases(target)}
    for member in found:
        assert member.kind in kinds(), member
        assert member.summary, member
        assert member.expect, member
        assert bool(member.why) >= (len(member.expect) > 1), f"{member.name}: say why several are legitimate"
        assert set(member.cases) <= known, member
        assert (Status.OK in member.expect) == (member.gain > 0 or member.kind.startswith("0 ")), member.name
        if member.gain:
            assert member.stage == "time", member


def test_every_file_is_a_member() -> None:
    files = {path.name for path in HERE.iterdir() if path.suffix in (".cu", ".cpp", ".ptx")}
    listed = [m.name.removesuffix("-cpp") + m.suffix for t in ("cpu", "sm_90") for m in file_members("rmsnorm", t)]
    assert sorted(listed) == sorted(files)


def test_members_whose_fault_is_not_the_header_are_valid_genomes() -> None:
    for member in (*CPU, *CUDA):
        if Status.INVALID_GENOME not in member.expect:
            Genome.parse(member.source, member.suffix).contract(RMSNORM)


def test_other_operators_get_generic_members_of_their_own() -> None:
    assert not file_members("another", "cpu")
    made = generic_members(RMSNORM, "cpu")
    assert {"zoo_one", "zoo_skip_row", "zoo_nothing", "zoo_copy_x", "zoo_input", "zoo_past"} <= {m.name for m in made}
    assert {m.stage for m in made} == {"build", "check"}


def test_findings_are_plain_data() -> None:
    finding = Finding("one", "1 partial work", (Status.CRASH,), Status.OK, "must be crash", False)
    assert codec.loads(Finding, codec.dumps(finding)) == finding


def portions(found: tuple[Member, ...], size: int = 8) -> list[tuple[Member, ...]]:
    """So that no test takes long, and a failure names few."""
    quick = [member for member in found if not member.slow]
    return [tuple(quick[start : start + size]) for start in range(0, len(quick), size)]


@needs_nvrtc
@pytest.mark.parametrize("portion", portions(CUDA, 8), ids=lambda portion: f"{portion[0].name}..{portion[-1].name}")
def test_cuda_members_build_or_are_refused_with_no_device(portion: tuple[Member, ...]) -> None:
    target = find_target(PLUGINS, "sm_90")
    cases = [case for case in RMSNORM.cases("sm_90") if case.name in ("bf16-32768x1024", "bf16-37x264")]
    found = build_zoo(RMSNORM, target, cases, portion, lambda message: None)
    assert [f.member for f in found] == [member.name for member in portion]
    assert [f for f in found if not f.ok] == []


@needs_compiler
@pytest.mark.alone
@pytest.mark.parametrize("portion", portions(CPU), ids=lambda portion: f"{portion[0].name}..{portion[-1].name}")
def test_cpu_members_get_their_status(portion: tuple[Member, ...]) -> None:
    found = judged("rmsnorm", "cpu", portion, needed_cases(portion, ("fp32-8x2048",)))
    assert len(found) > len(portion), "the honest kernel is judged too"
    assert [f for f in found if not f.ok] == []


@needs_compiler
@pytest.mark.alone
def test_benchmark_runs_and_writes_its_findings(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--target", "cpu", "--honest", "5", "--members", "null-*", "--cases", "fp32-64x256", "--out", str(out)]
    command = [sys.executable, str(HERE.resolve().parents[1] / "benchmarks" / "zoo_and_honest.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    report = json.loads(out.read_text())
    assert sum(report["honest_counts"].values()) == 5
    assert set(report["honest_counts"]) <= {"ok", "unstable_timing"}, "a noisy neighbour is no fault of the gate"
    assert (done.returncode == 0) == (set(report["honest_counts"]) == {"ok"}), done.stdout + done.stderr
    assert {f["got"] for f in report["zoo"] if f["kind"] != "control"} == {"wrong_result"}
    assert all(f["ok"] for f in report["zoo"])

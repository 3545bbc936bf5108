"""`evo doctor`: judgements on made-up machines, the real probes on this one, and the refusal of a gate that is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from evo.app.trust import operator_doctor
from evo.app.trust.doctor import machine_findings
from evo.archive import Archive
from evo.cli.root import app
from evo.errors import UsageError
from evo.fitness.cpu import health as processor
from evo.fitness.cpu.target import CpuTarget
from evo.fitness.cuda import health, tooling
from evo.fitness.cuda.nvml import GpuReading, NvmlReading
from evo.fitness.cuda.target import CudaTarget
from evo.fitness.filters import Examination, Probe
from evo.fitness.findings import Finding, Health, look
from evo.operators.rmsnorm import RmsNorm
from evo.report.doctor import doctor_report

EXAMPLE = Path(__file__).parent.parent / "plugins" / "examples" / "evo-scale"
HEALTHY = GpuReading(
    0, "NVIDIA H200", "GPU-1", "cuda:0", "sm_90", memory_total=141 << 30, memory_used=600 << 20, sm_mhz=345,
    sm_max_mhz=1980, application_mhz=1980, application_default_mhz=1980, memory_mhz=3201, memory_max_mhz=3201,
    reasons=1, temperature_c=31, slowdown_c=87, power_w=77.0, power_limit_w=700.0, power_default_w=700.0,
    busy_percent=0, processes=(), ecc=True, uncorrected=0, remap_failed=False, remap_pending=False, mig=False,
    persistence=True, compute_mode=0,
)  # fmt: skip
NO_GPU = NvmlReading("NVML Shared Library Not Found")


def by_name(findings: list[Finding] | Iterator[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings}


def rendered(findings: list[Finding]) -> str:
    console = Console(width=80, record=True, file=open(os.devnull, "w"))
    console.print(doctor_report(findings))
    console.file.close()
    return console.export_text()


# --- a probe that fails


def test_a_probe_that_fails_is_skipped_with_its_reason() -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("gpu", "driver", Health.OK, "lost with the rest")
        raise RuntimeError("no such symbol\nand much more")

    assert look("gpu", "driver", broken) == [Finding("gpu", "driver", Health.SKIPPED, "RuntimeError: no such symbol")]


def test_a_probe_that_knows_what_to_do_is_a_problem() -> None:
    def wrong() -> list[Finding]:
        raise UsageError("the name is taken", fix="rename it")

    assert look("machine", "plugins", wrong) == [
        Finding("machine", "plugins", Health.PROBLEM, "the name is taken", "rename it")
    ]


# --- the GPU


def test_a_healthy_gpu_has_no_fault() -> None:
    found = list(health.gpu_findings(HEALTHY))
    assert {finding.state for finding in found} == {Health.OK}
    assert {finding.part for finding in found} == {"cuda:0"}
    seen = {finding.what: finding.seen for finding in found}
    assert seen["clocks"] == "SM 345 of 1980 MHz, memory 3201 of 3201 MHz"
    assert seen["memory"] == "600 MiB used, 143,784 MiB free"
    assert seen["throttling"] == "idle"
    assert seen["power"] == "77 W of 700 W"


@pytest.mark.parametrize(
    ("change", "what", "state", "seen"),
    [
        ({"reasons": 0x4}, "throttling", Health.WARNING, "software power cap"),
        ({"reasons": 0x8 | 0x40 | 0x4}, "throttling", Health.PROBLEM, "hardware thermal slowdown, software power cap"),
        ({"reasons": 0x2}, "throttling", Health.WARNING, "application clocks"),
        ({"application_mhz": 1200}, "application clocks", Health.WARNING, "1200 MHz, by default 1980"),
        ({"temperature_c": 84}, "temperature", Health.WARNING, "84 C, slows down at 87 C"),
        ({"power_limit_w": 400.0}, "power", Health.WARNING, "of 400 W, by default 700 W"),
        ({"processes": ((77, "python", 1 << 30),)}, "other processes", Health.WARNING, "77 python"),
        ({"processes": ((77, "", None),)}, "other processes", Health.WARNING, "77 (name hidden)"),
        ({"busy_percent": 40}, "utilisation", Health.WARNING, "40 %"),
        ({"uncorrected": 2}, "ECC", Health.PROBLEM, "on, 2 uncorrected errors"),
        ({"remap_failed": True}, "memory rows", Health.PROBLEM, "row remapping failed"),
        ({"mig": True}, "MIG", Health.PROBLEM, "on"),
        ({"persistence": False}, "persistence mode", Health.WARNING, "off"),
        ({"compute_mode": 2}, "compute mode", Health.PROBLEM, "prohibited"),
        ({"memory_used": 100 << 30}, "memory", Health.WARNING, "41,984 MiB free"),
        ({"target": "sm_70"}, "device", Health.WARNING, "sm_70"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_said(change: dict[str, object], what: str, state: Health, seen: str) -> None:
    found = by_name(health.gpu_findings(replace(HEALTHY, **change)))  # type: ignore[arg-type]
    assert found[what].state is state
    assert seen in found[what].seen
    assert found[what].fix
    assert [finding.what for finding in found.values() if finding.state is not Health.OK] == [what]


def test_a_gpu_that_tells_nothing_has_no_fault() -> None:
    found = list(health.gpu_findings(GpuReading(3, "NVIDIA H200", target="sm_90")))
    assert [(finding.part, finding.what, finding.state) for finding in found] == [("GPU 3", "device", Health.OK)]


def test_a_driver_older_than_the_compiler_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reading = NvmlReading("", "570.1", (12, 8), (HEALTHY,))
    (found,) = health.driver_findings(reading, "13.5.37")
    assert (found.state, "NVRTC 13.5.37" in found.seen, "CUDA 13" in found.fix) == (Health.PROBLEM, True, True)
    (found,) = health.driver_findings(reading, "12.9.1")
    assert (found.state, found.seen) == (Health.OK, "570.1, CUDA 12.8")


def test_hidden_and_mixed_gpus_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    hidden, other = replace(HEALTHY, visible=""), replace(HEALTHY, name="NVIDIA L40S", visible="")
    found = by_name(health.driver_findings(NvmlReading("", "580", (13, 0), (hidden, other)), "13.0.1"))
    assert (found["visible GPUs"].state, found["device order"].state) == (Health.PROBLEM, Health.WARNING)
    assert "hides 2 of 2" in found["visible GPUs"].seen


def test_no_gpu_is_one_line_and_a_problem_only_where_one_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("evo.fitness.cuda.nvml.read_nvml", lambda: NO_GPU)
    monkeypatch.setattr(CudaTarget, "devices", lambda self: ())
    plain, asked = (
        [finding for finding in machine_findings(target, str(tmp_path / "a.db")) if finding.what == "GPU"]
        for target in (None, CudaTarget("sm_90"))
    )
    assert [(f.state, f.seen) for f in plain] == [(Health.SKIPPED, "none found here: NVML Shared Library Not Found")]
    assert [f.state for f in asked] == [Health.PROBLEM]
    on_cpu = machine_findings(CpuTarget(), str(tmp_path / "a.db"))
    assert "gpu" not in {finding.part for finding in on_cpu}


def test_the_cuda_compilers_build_a_tiny_kernel_for_every_architecture(tmp_path: Path) -> None:
    found = list(tooling.compiler_findings({"sm_90": "sm_90a", "sm_100": "sm_100a"}, tmp_path))
    assert [(f.what, f.state) for f in found] == [
        (what, Health.OK) for what in ("NVRTC", "nvdisasm", "NVRTC", "nvdisasm", "nvJitLink")
    ]
    assert ["sm_90a" in found[0].seen, "sm_100a" in found[2].seen] == [True, True]


def test_profiling_is_judged_by_the_drivers_setting_and_the_capabilities(tmp_path: Path) -> None:
    params = tmp_path / "params"

    def judged(text: str, capabilities: int) -> Health:
        params.write_text(text)
        return next(tooling.profiler_findings(params, capabilities)).state

    assert judged("EnableMSI: 1\nRmProfilingAdminOnly: 1\n", 0) is Health.WARNING
    assert judged("EnableMSI: 1\nRmProfilingAdminOnly: 1\n", 1 << 21) is Health.OK
    assert judged("EnableMSI: 1\nRmProfilingAdminOnly: 0\n", 0) is Health.OK
    assert judged("EnableMSI: 1\n", 0) is Health.SKIPPED
    assert next(tooling.profiler_findings(tmp_path / "none", 0)).state is Health.SKIPPED


# --- the processor, the disk, the archive


def test_the_processor_is_judged_by_what_the_system_shows(tmp_path: Path) -> None:
    files = {
        "cpu0/cpufreq/scaling_governor": "powersave", "intel_pstate/no_turbo": "0", "cpu0/cache/index0/level": "1",
        "cpu0/cache/index0/size": "32K", "cpu0/cache/index3/level": "3", "cpu0/cache/index3/size": "32768K",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    found = by_name(processor.processor_findings(tmp_path, load=90.0))
    assert (found["governor"].state, found["governor"].seen) == (Health.WARNING, "powersave")
    assert (found["load"].state, found["last-level cache"].seen) == (Health.WARNING, "L3 32768K")
    assert found["turbo"].seen.startswith("on")
    bare = by_name(processor.processor_findings(tmp_path / "none", load=0.0))
    assert (bare["governor"].state, bare["load"].state) == (Health.SKIPPED, Health.OK)
    assert "turbo" not in bare


def test_the_cpu_compiler_builds_a_tiny_genome(tmp_path: Path) -> None:
    (found,) = processor.compiler_findings(tmp_path, needed=True)
    assert found.state is Health.OK, found


def test_a_cache_that_cannot_be_used_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EVO_CACHE", str(tmp_path / "file"))
    found = by_name(machine_findings(CpuTarget(), str(tmp_path / "a.db")))["build cache"]
    assert (found.state, "EVO_CACHE" in found.fix) == (Health.PROBLEM, True)


def test_the_archive_is_looked_at_and_not_made(tmp_path: Path) -> None:
    def looked(name: str) -> Finding:
        return by_name(machine_findings(CpuTarget(), str(tmp_path / name)))["archive"]

    assert looked("new.db").state is Health.OK
    assert not (tmp_path / "new.db").exists()
    assert looked("no/such/folder/new.db").state is Health.PROBLEM
    with Archive.open(str(tmp_path / "mine.db")):
        pass
    mine = looked("mine.db")
    assert (mine.state, "0 runs" in mine.seen) == (Health.OK, True)
    (tmp_path / "other.db").write_text("not a database at all, but long enough to be read as one" * 20)
    assert looked("other.db").state is Health.PROBLEM


# --- the report and the command


def test_the_report_shows_all_and_explains_what_is_wrong() -> None:
    findings = [
        Finding("cuda:0", "clocks", Health.OK, "SM 345 of 1980 MHz"),
        Finding("cuda:0", "MIG", Health.PROBLEM, "on", "nvidia-smi -mig 0", ("a [detail]",)),
        Finding("cuda:0", "persistence mode", Health.WARNING, "off", "nvidia-smi -pm 1"),
        Finding("operator", "zoo", Health.SKIPPED, "no device"),
    ]
    shown = rendered(findings)
    for line in (
        "SM 345 of 1980 MHz",
        "problem: cuda:0, MIG",
        "    a [detail]",
        "  -> nvidia-smi -mig 0",
        "problems 1",
    ):
        assert line in shown
    assert shown.index("problem: ") < shown.index("warning: ")
    assert "-> " not in rendered(findings[:1])
    assert "all is well" in rendered(findings[:1])


def evo(folder: Path, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    folders = (str(path), str(EXAMPLE)) if path else ()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.run(
        [sys.executable, "-m", "evo", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip


def test_the_command_prints_json_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = evo(tmp_path, "doctor", "--target", "cpu", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    states = {(row["part"], row["what"]): row["state"] for row in json.loads(done.stdout)}
    assert states["machine", "python"] == states["cpu", "compiler"] == states["machine", "archive"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_the_command_fails_on_a_problem_and_on_an_unknown_name(tmp_path: Path) -> None:
    wrong = CliRunner().invoke(app, ["doctor", "--target", "cpu", "--archive", str(tmp_path / "none" / "a.db")])
    assert (wrong.exit_code, "problem: machine, archive" in wrong.stdout) == (1, True)
    unknown = CliRunner().invoke(app, ["doctor", "--operator", "rmsnrom"])
    assert (unknown.exit_code, "did you mean rmsnorm or" in unknown.stderr) == (2, True)


# --- the operator's gate


def test_filters_become_findings() -> None:
    probes = (
        Probe("null kernels", "zeros as y", "n8", "normal", 40.0, "ok"),
        Probe("null kernels", "ones as y", "n8", "normal", 2.5, "ok"),
        Probe("null kernels", "w as y", "n8", "flat", 0.0, "exception"),
        Probe("sensitivity", "w redrawn", "n8", "normal", 0.25, "problem"),
        Probe("sensitivity", "one element of x", "n8", "normal", 0.5, "warning"),
    )
    nulls, sense = operator_doctor.filter_findings(Examination(probes, 2, 1))
    assert (nulls.state, sense.state) == (Health.OK, Health.PROBLEM)
    assert nulls.seen == (
        "3 hold, the closest: ones as y on n8 under 'normal': 2.5 tolerances; right by nature: w as y on n8 under "
        "'flat': 0 tolerances"
    )
    assert sense.seen == "1 of 2 are too weak; no time for 1 of 2 cases"
    assert sense.details == ("w redrawn on n8 under 'normal': 0.25 tolerances",)
    (none,) = operator_doctor.filter_findings(Examination((), 0, 0))
    assert none.state is Health.PROBLEM


def test_rmsnorms_gate_is_not_refused() -> None:
    operator_doctor.refuse_weak_gate(RmsNorm(), RmsNorm().cases("cpu"))


LOOSE = """
from evo.operator import Tolerance
from evo.plugins import hookimpl
from evo_scale.operator import Scale

class Loose(Scale):
    name = "loose"
    def tolerance(self, case):
        return Tolerance(rms=2.0, max=1e6)

@hookimpl
def evo_operators(register):
    register(Scale())
    register(Loose())
"""


@pytest.fixture
def loose(tmp_path: Path) -> Path:
    """A folder on the path with a distribution whose operator accepts nearly everything."""
    folder = tmp_path / "site"
    info = folder / "loose_kernels-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "loose_plugin.py").write_text(LOOSE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loose-kernels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[evo]\nloose_plugin = loose_plugin\n")
    return folder


def test_a_run_refuses_an_operator_that_null_kernels_pass(loose: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    done = evo(work, "run", "--operator", "loose", "--target", "cpu", "--budget", "evaluations=1", path=loose)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: the gate of operator 'loose' lets a kernel pass that does not do the work: ")
    assert "tolerances (it must be above 1)" in done.stderr
    assert "evo doctor --operator loose" in done.stderr
    assert list(work.iterdir()) == []  # no archive


ORACLE = """
from evo.app.trust.operator_doctor import oracle_findings
from evo.plugins.manager import Plugins
plugins = Plugins.load()
(found,) = oracle_findings(plugins, plugins.operator("scale"), "cpu", lambda message: None)
print(found.state, found.seen)
"""


def test_the_oracle_is_held_against_the_reference_on_the_device(loose: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(loose), str(EXAMPLE)))}
    done = subprocess.run(
        [sys.executable, "-c", ORACLE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.stdout.startswith("ok agrees with the float64 reference on "), done.stdout + done.stderr

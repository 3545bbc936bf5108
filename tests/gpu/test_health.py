"""`evo doctor` on a real GPU: NVML answers, the judgements hold together, the oracle agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.app.trust.doctor import machine_findings
from evo.app.trust.operator_doctor import filter_findings, oracle_findings, refuse_weak_gate
from evo.fitness.cuda.devices import list_devices
from evo.fitness.cuda.nvml import read_nvml
from evo.fitness.cuda.target import CudaTarget
from evo.fitness.filters import examine
from evo.fitness.findings import Health
from evo.operators.rmsnorm import RmsNorm
from evo.plugins.manager import Plugins

pytestmark = pytest.mark.gpu


def test_nvml_tells_what_the_doctor_asks(device: str) -> None:
    reading = read_nvml()
    assert reading.fault == ""
    assert reading.driver
    assert reading.cuda >= (12, 0)
    gpu = next(gpu for gpu in reading.gpus if gpu.visible == device)
    assert gpu.uuid.startswith("GPU-")
    assert gpu.target.startswith("sm_")
    assert gpu.memory_total is not None
    assert gpu.memory_used is not None
    assert 0 <= gpu.memory_used <= gpu.memory_total
    assert gpu.sm_mhz is not None
    assert gpu.sm_max_mhz is not None
    assert 0 < gpu.sm_mhz <= gpu.sm_max_mhz
    assert gpu.temperature_c is not None
    assert 10 < gpu.temperature_c < 110
    assert gpu.reasons is not None
    assert gpu.power_limit_w is not None
    assert 20 < gpu.power_limit_w < 3000


def test_the_devices_are_those_that_runs_use(device: str) -> None:
    names = {gpu.visible: gpu.name for gpu in read_nvml().gpus}
    facts = next(facts for facts in list_devices() if facts.id == device)
    assert names[device] == facts.name


def test_the_machine_part_has_no_probe_that_fails(device: str, tmp_path: Path) -> None:
    target = next(facts.target for facts in list_devices() if facts.id == device)
    found = machine_findings(CudaTarget(target), str(tmp_path / "a.db"))
    of_gpu = {finding.what: finding for finding in found if finding.part in ("gpu", device)}
    assert {"driver", "device", "memory", "clocks", "throttling", "NVRTC", "nvJitLink", "nvdisasm"} <= set(of_gpu)
    assert of_gpu["device"].state is Health.OK
    assert of_gpu["NVRTC"].state is Health.OK
    assert "GPU" not in of_gpu
    broken = [f for f in found if f.what in ("readings", "compilers", "profilers", "processor") or "Error:" in f.seen]
    assert broken == []  # `look` names these where a probe raised


def test_rmsnorm_on_this_gpu(device: str) -> None:
    target = next(facts.target for facts in list_devices() if facts.id == device)
    operator, quiet = RmsNorm(), lambda message: None
    cases = [case for case in operator.cases(target) if case.group == "tune" and case.dims["N"] <= 4096]
    refuse_weak_gate(operator, cases)
    states = {finding.what: finding.state for finding in filter_findings(examine(operator, cases))}
    assert set(states.values()) == {Health.OK}, states
    (found,) = oracle_findings(Plugins.load(), operator, target, quiet)
    assert found.state is Health.OK, found

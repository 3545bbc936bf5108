"""A certificate of a seed on a real CUDA device, and its replay: some twenty seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evo import app
from evo.app.trust.certificate_file import seal, write_certificate
from evo.certificate import Certificate, Outcome
from evo.operators.rmsnorm import RmsNorm
from evo.records import Status
from evo.target import Target

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
CASE = "bf16-32768x1024"


@pytest.fixture(scope="module")
def target(device: str) -> Target:
    from evo.plugins.manager import Plugins

    found = [entry.item for entry in Plugins.load(entry_points=False).targets() if entry.name != "cpu"]
    return next(item for item in found if any(facts.id == device for facts in item.devices()))


@pytest.fixture(scope="module")
def made(target: Target) -> Certificate:
    seed = RmsNorm().seeds(target.name)[0]
    return app.certify(app.Order(str(seed), target=target.name, cases=(CASE,), sessions=3, pairs=10))


def test_the_certificate_names_the_device_and_its_numbers(made: Certificate, target: Target) -> None:
    facts = target.devices()[0]
    assert (made.device.name, made.device.arch) == (facts.name, target.arch)
    assert made.device.facts["uuid"].startswith("GPU-")
    assert made.device.facts["ecc"] in ("on", "off", "unknown")
    assert made.versions["driver"]
    assert made.versions["nvrtc"]
    case = next(case for case in made.cases if case.case == CASE)
    assert case.status is Status.OK
    assert case.measurement
    assert case.plan
    assert [len(session) for session in case.measurement.samples] == [10, 10, 10]
    assert case.measurement.low <= case.measurement.ratio <= case.measurement.high
    assert 20 < case.measurement.time_us < 200
    assert case.measurement.clocks["sm_mhz_before"] > 0
    assert case.code_hash in {code.code_hash for code in made.code}
    assert made.code[0].kernels[0]["registers"]
    tune = [each for each in RmsNorm().cases(target.name) if each.group == "tune"]
    assert {each.name for each in tune} <= {each.case for each in made.cases}, "every tune case is listed"


def test_it_holds_when_it_is_replayed_at_once(made: Certificate, tmp_path: Path) -> None:
    place = tmp_path / "certificate.json"
    app.write_certificate(made, place)
    assert len(place.read_bytes()) < 64 << 10
    replayed = app.replay(place)
    assert replayed.outcome is Outcome.HOLDS, replayed
    (case,) = replayed.cases
    assert case.same_code is True


def test_another_chip_cannot_be_compared(made: Certificate, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere.json"
    write_certificate(seal(replace(made, device=replace(made.device, name="another chip"))), place)
    assert json.loads(place.read_text())["device"]["name"] == "another chip"
    assert app.replay(place).outcome is Outcome.INCOMPARABLE

"""A small sample of the zoo on the real device; `benchmarks/zoo_and_honest.py` runs all of it."""

from __future__ import annotations

import pytest
from zoo_judge import judged

from evo.app.trust.zoo import needed_cases
from evo.fitness.cuda.devices import list_devices
from evo.fitness.zoo import members
from evo.plugins.manager import Plugins

pytestmark = pytest.mark.gpu

SAMPLE = ("partial-many-rows", "race-unset-shared", "nan-spreads", "fault-misaligned", "zoo_skip_row", "zoo_past")


def test_sample_gets_its_statuses(device: str) -> None:
    target = next(facts.target for facts in list_devices() if facts.id == device)
    every = {member.name: member for member in members(Plugins.load(entry_points=False).operator("rmsnorm"), target)}
    sample = [every[name] for name in SAMPLE]
    found = judged("rmsnorm", target, sample, needed_cases(sample, ()))
    assert [f for f in found if not f.ok] == []
    assert [f.member for f in found if f.kind == "control"] == ["honest before all", "honest after fault-misaligned"]

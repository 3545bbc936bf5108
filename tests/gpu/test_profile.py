"""Nsight Compute on a real kernel, where it is installed and permitted."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_bad_kernels import GOOD

from evo.app.swarm.profiling import counters
from evo.fitness.cuda.profile import DENIED, READ, TIME, find_tool

pytestmark = pytest.mark.gpu


def test_counters_of_an_honest_kernel(device: str, tmp_path: Path) -> None:
    if not find_tool():
        pytest.skip("ncu is not installed")
    file = tmp_path / "candidate.cu"
    file.write_text(GOOD)
    found = counters(str(file), limit_s=60.0)
    if DENIED in found.missing:
        pytest.skip(found.missing)
    assert not found.missing, found.missing
    assert {kernel.kernel for kernel in found.kernels} == {"row_norm"}
    values = found.kernels[0].values
    assert values[TIME] > 1000.0  # ns
    assert values[READ] > 0.0
    assert "us under the profiler" in found.text()

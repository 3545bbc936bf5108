"""Attempts to look fast on the real device: what they gain must be nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_bad_kernels import CASE, GOOD

from evo import app
from evo.records import Status

pytestmark = pytest.mark.gpu

FINITE = "float first = evo_float(y[row * n]); if (first == first && fabsf(first) < 1e4f) return;"


def test_work_that_is_done_already_is_not_found(device: str, tmp_path: Path) -> None:
    """A kernel that returns where its output looks written gains nothing: no timed call sees another one's output."""
    honest, lazy = tmp_path / "honest.cu", tmp_path / "lazy.cu"
    honest.write_text(GOOD)
    marker = "const long long row = blockIdx.x;"
    assert marker in GOOD
    lazy.write_text(GOOD.replace(marker, f"{marker} {FINITE}"))
    found = app.bench(lazy, target="auto", genes={}, cases=(CASE,), against=str(honest))
    assert found.status in (Status.OK, Status.WRONG_RESULT), found.diagnosis
    if found.status is Status.OK:
        (timing,) = [case.timing for case in found.cases if case.timing]
        assert timing.low < 1.05, timing

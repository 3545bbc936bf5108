"""Commands that install extras."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo import extras


def test_a_clone_installs_what_is_pinned_and_a_package_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert extras.install("cuda") == f"in {extras.ROOT}: pip install -c constraints.txt -e '.[cuda]'"
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    assert extras.install("cuda") == "pip install 'evo-kernels[cuda]'"

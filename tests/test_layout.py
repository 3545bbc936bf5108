"""The root folders are one package: `evo`."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("operators", "mutators", "fitness", "plugins", "archive")


@pytest.mark.parametrize("folder", FOLDERS)
def test_link_resolves_to_root_folder(folder: str) -> None:
    link = ROOT / "evo" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder
    module = importlib.import_module(f"evo.{folder}")
    assert module.__file__ is not None
    assert Path(module.__file__).resolve().parent == ROOT / folder


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    longest = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in ("evo", *FOLDERS)
        for path in (ROOT / folder).rglob("*.py")
        if not path.is_symlink()
    }
    assert {name: lines for name, lines in longest.items() if lines > 400} == {}


def test_no_file_names_a_package_index_host() -> None:
    hosts = ["py" + "pi.org", "python" + "hosted.org", "npm" + "js.org"]
    text = (ROOT / "constraints.txt").read_text() + (ROOT / "pyproject.toml").read_text()
    assert [host for host in hosts if host in text] == []

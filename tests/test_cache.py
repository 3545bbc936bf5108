"""The build cache: what is damaged is never believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.errors import UsageError
from evo.fitness.cache import BuildCache
from evo.records import Build, Status


def filled(root: Path) -> tuple[BuildCache, Build]:
    cache = BuildCache(root)
    build = Build("key", Status.OK, "nvrtc", 0.1, blob=cache.blobs.put(b"machine code"))
    cache.put(build)
    return cache, build


def test_what_is_put_is_got(tmp_path: Path) -> None:
    cache, build = filled(tmp_path)
    assert cache.get("key") == build
    assert cache.blobs.get(build.blob) == b"machine code"
    assert cache.get("other") is None


@pytest.mark.parametrize("damage", [b"", b"machine", b"other code!!"])
def test_damaged_code_is_built_again(tmp_path: Path, damage: bytes) -> None:
    cache, build = filled(tmp_path)
    (cache.blobs.root / build.blob).write_bytes(damage)
    assert cache.get("key") is None
    assert cache.blobs.put(b"machine code") == build.blob
    assert cache.get("key") == build


def test_damaged_records_are_built_again(tmp_path: Path) -> None:
    cache, _ = filled(tmp_path)
    for damage in (b"", b"{", b"[]"):
        (cache.root / "key.json").write_bytes(damage)
        assert cache.get("key") is None
    (cache.root / "key.json").unlink()
    (cache.root / "key.json").mkdir()
    assert cache.get("key") is None


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match="EVO_CACHE"):
        BuildCache(file)

"""Builds kept by key, so that equal requests are compiled once on a machine, ever."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs

from evo import codec
from evo.records import Build
from evo.target import BlobStore

SCHEMA = 1


def default_root() -> Path:
    """`EVO_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("EVO_CACHE") or platformdirs.user_cache_dir("evo", appauthor=False))


class BuildCache:
    """One JSON file a build beside the blobs; safe for many processes, may be deleted at any time."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or default_root()) / f"builds-{SCHEMA}"
        self.blobs = BlobStore(self.root / "blobs")

    def get(self, key: str) -> Build | None:
        try:
            build = codec.loads(Build, (self.root / f"{key}.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return build if not build.blob or (self.blobs.root / build.blob).exists() else None

    def put(self, build: Build) -> None:
        with tempfile.NamedTemporaryFile(dir=self.root, delete=False) as file:
            file.write(codec.dumps(build))
        os.replace(file.name, self.root / f"{build.key}.json")

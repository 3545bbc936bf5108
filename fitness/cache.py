"""Builds kept by key, so that equal requests are compiled once on a machine, ever."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path

import platformdirs

from evo import codec
from evo.errors import UsageError
from evo.records import Build
from evo.target import BlobStore

SCHEMA = 1


def default_root() -> Path:
    """`EVO_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("EVO_CACHE") or platformdirs.user_cache_dir("evo", appauthor=False))


class BuildCache:
    """One JSON file a build beside the blobs; safe for many processes, may be deleted at any time.

    `folder` numbers the folders that `renew` found or made.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or default_root()) / f"builds-{SCHEMA}"
        self.folder = 0
        self.renew()

    def renew(self) -> None:
        """Makes the folders, also where somebody deleted them. Raises `UsageError`."""
        try:
            self.blobs = BlobStore(self.root / "blobs")
            with tempfile.NamedTemporaryFile(dir=self.root):
                pass
            self._held = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
            self.folder += 1
        except OSError as error:
            raise UsageError(
                f"the build cache {self.root} cannot be used: {error.strerror or error}",
                fix="set EVO_CACHE to a folder that you may write in",
            ) from error
        weakref.finalize(self, os.close, self._held)

    def intact(self) -> bool:
        """Whether it is the folder that `renew` saw. While that is held open its number is given to no other."""
        try:
            return os.path.samestat(os.fstat(self._held), os.stat(self.root))
        except OSError:
            return False

    def get(self, key: str) -> Build | None:
        try:
            build = codec.loads(Build, (self.root / f"{key}.json").read_bytes())
            if build.blob:
                self.blobs.get(build.blob)
        except (OSError, ValueError):  # missing or damaged: built again
            return None
        return build

    def put(self, build: Build) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.root, delete=False) as file:
            file.write(codec.dumps(build))
        os.replace(file.name, self.root / f"{build.key}.json")

"""The runner's executable: compiled once per source and compiler, kept with a checksum in the cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from evo.errors import TargetError
from evo.fitness.cache import default_root
from evo.fitness.cpu import compiler
from evo.ids import digest

_CHECKSUM_BYTES = 32  # SHA-256 of what stands before, behind the last byte that the loader reads


def make(macros: Sequence[str]) -> Path:
    """The executable for these macros; built when it is missing or damaged. Raises `TargetError` when it cannot be."""
    if fault := compiler.fault():
        raise TargetError("the cpu target cannot build its runner", fix=fault)
    cxx, source = compiler.find(), Path(__file__).with_name("runner.cpp")
    flags = ["-O2", "-std=c++17", "-fno-exceptions", "-Wall", "-Wno-psabi", "-pthread", *macros]
    name = "cpu-runner-" + digest([source.read_bytes(), compiler.version(cxx), *flags])[:16]
    folder = default_root()
    if _sound(folder / name):
        return folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        build = Path(tempfile.mkdtemp(prefix="runner-", dir=folder))
    except OSError as error:
        raise TargetError(f"cannot write the cache folder {folder}: {error}", fix="set EVO_CACHE") from error
    try:
        code, said = compiler.run([cxx, *flags, str(source), "-o", name, "-lm"], build)
        if code != 0 or not os.access(build / name, os.X_OK):
            raise TargetError(f"{cxx} cannot build the cpu target's runner:\n{said}", fix="try another CXX")
        with (build / name).open("r+b") as file:
            checksum = hashlib.sha256(file.read()).digest()
            file.write(checksum)
        os.replace(build / name, folder / name)
    finally:
        shutil.rmtree(build)
    return folder / name


def _sound(path: Path) -> bool:
    if not os.access(path, os.X_OK):
        return False
    code = path.read_bytes()
    return hashlib.sha256(code[:-_CHECKSUM_BYTES]).digest() == code[-_CHECKSUM_BYTES:]

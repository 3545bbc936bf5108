"""Which compiler and headers build here: NVRTC for CUDA C++, nvJitLink for PTX, found without a driver."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
from pathlib import Path

from evo import extras
from evo.errors import TargetError

INSTALL = extras.install("cuda")
EVO_HEADERS = Path(__file__).parent  # holds evo.h


@functools.cache
def _library(name: str) -> Path | None:
    """The resolved file of a CUDA library ("nvrtc", "nvJitLink"), now loaded into this process, or None."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        found = load_nvidia_dynamic_lib(name).abs_path
    except (ImportError, RuntimeError, OSError):  # no cuda-pathfinder; no such library; one that cannot be loaded
        return None
    return Path(found).resolve() if found else None


def _full_version(short: str, library: Path | None, distribution: str) -> str:
    """ "13.5" with the build number that the library's file or its wheel tells: "13.5.37"."""
    named = re.search(r"\.so\.(\d+\.\d+\.\d+)$", library.name if library else "")
    if named and named[1].startswith(f"{short}."):
        return named[1]
    try:
        wheel = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return short
    site = Path(str(wheel.locate_file(""))).resolve()
    ours = library is not None and library.is_relative_to(site) and wheel.version.startswith(f"{short}.")
    return wheel.version if ours else short


@functools.cache
def nvrtc_version() -> str:
    """ "13.5.37", or "" where NVRTC is not installed."""
    library = _library("nvrtc")
    if library is None:
        return ""
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    return _full_version(f"{major}.{minor}", library, "nvidia-cuda-nvrtc") if int(status) == 0 else ""


@functools.cache
def nvjitlink_version() -> str:
    """ "13.4.92", or "" where nvJitLink, which assembles PTX, is not installed."""
    library = _library("nvJitLink")
    if library is None:
        return ""
    from cuda.bindings import nvjitlink

    major, minor = nvjitlink.version()
    return _full_version(f"{major}.{minor}", library, "nvidia-nvjitlink")


@functools.cache
def include_paths() -> tuple[str, ...]:
    """Where a source's headers come from: evo.h, then CUDA's own folder and its cccl.

    CUDA's headers are those beside the NVRTC in use, so that versions fit; else those of another wheel or toolkit.
    """
    spec = importlib.util.find_spec("nvidia")
    wheels = sorted((Path(root) for root in (spec.submodule_search_locations or [] if spec else [])), reverse=True)
    library = _library("nvrtc")
    roots = [parent / "include" for parent in list(library.parents)[1:4]] if library else []
    roots += [folder / "include" for wheel in wheels for folder in sorted(wheel.glob("cu1*"), reverse=True)]
    roots += [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    roots.append(Path("/usr/local/cuda/include"))
    usable = [root for root in roots if (root / "cuda_bf16.h").is_file()]
    complete = (root for root in usable if (root / "crt" / "mma.h").is_file())  # a wheel of its own, at times missing
    cuda = next(complete, usable[0] if usable else None)
    if cuda is None:
        return (str(EVO_HEADERS),)
    cccl = (root / "cccl" for root in (cuda, *roots) if (root / "cccl" / "cuda").is_dir())
    return tuple(str(path) for path in (EVO_HEADERS, cuda, next(cccl, None)) if path)


def missing() -> str:
    """ "" when CUDA C++ can be built and disassembled here, else what to install."""
    from evo.fitness.cuda.sass import find_tool

    return "" if nvrtc_version() and len(include_paths()) > 1 and find_tool("nvdisasm") else INSTALL


def missing_assembler() -> str:
    """ "" when PTX can be built here, else what to install."""
    return "" if nvjitlink_version() else "pip install nvidia-nvjitlink"


def toolchain() -> str:
    """Compilers and versions, part of every build's key: "nvrtc 13.5.37", with nvJitLink's where it is installed.

    Raises `TargetError` where NVRTC is missing.
    """
    if not nvrtc_version():
        raise TargetError("NVRTC, the CUDA compiler library, is not installed here", fix=INSTALL)
    linker = nvjitlink_version()
    return f"nvrtc {nvrtc_version()}" + (f", nvjitlink {linker}" if linker else "")

"""One measurement at a time on a device, across all processes of a machine.

File locks, so that a killed process leaves none behind. On the CPU target building and timing compete for the same
cores: builders share the lock, the clock takes it alone, through a turnstile so that builders cannot starve it.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def _locked(name: str, mode: int) -> Iterator[None]:
    folder = Path(tempfile.gettempdir()) / "evo-locks"
    folder.mkdir(mode=0o777, exist_ok=True)
    with (folder / f"{name.replace(':', '-')}.lock").open("a") as file:
        fcntl.flock(file, mode)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def timing(device: str) -> Iterator[None]:
    """Holds the device alone."""
    with _locked(f"{device}-turnstile", fcntl.LOCK_EX), _locked(device, fcntl.LOCK_EX):
        yield


@contextmanager
def building(*, shared: bool, device: str = "cpu:0") -> Iterator[None]:
    """`shared`: the build runs on the device that is timed, so it waits while the clock runs."""
    if not shared:
        yield
        return
    with _locked(f"{device}-turnstile", fcntl.LOCK_EX):
        pass
    with _locked(device, fcntl.LOCK_SH):
        yield

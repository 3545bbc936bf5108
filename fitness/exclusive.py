"""One measurement at a time on a device, across all processes of a machine.

File locks, so that a killed process leaves none behind. On the CPU target building and timing compete for the same
cores: builders share the lock, the clock takes it alone, through a turnstile so that builders cannot starve it.
Who takes a lock alone may write into its file who that is, for those who wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from evo.errors import RunError

POLL_S = 0.005
FOLDER = Path(tempfile.gettempdir()) / "evo-locks"  # also of builders, which later get a temporary folder of their own
_OWNER = re.compile(rb"(\d{1,9}) ([0-9A-Za-z-]{0,64})")  # anybody may write into the file: nothing else is read


@dataclass(frozen=True, slots=True)
class Owner:
    """An evo process (not its worker) that has a device, and the run that it works on, "" where there is none."""

    pid: int
    run: str = ""


def owner(device: str) -> Owner | None:
    """Who has the device alone now; None where nobody has, or nobody knows."""
    with _open(_file(device)) as file:
        found = _OWNER.fullmatch(os.pread(file.fileno(), 100, 0))
    return Owner(int(found[1]), found[2].decode()) if found else None


@contextmanager
def _locked(
    name: str, mode: int, waiting: Callable[[], None] = lambda: None, who: Owner | None = None
) -> Iterator[None]:
    with _open(_file(name)) as file:
        while True:
            try:
                fcntl.flock(file, mode | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(POLL_S)
        try:
            _sign(file, who)
            yield
        finally:
            if who is not None:
                _sign(file, None)
            fcntl.flock(file, fcntl.LOCK_UN)


def _sign(file: IO[str], who: Owner | None) -> None:
    """In place of what is there, which may be of a process that was killed."""
    with contextlib.suppress(OSError):  # a full disk: nobody will know who it is, and the lock holds all the same
        if os.fstat(file.fileno()).st_size:
            os.ftruncate(file.fileno(), 0)
        if who is not None:
            os.write(file.fileno(), f"{who.pid} {who.run}".encode())


def _file(name: str) -> str:
    return f"{name.replace(':', '-')}.lock"


def folders() -> tuple[Path, Path]:
    """Where lock files lie: for all users of the machine, or else one's own."""
    return FOLDER, FOLDER.with_name(f"evo-locks-{os.getuid()}")


def _open(name: str) -> IO[str]:
    """A lock file that every user of the machine may lock; one's own where the shared folder is not usable."""
    for folder in folders():
        try:
            folder.mkdir(exist_ok=True)
            file = (folder / name).open("a+")
        except OSError:
            continue
        for path, mode in ((folder, 0o1777), (folder / name, 0o666)):
            with contextlib.suppress(PermissionError):  # somebody else's, and already so
                path.chmod(mode)
        return file
    raise RunError(f"no lock file {name!r} can be made in {FOLDER}", fix="set TMPDIR to a folder that you may write in")


def prepare() -> None:
    """Makes the folder of the lock files, for a process that may soon not do so any more."""
    _open("builders.lock").close()


@contextmanager
def timing(device: str, waiting: Callable[[], None] = lambda: None, who: Owner | None = None) -> Iterator[None]:
    """Holds the device alone; `waiting` is called while somebody else has it, `who` is what others are told then."""
    with _locked(f"{device}-turnstile", fcntl.LOCK_EX, waiting), _locked(device, fcntl.LOCK_EX, waiting, who):
        yield


@contextmanager
def building(waiting: Callable[[], None], *, shared: bool, device: str = "cpu:0") -> Iterator[None]:
    """`shared`: the build runs on the device that is timed, so it waits while the clock runs."""
    if not shared:
        yield
        return
    with _locked(f"{device}-turnstile", fcntl.LOCK_EX, waiting):
        pass
    with _locked(device, fcntl.LOCK_SH, waiting):
        yield

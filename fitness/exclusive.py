"""One measurement at a time on a device, across all processes of a machine.

File locks, so that a killed process leaves none behind. On the CPU target building and timing compete for the same
cores: builders share the lock, the clock takes it alone, through a turnstile so that builders cannot starve it.
Who takes a lock alone may write into its file who that is, for those who wait.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
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
_PLAIN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OWNER = re.compile(rb"(\d{1,9}) ([0-9A-Za-z-]{0,64})")  # anybody may write into the file: nothing else is read


@dataclass(frozen=True, slots=True)
class Owner:
    """An evo process (not its worker) that has a device, and the run that it works on, "" where there is none."""

    pid: int
    run: str = ""


def owner(device: str) -> Owner | None:
    """Who has the device alone now; None where nobody has, or nobody knows."""
    with _open(device)[0] as file:
        found = _OWNER.fullmatch(os.pread(file.fileno(), 100, 0))
    return Owner(int(found[1]), found[2].decode()) if found else None


@contextmanager
def _locked(
    name: str, mode: int, waiting: Callable[[], None] = lambda: None, who: Owner | None = None
) -> Iterator[str]:
    file, apart = _open(name)
    with file:
        while True:
            try:
                fcntl.flock(file, mode | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(POLL_S)
        try:
            _sign(file, who)
            yield apart
        finally:
            if who is not None:
                _sign(file, None)
            fcntl.flock(file, fcntl.LOCK_UN)


def _sign(file: IO[bytes], who: Owner | None) -> None:
    """In place of what is there, which may be of a process that was killed."""
    with contextlib.suppress(OSError):  # a full disk: nobody will know who it is, and the lock holds all the same
        if os.fstat(file.fileno()).st_size:
            os.ftruncate(file.fileno(), 0)
        if who is not None:
            os.pwrite(file.fileno(), f"{who.pid} {who.run}".encode(), 0)


def _places() -> tuple[tuple[Path, int], ...]:
    """Where lock files lie, with the folder's mode: for all users of the machine, or else one's own."""
    return (FOLDER, 0o1777), (FOLDER.with_name(f"evo-locks-{os.getuid()}"), 0o700)


def folders() -> list[Path]:
    """The folders of lock files that are there; a link in place of one may lead anywhere."""
    return [path for path, _ in _places() if path.is_dir() and not path.is_symlink()]


def _open(lock: str) -> tuple[IO[bytes], str]:
    """A lock file that every user of the machine may lock, and ""; else one's own, and what is wrong with the other."""
    name, apart = f"{lock.replace(':', '-')}.lock", ""
    for path, mode in _places():
        try:
            folder = _folder(path, mode)
            try:
                return os.fdopen(_regular(folder, name, mode & 0o666), "r+b", buffering=0), apart
            finally:
                os.close(folder)
        except OSError as error:
            why = "a symbolic link" if error.errno == errno.ELOOP else (error.strerror or str(error)).lower()
            apart = apart or (
                f"{path / name} is not usable ({why}), so only this user's evo waits for {lock}: "
                "another user's may measure on it at the same time"
            )
    raise RunError(f"no lock file {name!r} can be made in {FOLDER}", fix="set TMPDIR to a folder that you may write in")


def _folder(path: Path, mode: int) -> int:
    """Its descriptor: what stands at the path may be another a moment later. Raises `OSError`."""
    with contextlib.suppress(OSError):  # there already, or else opening it fails
        path.mkdir(mode)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not _set_mode(folder, mode) and path != FOLDER:
        os.close(folder)
        raise PermissionError(errno.EPERM, "another user's folder", str(path))
    return folder


def _regular(folder: int, name: str, mode: int) -> int:
    """The descriptor of a lock file. Anybody may have put a link, a pipe or a second name of a file there, and what is
    locked is written into: only a plain file will do. Raises `OSError`."""
    try:
        file = os.open(name, _PLAIN, dir_fd=folder)
    except FileNotFoundError:  # only then: where fs.protected_regular is set, O_CREAT refuses other users' files
        with contextlib.suppress(FileExistsError):  # somebody else was faster
            os.close(os.open(name, _PLAIN | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder))
        file = os.open(name, _PLAIN, dir_fd=folder)
    facts = os.fstat(file)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
        os.close(file)
        raise OSError(errno.EINVAL, "no plain file with one name", name)
    _set_mode(file, mode)
    return file


def _set_mode(place: int, mode: int) -> bool:
    """Whatever the umask made of it, where it is one's own: others have seen to theirs. Whether it is."""
    facts = os.fstat(place)
    own = facts.st_uid == os.geteuid()
    if own and stat.S_IMODE(facts.st_mode) != mode:
        with contextlib.suppress(PermissionError):  # a file system without modes
            os.fchmod(place, mode)
    return own


def prepare() -> None:
    """Makes the folder of the lock files, for a process that may soon not do so any more: also one's own, where these
    very files need it."""
    for name in ("cpu:0-turnstile", "cpu:0"):
        _open(name)[0].close()


@contextmanager
def timing(device: str, waiting: Callable[[], None] = lambda: None, who: Owner | None = None) -> Iterator[str]:
    """Holds the device alone; `waiting` is called while somebody else has it, `who` is what others are told then.

    Gives "", or in a sentence why other users' processes are not kept out.
    """
    with _locked(f"{device}-turnstile", fcntl.LOCK_EX, waiting), _locked(device, fcntl.LOCK_EX, waiting, who) as apart:
        yield apart


@contextmanager
def building(waiting: Callable[[], None], *, shared: bool, device: str = "cpu:0") -> Iterator[str]:
    """`shared`: the build runs on the device that is timed, so it waits while the clock runs. Gives the same."""
    if not shared:
        yield ""
        return
    with _locked(f"{device}-turnstile", fcntl.LOCK_EX, waiting):
        pass
    with _locked(device, fcntl.LOCK_SH, waiting) as apart:
        yield apart

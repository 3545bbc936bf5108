"""Lock files lie where every user of the machine may write: nothing that another one puts there leads evo elsewhere."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from evo.errors import RunError
from evo.fitness import exclusive
from evo.fitness.exclusive import Owner, building, timing

ME = Owner(4711, "run")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared folder; it is not there yet."""
    monkeypatch.setattr(exclusive, "FOLDER", tmp_path / "evo-locks")
    return tmp_path / "evo-locks"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of this user, which another one would like to have emptied, or opened to all."""
    file = tmp_path / "victim"
    file.write_text("precious")
    file.chmod(0o600)
    return file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def lock() -> None:
    with timing("cpu:0", who=ME):
        assert exclusive.owner("cpu:0") == ME
    exclusive.prepare()


def test_a_link_in_place_of_a_lock_file_is_not_followed(folder: Path, victim: Path) -> None:
    folder.mkdir()
    (folder / "cpu-0.lock").symlink_to(victim)
    lock()
    assert (victim.read_text(), mode(victim)) == ("precious", 0o600)


def test_a_second_name_of_a_file_is_no_lock_file(folder: Path, victim: Path) -> None:
    folder.mkdir()
    (folder / "cpu-0.lock").hardlink_to(victim)
    lock()
    assert (victim.read_text(), mode(victim)) == ("precious", 0o600)


def test_nothing_is_made_where_a_link_leads(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (folder / "cpu-0.lock").symlink_to(tmp_path / "made")
    lock()
    assert not (tmp_path / "made").exists()


def test_a_link_in_place_of_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    folder.symlink_to(private)
    lock()
    assert (mode(private), list(private.iterdir())) == (0o700, [])
    assert private not in [found.resolve() for found in exclusive.folders()], "and no builder may write there"


def test_ones_own_folder_is_not_another_users(folder: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o755)
    folder.write_text("in the way")
    folder.with_name(f"evo-locks-{os.getuid()}").symlink_to(private)
    with pytest.raises(RunError, match="no lock file 'cpu-0-turnstile.lock' can be made in "):
        lock()
    assert (mode(private), list(private.iterdir())) == (0o755, [])


def test_every_user_may_lock_what_is_made_and_only_its_owner_sets_the_mode(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock()
    file = folder / "cpu-0.lock"
    assert (mode(folder), mode(file)) == (0o1777, 0o666)
    folder.chmod(0o755)
    file.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    lock()
    assert (mode(folder), mode(file)) == (0o755, 0o644)


def spoil(folder: Path, how: str) -> None:
    folder.mkdir()
    place = folder / "cpu-0.lock"
    if how == "fifo":
        os.mkfifo(place)
    elif how == "folder":
        place.mkdir()
    else:
        place.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("how", "why"),
    [("fifo", "no plain file with one name"), ("folder", "is a directory"), ("link", "a symbolic link")],
)
def test_a_lock_that_is_only_ones_own_is_said(folder: Path, how: str, why: str) -> None:
    with timing("cpu:0") as apart:
        assert apart == ""
    shutil.rmtree(folder)
    spoil(folder, how)
    with timing("cpu:0") as apart:
        assert apart == (
            f"{folder}/cpu-0.lock is not usable ({why}), so only this user's evo waits for cpu:0: "
            "another user's may measure on it at the same time"
        )
    with building(lambda: None, shared=True) as apart:
        assert apart


def test_what_another_user_made_is_opened_and_not_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fs.protected_regular is set, O_CREAT is refused for another user's file in a sticky folder."""
    lock()
    opened, given = os.open, list[int]()

    def protected(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            given.append(flags)
            if flags & os.O_CREAT:
                raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", protected)
    with timing("cpu:0") as apart:
        assert (apart, bool(given)) == ("", True)


def test_two_that_make_a_lock_file_at_once_have_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, raced = os.open, list[str]()

    def late(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT and dir_fd is not None:
            raced.append(path)
            os.close(opened(path, flags, mode, dir_fd=dir_fd))  # somebody else is faster
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", late)
    with timing("cpu:0") as apart:
        assert (apart, raced) == ("", ["cpu-0-turnstile.lock", "cpu-0.lock"])

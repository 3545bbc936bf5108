"""What becomes of a run that does not come to its end: noted in its archive, and told with the way to go on."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evo.archive import Archive, RunState
from evo.errors import ArchiveError, DeviceLostError

DEFAULT = "evo.db"


def named(archive: Archive) -> str:
    """The option that names an archive in a command, "" for the default one."""
    where = str(archive.place)
    if isinstance(archive.place, Path) and archive.place.absolute().is_relative_to(Path.cwd()):
        where = str(archive.place.absolute().relative_to(Path.cwd()))
    return "" if where == DEFAULT else f" --archive {shlex.quote(where)}"


@contextmanager
def resumable(archive: Archive, run: str) -> Iterator[None]:
    """Passes on what is raised in the body, with `evo resume RUN` where it does not say so itself.

    An archive that fails (full disk, locked) may not take the note either: the first error is then the one to tell, and
    a run that is still "running" can be resumed just as well.
    """

    command = f"evo resume {run}{named(archive)}"

    def note(state: RunState) -> None:
        with contextlib.suppress(ArchiveError):
            archive.finish_run(run, state)

    try:
        yield
    except KeyboardInterrupt:
        note("stopped")
        raise KeyboardInterrupt(f"`{command}` goes on with it") from None
    except DeviceLostError as error:  # a pause: the search's state is that of its last turn
        note("stopped")
        fix = f"{error.fix}; once the device is back, `{command}` goes on with the run"
        raise DeviceLostError(error.what, fix=fix) from error
    except ArchiveError as error:
        note("failed")
        raise ArchiveError(error.what, fix=f"{error.fix}; then `{command}` goes on") from error
    except BaseException:
        note("failed")  # `evo resume` may still go on with it
        raise

"""What becomes of a run that does not come to its end: noted in its archive, and told with the way to go on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from evo.archive import Archive, RunState
from evo.errors import ArchiveError, DeviceLostError


@contextmanager
def resumable(archive: Archive, run: str) -> Iterator[None]:
    """Passes on what is raised in the body, with `evo resume RUN` where it does not say so itself.

    An archive that fails (full disk, locked) may not take the note either: the first error is then the one to tell, and
    a run that is still "running" can be resumed just as well.
    """

    def note(state: RunState) -> None:
        with contextlib.suppress(ArchiveError):
            archive.finish_run(run, state)

    try:
        yield
    except KeyboardInterrupt:
        note("stopped")
        raise KeyboardInterrupt(f"`evo resume {run}` goes on with it") from None
    except DeviceLostError as error:  # a pause: the search's state is that of its last turn
        note("stopped")
        fix = f"{error.fix}; once the device is back, `evo resume {run}` goes on with the run"
        raise DeviceLostError(error.what, fix=fix) from error
    except ArchiveError as error:
        note("failed")
        raise ArchiveError(error.what, fix=f"{error.fix}; then `evo resume {run}` goes on") from error
    except BaseException:
        note("failed")  # `evo resume` may still go on with it
        raise

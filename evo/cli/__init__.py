"""The command line. Nothing heavy is imported before a command runs, so that `evo --help` is instant."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Entry point of the command `evo`. Exit status: 0 done, 1 the run failed, 2 usage, 130 interrupted."""
    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # who started evo may want it to be ignored
            signal.signal(signal.SIGTERM, _interrupt)
        from evo.cli.root import app

        app(prog_name="evo")
    except KeyboardInterrupt:  # while importing; a command's own is handled by the app
        sys.stderr.write("interrupted\n")
        sys.exit(130)


def _interrupt(number: int, frame: object) -> None:
    """SIGTERM as Ctrl-C: what was begun is noted and closed. `timeout` sends it twice, and the second one must not end
    that; Ctrl-C still does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt

"""The command line. Nothing heavy is imported before a command runs, so that `evo --help` is instant."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the command `evo`. Exit status: 0 done, 1 the run failed, 2 usage, 130 interrupted."""
    try:
        from evo.cli.root import app

        app(prog_name="evo")
    except KeyboardInterrupt:  # while importing; a command's own is handled by the app
        sys.stderr.write("interrupted\n")
        sys.exit(130)

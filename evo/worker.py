"""A worker process: `python -m evo.worker`. Reads tasks on standard input, answers on standard output, JSON lines.

One kind builds; the other owns one device. Each answer line is a sign of life ({"beat": ...}) or an outcome.
"""

from __future__ import annotations

import os
import sys

from evo.fitness.serve import Worker
from evo.plugins.manager import Plugins


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    plugins = Plugins.load()
    Worker(plugins.target, plugins.operator, answers).serve(sys.stdin.buffer)


if __name__ == "__main__":
    main()

"""Compiled code that the device's worker will load, kept in memory as well: the build cache may be deleted at any time.

A worker that replaces another one loads the oracle and the opponents again, minutes or hours after they were built.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator

from evo.fitness.cache import BuildCache
from evo.fitness.tasks import BuildTask, CalibrateTask, Subject, Task
from evo.records import Build

MOST_BYTES = 128 << 20  # of candidates' code, the latest; that of a case is some ten to a hundred KB


class Keeper:
    """Of one cache. What the last calibration needs is kept for good, candidates' code while there is room."""

    def __init__(self, cache: BuildCache) -> None:
        self._cache = cache
        self._latest: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._pinned: dict[str, bytes] = {}

    def keep(self, build: Build) -> None:
        """Called as soon as it is built. What has gone already is not kept: whoever needs it will say so."""
        if not build.blob or build.blob in self._latest:
            return
        try:
            data = self._cache.blobs.get(build.blob)
        except OSError:
            return
        self._latest[build.blob] = data
        self._bytes += len(data)
        while self._bytes > MOST_BYTES:
            self._bytes -= len(self._latest.popitem(last=False)[1])

    def restore(self, task: Task) -> None:
        """Puts back what this task needs and the cache lost. Where that fails, the worker that loads it says why."""
        if isinstance(task, BuildTask):
            return
        needed = {build.blob: self._find(build.blob) for subject in _subjects(task) for build in subject.code.values()}
        if isinstance(task, CalibrateTask):
            self._pinned = {name: data for name, data in needed.items() if data}
        for name, data in (self._pinned | needed).items():  # a worker loads the oracle for a case when it comes to it
            if data and not (self._cache.blobs.root / name).exists():
                with contextlib.suppress(OSError):
                    self._cache.blobs.put(data)

    def _find(self, name: str) -> bytes:
        return self._pinned.get(name) or self._latest.get(name, b"")


def _subjects(task: Task) -> Iterator[Subject]:
    if isinstance(task, CalibrateTask):
        yield from filter(None, (task.oracle, *task.opponents.values()))
    elif not isinstance(task, BuildTask):
        yield task.subject

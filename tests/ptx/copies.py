"""What a warp or a lane has in flight, in committed groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Landing = Callable[[], None]


class Groups:
    """Things in flight that land when a group is waited for, or any time before."""

    def __init__(self) -> None:
        self._open: list[Landing] = []
        self._committed: deque[list[Landing]] = deque()
        self.committed = 0  # groups, ever

    def issue(self, landing: Landing) -> None:
        self._open.append(landing)

    def commit(self) -> None:
        self._committed.append(self._open)
        self._open = []
        self.committed += 1

    def wait(self, left: int) -> None:
        """Lands all but the `left` youngest committed groups."""
        while len(self._committed) > left:
            for land in self._committed.popleft():
                land()

    def land(self) -> None:
        """Lands everything, in order; the groups stay to be counted."""
        for group in (*self._committed, self._open):
            for land in group:
                land()
            group.clear()

"""The archive of runs, candidates, measurements and where they came from: typed records over one SQLite file."""

from evo.archive.queries import lineage, show, top
from evo.archive.store import Archive
from evo.archive.views import Elite, LineageNode, ProposalView, RunRecord, RunState, Shown, TopRow

__all__ = [
    "Archive",
    "Elite",
    "LineageNode",
    "ProposalView",
    "RunRecord",
    "RunState",
    "Shown",
    "TopRow",
    "lineage",
    "show",
    "top",
]

"""The archive of runs, candidates, measurements and where they came from: typed records over one SQLite file."""

from evo.archive.lineage import lineage
from evo.archive.queries import other_boards, show, top
from evo.archive.store import Archive
from evo.archive.views import BoardCount, Elite, LineageNode, ProposalView, RunRecord, RunState, Shown, TopRow

__all__ = [
    "Archive",
    "BoardCount",
    "Elite",
    "LineageNode",
    "ProposalView",
    "RunRecord",
    "RunState",
    "Shown",
    "TopRow",
    "lineage",
    "other_boards",
    "show",
    "top",
]

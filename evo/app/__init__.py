"""What the command line and other programs call: one function a verb."""

from evo.app.archived import archive_lineage, archive_runs, archive_show, archive_top
from evo.app.listing import list_baselines, list_operators, list_targets
from evo.app.running import Settings, resume, run
from evo.app.single import bench, check

__all__ = [
    "Settings", "archive_lineage", "archive_runs", "archive_show", "archive_top", "bench", "check", "list_baselines",
    "list_operators", "list_targets", "resume", "run",
]  # fmt: skip

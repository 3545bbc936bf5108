"""Nsight Compute on one candidate, from a genome file or an archive."""

from __future__ import annotations

from evo.app.trust.sanitize import built
from evo.fitness.cuda.profile import Profile
from evo.fitness.cuda.profile import profile as run_profiler


def counters(identity: str, *, target: str = "auto", archive: str = "evo.db", limit_s: float = 120.0) -> Profile:
    """Builds a candidate and counts what the device did in one call. `identity`: a genome file, or the id of an
    archive's candidate or its beginning. Raises `UsageError`."""
    return run_profiler(*built(identity, target, {}, (), archive), limit_s=limit_s)

"""`evo archive front`: candidates that nobody beats in speed, registers, workspace and precision at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from evo.app.memory.effects import case_facts, only_case
from evo.archive import Archive, ranking
from evo.archive.evaluations import load_evaluations
from evo.archive.proposals import load_candidates
from evo.dtypes import numpy_dtype
from evo.errors import GenomeError
from evo.genome import Genome, Uncovered, objection, resolve_plan, uncovered
from evo.operator import Operator
from evo.plugins.manager import Plugins
from evo.records import Candidate, DeviceFacts, Evaluation, Status
from evo.report.front import FrontRow

LOOKED_AT = 300  # the best of the newest board


def archive_front(
    archive: str, operator: str, target: str, case: str | None = None, limit: int = LOOKED_AT
) -> list[FrontRow]:
    """The front among the best candidates of the newest ranking (in one case, if it is named), fastest first; hold-out
    cases do not count."""
    plugins = Plugins.load()
    known, facts = plugins.operator(operator), plugins.target(target).nominal()
    allowed = case_facts(known, target)
    if case is not None:
        allowed = only_case(known, target, allowed, case)
    with Archive.open(archive, create=False, readonly=True) as store, store.reading() as connection:
        shown = ranking.newest(connection, ranking.boards(connection, operator=operator, target=target), "")[0]
        places = [place for board in shown[:1] for place in ranking.places(connection, board, case=case, limit=limit)]
        candidates = {}
        for place in places:
            candidates.update(load_candidates(connection, [place.candidate]))
        rows = [
            _row(known, facts, candidates[place.candidate], load_evaluations(connection, "id", place.id)[0], allowed)
            for place in places
        ]
    return front([row for row in rows if row.cases])


def front(rows: Sequence[FrontRow]) -> list[FrontRow]:
    """Rows that no other row beats: as good in everything and better in something. Errors count by class, half a
    decade each: within one they differ by the inputs that were drawn."""

    def costs(row: FrontRow) -> tuple[float, float, float, float, float]:
        return -row.ratio, -row.cases, row.registers, row.workspace_bytes, _class(row.error_rms)

    table = [costs(row) for row in rows]

    def beaten(mine: tuple[float, ...]) -> bool:
        return any(other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in table)

    return [row for row, mine in zip(rows, table, strict=True) if not beaten(mine)]


def _class(error_rms: float) -> float:
    return round(2 * math.log10(error_rms)) if error_rms > 0 else -math.inf


def _row(
    operator: Operator, facts: DeviceFacts, candidate: Candidate, evaluation: Evaluation, allowed: Mapping[str, object]
) -> FrontRow:
    results = [r for r in evaluation.cases if r.status is Status.OK and r.timing and r.case in allowed]
    logs = [math.log(r.timing.ratio) for r in results if r.timing]
    kernels = [kernel for build in evaluation.builds for kernel in build.kernels]
    return FrontRow(
        candidate.id, candidate.species, dict(candidate.values), math.exp(sum(logs) / len(logs)) if logs else 0.0,
        len(logs), max((kernel.registers for kernel in kernels), default=0),
        _workspace(operator, facts, candidate, [r.case for r in results]),
        max((r.deviation.rms for r in results if r.deviation), default=math.nan), evaluation.purpose,
    )  # fmt: skip


def _workspace(operator: Operator, facts: DeviceFacts, candidate: Candidate, names: Sequence[str]) -> int:
    """Bytes of scratch in the case that needs most; 0 where the genome cannot be read any more."""
    try:
        genome = Genome.parse(candidate.source, candidate.suffix)
        values = genome.values(candidate.values)
        if objection(genome, values, facts):
            return 0
        most = 0
        for case in operator.cases(candidate.target):
            if case.name in names and not uncovered(genome, operator, case, values, facts):
                plan = resolve_plan(genome, operator, case, values, facts)
                most = max(most, sum(int(np.prod(s.shape)) * numpy_dtype(s.dtype).itemsize for s in plan.scratch))
    except (GenomeError, Uncovered):
        return 0
    return most

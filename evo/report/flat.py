"""What has parts, as rows of a table that other programs read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from evo.archive.views import Shown


def case_rows(shown: Shown) -> list[dict[str, Any]]:
    """The cases of all evaluations, a row each; of a run its best rows."""
    if shown.kind == "run":
        return [{"candidate": row.candidate, "case": row.case, "ratio": row.ratio, "low": row.low, "high": row.high,
                 "time_us": row.time_us, "score": row.score, "evaluation": row.evaluation}
                for row in shown.top]  # fmt: skip
    return list(_cases(shown))


def _cases(shown: Shown) -> Iterable[dict[str, Any]]:
    for evaluation in shown.evaluations:
        for case in evaluation.cases:
            timing, deviation = case.timing, case.deviation
            yield {
                "candidate": evaluation.candidate, "evaluation": evaluation.id, "purpose": str(evaluation.purpose),
                "case": case.case, "status": str(case.status), "protocol": timing and timing.protocol,
                "opponent": timing and timing.opponent, "time_us": timing and timing.time_us,
                "opponent_us": timing and timing.opponent_us, "ratio": timing and timing.ratio,
                "low": timing and timing.low, "high": timing and timing.high, "pairs": timing and timing.pairs,
                "error_rms": deviation and deviation.rms, "error_max": deviation and deviation.max,
            }  # fmt: skip

"""Hands the portfolio back as genome files, each with its gene values as defaults, so that `evo check FILE` is it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from evo import codec
from evo.engine.result import Result
from evo.genome import with_defaults
from evo.records import Candidate

PORTFOLIO = "portfolio.json"


def write_holdout(folder: Path, result: Result) -> None:
    """The hold-out rows beside the winners, where there are any; the archive does not have them."""
    if result.holdout:
        rows = [codec.plain(row) for row in result.holdout]
        (folder / "holdout.json").write_text(json.dumps(rows, indent=2) + "\n")


def write_winners(folder: Path, result: Result, candidates: Mapping[str, Candidate]) -> Path | None:
    """One file a distinct candidate and `portfolio.json`, which maps cases to files; None when nothing was right."""
    held = [case for case in result.cases if case.candidate]
    if not held:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    for case in held:
        candidate = candidates[case.candidate]
        files[candidate.id] = f"{candidate.species}-{candidate.id[:8]}{candidate.suffix}"
        (folder / files[candidate.id]).write_text(with_defaults(candidate.source, candidate.values))
    portfolio = {
        case.case: {
            "file": files[case.candidate], "candidate": case.candidate, "values": dict(case.values or {}),
            "time_us": case.best_us, "yardstick_us": case.yardstick_us, "ratio": case.ratio, "low": case.low,
            "high": case.high, "measured_again": case.final, "sessions": case.sessions,
            "search_said": case.searched_ratio,
        }
        for case in held
    }  # fmt: skip
    (folder / PORTFOLIO).write_text(json.dumps(portfolio, indent=2) + "\n")
    return folder

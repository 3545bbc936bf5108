"""How many candidates a minute go from proposal to archived verdict, and where the time goes.

    python benchmarks/candidates_per_minute.py --target sm_90 --minutes 1 --out result.json

Runs a real search (no seeds from an archive) over three cases and reads everything back from its archive.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import Counter
from pathlib import Path

from evo import app
from evo.archive import Archive
from evo.records import Purpose, Status

CASES = ("bf16-32768x1024", "bf16-32768x4096", "bf16-32768x16384")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = str(Path(folder) / "evo.db")
        settings = app.Settings(
            "rmsnorm", options.target, f"minutes={options.minutes}", tuple(options.cases), options.seed, True, archive
        )
        marks: list[tuple[float, int, str]] = []
        result = app.run(settings, lambda p: marks.append((p.seconds, p.evaluated + p.duplicates, p.phase)))
        with Archive.open(archive) as store:
            found = [e for e in store.evaluations(result.run) if e.purpose is Purpose.SEARCH]
    begun = next(at for at, count, _ in marks if count > 0)
    ended = max(at for at, _, phase in marks if phase != "finals")
    stages = {name: [e.seconds[name] for e in found if name in e.seconds] for name in ("build", "check", "time")}
    report = {
        "device": result.device, "target": result.target, "cases": options.cases, "search_seconds": ended - begun,
        "verdicts": len(found), "per_minute": 60 * len(found) / (ended - begun),
        "statuses": Counter(str(e.status) for e in found),
        "not_ok": Counter(e.diagnosis.message[:200] for e in found if e.status is not Status.OK and e.diagnosis),
        "duplicates": sum(bool(e.duplicate_of) for e in found),
        "stage_seconds": {n: {"total": sum(v), "median": statistics.median(v)} for n, v in stages.items() if v},
        "until_first_verdict_s": begun,
    }  # fmt: skip
    for key, value in report.items():
        print(f"{key:22} {value}")
    if options.out:
        options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()

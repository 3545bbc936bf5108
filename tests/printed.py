"""What tests of reports share: printing without a terminal, and an evaluation."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from evo.records import Build, CaseResult, Deviation, Diagnosis, Evaluation, Kernel, Purpose, Stage, Status, Timing

RUN = "0192f3a4-5b6c-7000-8000-000000000000"
FIRST, SECOND = "a1" * 32, "b2" * 32


def rendered(part: Any, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(part, crop=False)
    return console.export_text()


def squeezed(part: Any, width: int = 80) -> list[str]:
    return [" ".join(line.split()) for line in rendered(part, width).splitlines()]


def evaluation(**changes: Any) -> Evaluation:
    kernel = Kernel("rmsnorm_forward", (8, 8), registers=40, spill_bytes=16, shared_bytes=49152)
    build = Build("k", Status.OK, "nvrtc 13.0", 0.1, code_hash="c3" * 32, kernels=(kernel,))
    timing = Timing("rotation", "torch", 38.121, 39.424, 1.0342, 1.0313, 1.0371, 0.95, 60, "fixed", light_us=30.9)
    cases = (
        CaseResult("m8-n256", Status.OK, Deviation(1.25e-3, 2.5e-3), timing),
        CaseResult(
            "m8-n300", Status.UNCOVERED, diagnosis=Diagnosis(Stage.PLAN, "N % 256 == 0 does not hold", "m8-n300")
        ),
    )
    base = Evaluation(
        RUN, "", FIRST, Purpose.FINAL, "torch", "cuda:0", Status.OK, None, (build, build), cases, {"build": 0.12}
    )
    return replace(base, **changes)

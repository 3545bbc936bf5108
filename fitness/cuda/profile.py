"""NVIDIA's Nsight Compute on a candidate: a few counters that say what limits it.

As with compute-sanitizer a process of its own makes the calls, in which nothing of evo's but the launches runs. Clocks
are left alone, so the tool's times are no measurements of evo's; caches are cold, as the tool makes them.
"""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from evo.errors import UsageError
from evo.fitness.cuda.sanitizer import run_under, tensor_bytes, write_job
from evo.fitness.tasks import Subject
from evo.operator import Case, Operator
from evo.records import DeviceFacts

INSTALL = "install NVIDIA's Nsight Compute (part of the CUDA toolkit), or add the folder of ncu to PATH"
DENIED = "ERR_NVGPUCTRPERM"
PERMIT = "this user may not read the GPU's counters (ERR_NVGPUCTRPERM): its administrator can permit it"
MOST_BYTES = 512 << 20  # of a case's tensors, which travel as files
MOST_KERNELS, MOST_STALLS = 4, 3  # that are told

TIME = "gpu__time_duration.sum"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
SHARES = {  # per cent
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM at {} % of its peak",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SMs at {} % of theirs",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "instructions issued in {} % of the cycles",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy {} %",
    "lts__t_sector_hit_rate.pct": "{} % of L2 accesses hit",
}
_STALL, _RATIO = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
STALLS = tuple(
    f"{_STALL}{reason}{_RATIO}"
    for reason in ("barrier", "branch_resolve", "lg_throttle", "long_scoreboard", "math_pipe_throttle", "membar",
                   "mio_throttle", "no_instruction", "not_selected", "short_scoreboard", "sleeping", "wait")
)  # fmt: skip
METRICS = (TIME, READ, WRITTEN, *SHARES, *STALLS)


@dataclass(frozen=True, slots=True)
class KernelCounters:
    """One launch: values by metric, in the tool's base units (bytes, ns, per cent)."""

    kernel: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Profile:
    """The launches of one call in a case; `missing` says why there are none."""

    case: str
    kernels: tuple[KernelCounters, ...] = ()
    missing: str = ""

    def text(self) -> str:
        """For a prompt: a line for each launch."""
        return "\n".join(f"{self.case}: {_told(kernel)}" for kernel in self.kernels[:MOST_KERNELS])


def find_tool() -> str:
    """The path of ncu, "" where there is none."""
    roots = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    places = [Path(root) / "bin" / "ncu" for root in roots if root]
    return shutil.which("ncu") or next((str(path) for path in places if path.is_file()), "")


def profile(subject: Subject, operator: Operator, facts: DeviceFacts, *, limit_s: float = 120.0) -> Profile:
    """Counters of a built candidate in the largest case of up to `MOST_BYTES` that it was built for.

    Nothing else should run on the device meanwhile. Raises `UsageError` where no case is small enough.
    """
    known = [case for case in operator.cases(facts.target) if case.name in subject.builds]
    sized = [(size, case) for case in known if (size := tensor_bytes(operator, case)) <= MOST_BYTES]
    if not sized:
        raise UsageError("no case of the candidate is small enough", fix=f"it must have {MOST_BYTES >> 20} MiB at most")
    _, case = max(sized, key=lambda pair: pair[0])
    program = find_tool()
    if not program:
        return Profile(case.name, missing=f"ncu is not here: {INSTALL}")
    with tempfile.TemporaryDirectory(prefix="evo-profile-") as name:
        return _run(program, Path(name), subject, operator, facts, case, limit_s)


def _run(
    program: str, folder: Path, subject: Subject, operator: Operator, facts: DeviceFacts, case: Case, limit_s: float
) -> Profile:
    write_job(folder, subject, operator, facts, [(case, case.name)], seed=0)
    log = folder / "ncu.csv"
    command = [program, "--csv", "--print-units", "base", "--clock-control", "none", "--log-file", str(log)]
    late, said = run_under([*command, "--metrics", ",".join(METRICS)], folder, limit_s)
    text = log.read_text(errors="replace") if log.exists() else ""
    kernels = parse(text)
    if late or not kernels:
        why = late or (PERMIT if DENIED in text + said else (text.strip() or said or "it said nothing")[-500:])
        return Profile(case.name, missing=f"ncu gave no counters: {why}")
    return Profile(case.name, tuple(kernels))


def parse(text: str) -> list[KernelCounters]:
    """Launches out of what `ncu --csv` prints: a row for each metric of each launch, among lines that begin with ==."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(lines):
        kernel, values = found.setdefault(row.get("ID") or "", (row.get("Kernel Name") or "", {}))
        number = (row.get("Metric Value") or "").replace(",", "")  # thousands have commas in some locales
        try:
            values[row.get("Metric Name") or ""] = float(number)
        except ValueError:  # "n/a": this device does not count it
            continue
    return [KernelCounters(kernel.partition("(")[0], values) for kernel, values in found.values() if values]


def _told(launch: KernelCounters) -> str:
    values = launch.values
    parts = [f"{values[TIME] / 1e3:.4g} us under the profiler"] if TIME in values else []
    if READ in values and WRITTEN in values:
        parts.append(f"DRAM {values[READ] / 1e6:.4g} MB read, {values[WRITTEN] / 1e6:.4g} MB written")
    parts += [words.format(f"{values[name]:.0f}") for name, words in SHARES.items() if name in values]
    if stalls := list(_stalls(values)):
        parts.append(f"warps wait most for (warps in each issue): {', '.join(stalls)}")
    return f"{launch.kernel}: {'; '.join(parts)}"


def _stalls(values: Mapping[str, float]) -> Iterable[str]:
    seen = [name for name in STALLS if values.get(name, 0.0) > 0]
    for name in sorted(seen, key=lambda name: -values[name])[:MOST_STALLS]:
        yield f"{name.removeprefix(_STALL).removesuffix(_RATIO)} {values[name]:.2g}"

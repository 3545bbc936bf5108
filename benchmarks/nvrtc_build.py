"""How long a CUDA genome takes from source to inspected cubin, on one core, and what a disassembly adds.

    python benchmarks/nvrtc_build.py [FILE.cu ...] [--target sm_90] [--repeats 30] [--out result.json]

Without files: every CUDA seed of RMSNorm that builds for the target. Each is built with its default gene values for the
first case that it covers. The first build of the process, which loads the compiler, is reported apart.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from evo.fitness.cuda.build import inspect_code
from evo.fitness.cuda.target import CudaTarget
from evo.genome import Genome, compile_request, uncovered
from evo.plugins.manager import Plugins
from evo.records import CompileRequest, Status
from evo.target import BlobStore

SEEDS = Path(__file__).parent.parent / "operators" / "rmsnorm" / "seeds"


def request_of(path: Path, target: CudaTarget, plugins: Plugins) -> tuple[str, CompileRequest]:
    """(case, request) for the first case that the genome's defaults cover."""
    genome = Genome.read(path)
    operator = plugins.operator(genome.operator)
    values = genome.defaults()
    for case in operator.cases(target.name):
        if not uncovered(genome, operator, case, values, target.nominal()):
            return case.name, compile_request(genome, operator, case, values, target=target.name, arch=target.arch)
    raise SystemExit(f"{path}: its default gene values cover no case of {operator.name} on {target.name}")


def milliseconds(action: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median, 90th percentile and largest of the wall time; and this process's CPU time, which a busy machine hardly
    changes (a disassembly runs in a process of its own and is not in it)."""
    wall, cpu = [], []
    for _ in range(repeats):
        started, worked = time.perf_counter(), time.process_time()
        action()
        wall.append(1e3 * (time.perf_counter() - started))
        cpu.append(1e3 * (time.process_time() - worked))
    return {
        "median_ms": statistics.median(wall), "p90_ms": statistics.quantiles(wall, n=10)[-1], "max_ms": max(wall),
        "cpu_median_ms": statistics.median(cpu),
    }  # fmt: skip


def measure(path: Path, target: CudaTarget, plugins: Plugins, blobs: BlobStore, repeats: int) -> dict[str, object]:
    """One row of the report. The first build of each source is not counted in its medians."""
    case, request = request_of(path, target, plugins)
    first = target.build(request, blobs)
    if first.status is not Status.OK:
        raise SystemExit(f"{path}: {first.status}: {first.diagnosis}")
    return {
        "file": path.name,
        "case": case,
        "first_ms": 1e3 * first.seconds,
        "build": milliseconds(lambda: target.build(request, blobs), repeats),
        "disassembly": milliseconds(lambda: inspect_code(first, blobs), max(2, repeats // 6)),
        "registers": max(kernel.registers for kernel in first.kernels),
    }


def print_table(rows: Sequence[dict[str, object]], title: str) -> None:
    table = Table(title=title)
    for heading in ("seed", "case", "first", "median", "p90", "CPU", "nvdisasm", "registers"):
        table.add_column(heading, justify="left" if heading in ("seed", "case") else "right", overflow="fold")
    for row in rows:
        build, disassembly = row["build"], row["disassembly"]
        assert isinstance(build, dict)
        assert isinstance(disassembly, dict)
        times = [row["first_ms"], build["median_ms"], build["p90_ms"], build["cpu_median_ms"], disassembly["median_ms"]]
        table.add_row(str(row["file"]), str(row["case"]), *(f"{value:.1f}" for value in times), str(row["registers"]))
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error(f"--repeats {options.repeats}: a percentile needs at least 2")
    target = CudaTarget(options.target)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # NVRTC itself is single-threaded; keep it on one core
    files = options.files or [
        path for path in sorted(SEEDS.glob("*.cu")) if target.arch in (Genome.read(path).arch or (target.arch,))
    ]
    plugins = Plugins.load(entry_points=False)
    with tempfile.TemporaryDirectory() as folder:
        blobs = BlobStore(Path(folder))
        rows = [measure(path, target, plugins, blobs, options.repeats) for path in files]
    print_table(rows, f"{target.arch}, {target.toolchain()}, {options.repeats} builds each, ms")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report = {"target": target.name, "toolchain": target.toolchain(), "rows": rows, "peak_rss_mib": peak_mib}
    text = json.dumps(report, indent=2)
    if options.out:
        options.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()

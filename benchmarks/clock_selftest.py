"""Is the clock true? Twins, a known slow-down, protocols side by side, flushes, and what cache policies win.

    python benchmarks/clock_selftest.py --out result.json [--quick]

(a) an identical twin, loaded as a module of its own: 99 % intervals must contain 1; (b) a twin that does 1 % more rows;
(c) the same pair under every protocol; (d) read flush against write flush against none; (e) whether lines that a kernel
marked as persisting survive a flush, and whether cache-policy genes win under one protocol and lose under another.
Needs a GPU; under five minutes. The JSON holds all raw samples. With --loaded, instead: (f) twins of a KDA kernel,
whose tensor-core work makes a chip move its clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clock_policies import flush_effects, gene_effects, survival

from evo import ids
from evo.app.stand import choose_target
from evo.fitness.cache import BuildCache
from evo.fitness.calibration import ORACLE, build_subjects
from evo.fitness.cuda.machine import CudaMachine
from evo.fitness.executor import LocalExecutor
from evo.fitness.layout import oracle_case
from evo.fitness.session import Session
from evo.fitness.tasks import CalibrateTask, Subject, TimeTask
from evo.genome import Genome
from evo.operator import Case, Operator
from evo.plugins.manager import Plugins
from evo.records import Status, Timing
from evo.target import Target

ROWS = 32768
TWIN_COLUMNS = (512, 2048, 4096)  # about 22, 65 and 130 us on an H200
COLUMNS = (256, 512, 1024, 2048, 4096)
PAIRS = 40
SLOWER = 40 / 4096  # tiles that the slow twin computes again, of 4096
# A warp a row, eight rows a block. The last blocks compute the first rows again: those are the ones longest out of the
# cache, so that EXTRA in a thousand more rows are that much more work.
SOURCE = r"""/* evo
operator = "rmsnorm"
species  = "selftest-NAME"
summary  = "a warp a row, EXTRA in a thousand of the rows twice"
static   = ["N"]

[let]
TILES = "ceildiv(M, 8)"

[constraints]
all = ["N % 256 == 0", "itemsize_x == 2", "itemsize_y == 2"]

[[launch]]
kernel = "NAME"
grid   = ["TILES + TILES * EXTRA // 1000"]
block  = [256]
args   = ["x", "weight", "y", "i32:M", "eps"]
*/
#include "evo.h"
using X = evo_words<DTYPE_x>;
using Y = evo_words<DTYPE_y>;

extern "C" __global__ void __launch_bounds__(256)
    NAME(const DTYPE_x* x, const float* weight, DTYPE_y* y, int rows, float eps) {
    constexpr int STEPS = DIM_N / 256;
    const int tiles = (rows + 7) / 8, lane = threadIdx.x % 32;
    const int tile = (int)blockIdx.x < tiles ? blockIdx.x : blockIdx.x - tiles;
    const long long row = 8ll * tile + threadIdx.x / 32;
    if (row >= rows) return;
    const uint4* from = reinterpret_cast<const uint4*>(x + row * DIM_N);
    uint4* to = reinterpret_cast<uint4*>(y + row * DIM_N);
    uint4 held[STEPS];
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) held[s] = from[32 * s + lane];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const unsigned words[4] = {held[s].x, held[s].y, held[s].z, held[s].w};
        float values[8];
        X::unpack(words, values);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(values[i], values[i], sum);
    }
    const float root = 1.0f / sqrtf(evo_sum<32>(sum) * (1.0f / DIM_N) + eps);
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        unsigned words[4] = {held[s].x, held[s].y, held[s].z, held[s].w};
        float values[8];
        X::unpack(words, values);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] *= root * weight[256 * s + 8 * lane + i];
        Y::pack(values, words);
        to[32 * s + lane] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}
"""


def genome(name: str, extra: int = 0) -> Genome:
    return Genome.parse(SOURCE.replace("NAME", name).replace("EXTRA", str(extra)), ".cu")


GENOMES = {"plain": genome("plain"), "twin": genome("twin"), "slow": genome("slow", 10)}


def build(
    operator: Operator, target: Target, cases: Sequence[Case], genomes: Mapping[str, Genome] = GENOMES
) -> tuple[dict[str, Subject], Subject]:
    """The genomes and the oracle, built in builder processes."""
    executor = LocalExecutor(target.devices() or [target.nominal()])
    try:
        subjects = build_subjects(executor, operator, target, cases, genomes)
        path = operator.oracle(target.name)
        assert path, "the operator has an oracle on every GPU"
        truths = [oracle_case(operator, case) for case in cases]
        return subjects, build_subjects(executor, operator, target, truths, {ORACLE: Genome.read(path)})[ORACLE]
    finally:
        executor.close()


class Bench:
    """Times the genome called `plain` against another, in this process."""

    def __init__(
        self, operator: Operator, target: Target, device: str, cases: Sequence[Case],
        genomes: Mapping[str, Genome] = GENOMES,
    ) -> None:  # fmt: skip
        self.subjects, oracle = build(operator, target, cases, genomes)
        self.session = Session(target.open(device), operator, BuildCache(), lambda what: None)
        task = CalibrateTask(
            ids.new_id(), operator.name, target.name, device, (), oracle, self.subjects, 0, measure=False
        )
        self.session.calibrate(task)

    def time(self, opponent: str, case: Case, seed: int, pairs: int, protocol: str = "") -> Timing:
        """`plain` against `opponent`. Raises `RuntimeError` when it ends in anything but a time."""
        task = TimeTask(
            ids.new_id(), self.subjects["plain"], (case.name,), {case.name: opponent}, seed, fixed=True,
            pairs_max=pairs, protocol=protocol,
        )  # fmt: skip
        (result,) = self.session.time(task)
        if result.status is not Status.OK or result.timing is None:
            message = result.diagnosis.message if result.diagnosis else ""
            raise RuntimeError(f"{case.name} {protocol} against {opponent}: {result.status}: {message}")
        return result.timing


def row(timing: Timing) -> dict[str, Any]:
    return {
        "time_us": timing.time_us, "opponent_us": timing.opponent_us, "ratio": timing.ratio, "low": timing.low,
        "high": timing.high, "method": timing.method, "clocks": dict(timing.clocks),
        "samples_us": [[round(value, 3) for value in pair] for pair in timing.samples],
    }  # fmt: skip


def repeated(
    bench: Bench, opponent: str, case: Case, repeats: int, pairs: int, expected: float, protocol: str = ""
) -> dict[str, Any]:
    """How many of the intervals contain what is known to be true, and how wide they are."""
    found, failures = list[Timing](), list[str]()
    for seed in range(repeats):
        try:
            found.append(bench.time(opponent, case, seed, pairs, protocol))
        except RuntimeError as error:  # an unsteady clock, say: it is part of the answer
            failures.append(str(error))
    halves = [(timing.high - timing.low) / 2 / timing.ratio for timing in found]
    return {
        "case": case.name, "protocol": protocol or bench.session.machine.protocols[0],
        "time_us": statistics.median(timing.time_us for timing in found), "repeats": repeats,
        "failures": failures, "expected": expected,
        "contained": sum(timing.low <= expected <= timing.high for timing in found),
        "mean_ratio": statistics.geometric_mean(timing.ratio for timing in found),
        "spread": statistics.stdev(timing.ratio for timing in found),
        "half_width_median": statistics.median(halves), "half_width_max": max(halves),
        "quads_void": sum(timing.clocks.get("quads_void", 0.0) for timing in found), "timings": [*map(row, found)],
    }  # fmt: skip


def protocols(bench: Bench, cases: Sequence[Case], quick: bool) -> list[dict[str, Any]]:
    """`plain` against `slow` under every protocol."""
    rows = []
    for case in cases:
        for name in bench.session.machine.protocols:
            pairs = 4 if name in ("sustained", "triton") or quick else 16
            try:
                timing = bench.time("slow", case, 1, pairs, name)
            except RuntimeError as error:
                rows.append({"case": case.name, "protocol": name, "failure": str(error)})
                continue
            rows.append({"case": case.name, "protocol": name, **row(timing)})
    return rows


def loaded(plugins: Plugins, target: Target, device: str, repeats: int) -> list[dict[str, Any]]:
    """KDA's fastest seed against itself, each under the two protocols that its numbers are taken with."""
    operator = plugins.operator("kda")
    case = next(case for case in operator.cases(target.name) if case.name == "h96-fixed")
    path = next(path for path in operator.seeds(target.name) if path.stem == "solver")
    twins = {name: Genome.read(path) for name in ("plain", "twin")}
    bench = Bench(operator, target, device, [case], twins)
    plan = (("rotation", 24, repeats), ("flashkda", 8, max(3, repeats // 3)))
    try:
        return [repeated(bench, "twin", case, count, pairs, 1.0, protocol) for protocol, pairs, count in plan]
    finally:
        bench.session.close()


def timed(name: str, part: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    found = part()
    print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
    return found


def summary(report: dict[str, Any]) -> None:
    for part in ("twin", "slower", "loaded"):
        for each in report.get(part, ()):
            print(
                f"{part:7} {each['protocol']:10} {each['case']:18} {each['time_us']:8.2f} us  "
                f"ratio {each['mean_ratio']:.5f}  "
                f"{each['contained']}/{each['repeats']} contain {each['expected']:.4f}  "
                f"half-width {each['half_width_median']:.4f}, at most {each['half_width_max']:.4f}"
            )
    for each in report.get("protocols", ()):
        if "failure" in each:
            print(f"{each['case']:18} {each['protocol']:14} {each['failure']}")
            continue
        print(f"{each['case']:18} {each['protocol']:14} {each['time_us']:9.2f} us  ratio {each['ratio']:.4f}")
    for each in report.get("flushes", ()):
        print(
            "  ".join(f"{key} {value:.2f}" if isinstance(value, float) else str(value) for key, value in each.items())
        )
    for each in report.get("survival", ()):
        share = "?" if each["share"] is None else f"{each['share']:+.2f}"
        print(
            f"{each['mib']} MiB {each['policy']:12} {each['flush']:12} survives {share} "
            f"(hot {each['hot_us']:.2f}, cold {each['cold_us']:.2f} us)"
        )
    for each in report.get("genes", ()):
        ratios = "  ".join(f"{name} {value:.3f}" for name, value in each["gain"].items())
        print(f"{each['mib']} MiB {each['policy']:48} {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a tenth of the repeats")
    parser.add_argument("--loaded", nargs="?", type=int, const=20, default=0, metavar="REPEATS", help="(f) alone")
    parser.add_argument("--parts", nargs="*", help="only these of: twin slower survival genes flushes protocols")
    parser.add_argument("--columns", nargs="*", type=int, default=list(TWIN_COLUMNS), help="of the twins' cases")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of every twin's timing")
    parser.add_argument("--build-only", action="store_true", help="build one case's kernels and stop; needs no GPU")
    options = parser.parse_args()
    plugins = Plugins.load(entry_points=False)
    report: dict[str, Any]
    operator = plugins.operator("rmsnorm")
    if options.build_only:
        target = plugins.target("sm_90")
    else:
        target, facts, _ = choose_target(plugins, "auto")
    every = {case.name: case for case in operator.cases(target.name)}
    cases = [every[f"bf16-{ROWS}x{columns}"] for columns in COLUMNS]
    if options.build_only:
        subjects, _ = build(operator, target, cases[:1])
        options.out.write_text(json.dumps({"built": {name: len(each.builds) for name, each in subjects.items()}}))
        return
    if options.loaded:
        report = {"device": facts.name, "versions": dict(facts.versions)}
        report["loaded"] = timed("loaded", lambda: loaded(plugins, target, facts.id, options.loaded))
        options.out.write_text(json.dumps(report, separators=(",", ":")) + "\n")
        return summary(report)
    bench = timed("build", lambda: Bench(operator, target, facts.id, cases))
    machine, repeats = bench.session.machine, 10 if options.quick else 100
    assert isinstance(machine, CudaMachine)
    twins = [each for each in cases if each.dims["N"] in options.columns]
    report = {"device": facts.name, "versions": dict(facts.versions), "pairs": options.pairs}
    report["tempo_mhz"] = [machine.tempo() for _ in range(50)]
    fewer = max(5, repeats // 5)
    parts: dict[str, Callable[[], Any]] = {
        "twin": lambda: [repeated(bench, "twin", case, repeats, options.pairs, 1.0) for case in twins],
        "slower": lambda: [repeated(bench, "slow", case, fewer, options.pairs, 1 + SLOWER) for case in twins],
        "survival": lambda: survival(machine),
        "genes": lambda: gene_effects(machine, quick=options.quick),
        "flushes": lambda: flush_effects(machine, [ROWS * 2 * columns for columns in COLUMNS]),
        "protocols": lambda: protocols(bench, cases, options.quick),
    }
    for name, part in parts.items():
        if options.parts and name not in options.parts:
            continue
        report[name] = timed(name, part)
        options.out.write_text(json.dumps(report, separators=(",", ":")) + "\n")  # nothing is lost by a later part
    bench.session.close()
    summary(report)


if __name__ == "__main__":
    main()

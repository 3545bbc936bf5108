"""Hostile kernels refused, honest ones passed: the whole zoo, then random legal gene values of every seed.

    python benchmarks/zoo_and_honest.py --target auto --honest 200 --out result.json

An honest evaluation has search purpose and one case. Any status but `ok` is a false alarm, save those that the genes
themselves ask for (uncovered, duplicate, resource_limit, invalid_genome): they are counted and drawn again. As in a
run, one that ends without a number that says anything of it (unstable_timing) gets a second look, which is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evo import codec, ids
from evo.app.provenance import evaluator_hash
from evo.app.stand import Stand, choose_target, stand
from evo.app.trust.zoo import needed_cases, run_zoo, said_of
from evo.fitness.evaluator import Evaluator
from evo.fitness.zoo import Finding, members
from evo.genome import Genome, make_candidate, objection, uncovered
from evo.operator import Case
from evo.plugins.manager import Plugins
from evo.records import BLAMELESS, Evaluation, Proposal, Status, Value

CASES = {
    "gpu": [f"{dtype}-32768x{n}" for dtype in ("bf16", "fp16", "fp32") for n in (1024, 4096, 16384)],
    "cpu": ["fp32-64x256", "bf16-32x1024", "fp32-8x2048"],
}
REDRAWN = frozenset({Status.UNCOVERED, Status.RESOURCE_LIMIT, Status.INVALID_GENOME})
DRAWS = 3000  # of gene values for one seed and case, before it counts as covering none
YARDSTICK = "seed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", default="rmsnorm")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--honest", type=int, default=200)
    parser.add_argument("--members", default="*", help="pattern of members' names; '' for none")
    parser.add_argument("--quick", action="store_true", help="without members that take long")
    parser.add_argument("--cases", nargs="*", help="of the honest evaluations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    plugins, begun = Plugins.load(), time.perf_counter()
    target, facts, _ = choose_target(plugins, options.target)
    operator = plugins.operator(options.operator)
    kind = "cpu" if target.name == "cpu" else "gpu"
    cases = options.cases or CASES[kind]
    chosen = [m for m in members(operator, target.name) if fnmatch.fnmatch(m.name, options.members)]
    chosen = [m for m in chosen if not (options.quick and m.slow)]
    findings: list[Finding] = []
    if chosen:
        with stand(plugins, operator.name, target.name, needed_cases(chosen, cases[:1])) as here:
            findings = run_zoo(here, chosen, lambda message: print(f"{time.perf_counter() - begun:6.1f} s  {message}"))
    zoo_seconds = time.perf_counter() - begun
    with stand(plugins, operator.name, target.name, cases) as here:
        rows, redrawn = honest(here, options.honest, random.Random(options.seed))
    report = {
        "operator": f"{operator.name} {operator.version}", "evo": evaluator_hash(), "target": target.name,
        "device": facts.name, "versions": dict(facts.versions), "toolchain": target.toolchain(), "cases": cases,
        "seconds": {"zoo": zoo_seconds, "honest": time.perf_counter() - begun - zoo_seconds},
        "zoo_counts": dict(Counter(verdict(finding) for finding in findings)),
        "zoo_by_kind": by_kind(findings), "honest_counts": dict(Counter(row["status"] for row in rows)),
        "redrawn": dict(redrawn), "zoo": [codec.plain(finding) for finding in findings], "honest": rows,
    }  # fmt: skip
    show(report)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    wrong = [finding for finding in findings if not finding.ok and not finding.escape]
    return 1 if wrong or any(row["status"] != Status.OK for row in rows) else 0


def verdict(finding: Finding) -> str:
    return "as it must be" if finding.ok else "known escape" if finding.escape else "not as it must be"


def by_kind(findings: list[Finding]) -> dict[str, dict[str, int]]:
    kinds = sorted({finding.kind for finding in findings})
    return {k: dict(Counter(verdict(finding) for finding in findings if finding.kind == k)) for k in kinds}


def honest(here: Stand, count: int, rng: random.Random) -> tuple[list[dict[str, Any]], Counter[str]]:
    """One row for every honest evaluation; and how many draws were replaced, by why."""
    if not count:
        return [], Counter()
    seeds = here.seeds()
    yardsticks = here.calibrate(print, {YARDSTICK: seeds[0]}, (YARDSTICK,)).yardsticks
    timed, rows, redrawn = [case for case in here.cases if case.group != "check"], [], Counter[str]()
    for number, case in enumerate(timed):
        share = count * (number + 1) // len(timed) - count * number // len(timed)
        rows += _of_case(here, case, share, seeds, yardsticks, rng, redrawn)
        print(f"honest: {len(rows)} of {count}, {case.name}: {dict(Counter(row['status'] for row in rows))}")
    return rows, redrawn


def _of_case(
    here: Stand, case: Case, share: int, seeds: list[Genome], yardsticks: Any, rng: random.Random, redrawn: Counter[str]
) -> list[dict[str, Any]]:
    checks = [c for c in here.cases if c.group == "check" and dict(c.dtypes) == dict(case.dtypes)]
    evaluator = Evaluator(here.executor, here.operator, here.target, [*checks, case], yardsticks)
    draws, rows = _draws(here, case, seeds, rng, redrawn), list[dict[str, Any]]()
    flying: dict[str, tuple[Proposal, str, dict[str, Value]]] = {}
    looked, tries = set[str](), 0
    while len(rows) < share and (flying or tries < 10 * share):
        while len(rows) + len(flying) < share and evaluator.room() > 0 and tries < 10 * share:
            genome, values = next(draws)
            candidate = make_candidate(here.operator.name, here.target.name, genome, values)
            tries += 1
            proposal = Proposal(ids.new_id(), "", candidate)
            flying[candidate.id] = (proposal, genome.species, values)
            evaluator.start(proposal, {})
        for said in asyncio.run(evaluator.finished(1.0)):
            found = said.evaluation
            drawn = flying.pop(found.candidate, None)
            if found.duplicate_of or found.status in REDRAWN:
                redrawn["duplicate" if found.duplicate_of else str(found.status)] += 1
            elif drawn and found.status in BLAMELESS and drawn[0].id not in looked:
                looked.add(drawn[0].id)
                redrawn[f"second look after {found.status}"] += 1
                flying[found.candidate] = drawn
                evaluator.start(drawn[0], {})
            elif drawn:
                rows.append(_row(case.name, *drawn[1:], found))
    return rows


def _draws(
    here: Stand, case: Case, seeds: list[Genome], rng: random.Random, redrawn: Counter[str]
) -> Iterator[tuple[Genome, dict[str, Value]]]:
    """Seeds in turn, each with gene values that its constraints allow for this case."""
    usable = list(seeds)
    while usable:
        for genome in list(usable):
            for _ in range(DRAWS):
                values = {name: rng.choice(gene.choices) for name, gene in genome.genes.items()}
                if not objection(genome, values, here.facts) and not uncovered(
                    genome, here.operator, case, values, here.facts
                ):
                    yield genome, values
                    break
                redrawn["against the seed's constraints"] += 1
            else:
                usable.remove(genome)
    raise SystemExit(f"no seed covers {case.name}")


def _row(case: str, species: str, values: dict[str, Value], found: Evaluation) -> dict[str, Any]:
    timing = next((result.timing for result in found.cases if result.timing), None)
    row: dict[str, Any] = {"case": case, "species": species, "status": str(found.status), "message": said_of(found)}
    row["genes"] = values
    if timing:
        row |= {"ratio": timing.ratio, "pairs": timing.pairs, "clocks": dict(timing.clocks)}
    return row


def show(report: dict[str, Any]) -> None:
    for kind, counts in report["zoo_by_kind"].items():
        print(f"{kind:34} {', '.join(f'{count} {what}' for what, count in counts.items())}")
    for finding in report["zoo"]:
        if not finding["ok"]:
            print(f"  {finding['member']}: {finding['message']}")
    print(f"honest: {report['honest_counts']}, drawn again: {report['redrawn']}, seconds: {report['seconds']}")
    for row in report["honest"]:
        if row["status"] != "ok":
            print(f"  FALSE ALARM {row['case']} {row['species']} {row['genes']}: {row['status']}: {row['message']}")


if __name__ == "__main__":
    raise SystemExit(main())

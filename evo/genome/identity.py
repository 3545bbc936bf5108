"""The two identities: of a candidate (what was proposed) and of a machine (what would be timed)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from evo import codec
from evo.genome.defaults import without_defaults
from evo.genome.genome import Genome
from evo.ids import digest
from evo.plan import LaunchPlan
from evo.records import Build, BuildOptions, Candidate, Values

SCHEMA = "1"  # raise it when the same file begins to mean something else


def candidate_id(operator: str, target: str, genome: Genome, values: Values) -> str:
    """Hash of operator, target, canonical source and all gene values; genes that `values` leaves out count with their
    defaults. The source counts without its `[default]` table: a winner's file is the candidate that won.

    Raises `GenomeError` for an unknown gene or an illegal value.
    """
    return name_of(operator, target, genome.suffix, genome.canonical, genome.values(values))


def name_of(operator: str, target: str, suffix: str, canonical: str, complete: Values) -> str:
    """The candidate's id from what an archive holds of it: the canonical source, and a value for every gene."""
    assignment = json.dumps(complete, sort_keys=True, separators=(",", ":"))
    return digest(("candidate", SCHEMA, operator, target, suffix, without_defaults(canonical), assignment))


def make_candidate(operator: str, target: str, genome: Genome, values: Values) -> Candidate:
    """The candidate of a genome; genes that `values` leaves out take their defaults. Raises as `candidate_id`."""
    complete = genome.values(values)
    name = candidate_id(operator, target, genome, complete)
    return Candidate(name, operator, target, genome.species, genome.suffix, genome.canonical, complete)


def machine_id(build: Build, plan: LaunchPlan, options: BuildOptions) -> str:
    """Hash of the machine code, the toolchain, the resolved launch plan and the build options: equal ones run alike,
    whatever source and genes they came from."""
    return digest(("machine", SCHEMA, build.code_hash, build.toolchain, codec.dumps(plan), codec.dumps(options)))


def machine_set(machine_ids: Mapping[str, str]) -> str:
    """One name for what a candidate runs on all its cases, from machine ids by case; "" where there are none.

    Candidates with equal sets are the same work under two names.
    """
    return digest([codec.dumps(dict(sorted(machine_ids.items())))]) if machine_ids else ""

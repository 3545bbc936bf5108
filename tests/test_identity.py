"""Candidate identity (what was proposed) and machine identity (what would be timed)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from genome_samples import GPU, SIMPLE, Norm, case, edited

from evo.errors import GenomeError
from evo.genome import Genome, candidate_id, machine_id, resolve_plan
from evo.plan import LaunchPlan
from evo.records import Build, BuildOptions, Status, Values

BUILD = Build(key="k", status=Status.OK, toolchain="nvrtc 13.0", seconds=0.1, blob="b" * 64, code_hash="c" * 64)


def identity(text: str = SIMPLE, values: Values | None = None, operator: str = "norm", target: str = "sm_90") -> str:
    return candidate_id(operator, target, Genome.parse(text, ".cu"), values or {})


def plan(text: str = SIMPLE, **values: int) -> LaunchPlan:
    return resolve_plan(Genome.parse(text, ".cu"), Norm(), case(), values, GPU)


def test_candidate_identity_is_pinned() -> None:
    """Archives hold these: a change of this value needs a new schema number and a migration."""
    text = """/* evo
operator = "norm"
species = "tiny"
[genes]
LOAD = ["ld.global", "ld.global.nc"]
WIDTH = [1, 2]
[[launch]]
kernel = "k"
grid = [1]
block = [32]
*/
"""
    assert identity(text, {"WIDTH": 2}) == "14d77336bc5ca75df114c6120e39bbeec49119cc3f1b33a7def1ee1028c0d5ce"


def test_candidate_identity_ignores_how_things_are_written() -> None:
    assert identity(SIMPLE.replace("\n", "  \r\n") + "\n\n") == identity()
    assert identity(values={"THREADS": 256}) == identity()
    assert identity(values={"PAD": 0, "THREADS": 64}) == identity(values={"THREADS": 64, "PAD": 0})


def test_candidate_identity_sees_every_part() -> None:
    ids = {
        identity(),
        identity(operator="other"),
        identity(target="sm_100"),
        identity(values={"PAD": 1024}),
        identity(edited(SIMPLE, "16-byte", "8-byte")),
        candidate_id("norm", "sm_90", Genome.parse(SIMPLE, ".cpp"), {}),
    }
    assert len(ids) == 6
    assert all(len(one) == 64 for one in ids)


def test_candidate_identity_needs_legal_values() -> None:
    with pytest.raises(GenomeError, match="not among the gene's choices"):
        identity(values={"PAD": 1})


def test_machine_identity_forgets_the_source() -> None:
    other = edited(SIMPLE, 'ROW_BYTES = "N * itemsize_x"', 'ROW_BYTES = "itemsize_x * N"')
    assert machine_id(BUILD, plan(other), BuildOptions()) == machine_id(BUILD, plan(), BuildOptions())
    elsewhere = replace(BUILD, key="other", blob="d" * 64, seconds=3.0, log="a notice")
    assert machine_id(elsewhere, plan(), BuildOptions()) == machine_id(BUILD, plan(), BuildOptions())


def test_machine_identity_sees_code_toolchain_launch_and_options() -> None:
    ids = {
        machine_id(BUILD, plan(), BuildOptions()),
        machine_id(BUILD, plan(PAD=1024), BuildOptions()),  # reaches the launch only
        machine_id(replace(BUILD, code_hash="e" * 64), plan(), BuildOptions()),
        machine_id(replace(BUILD, toolchain="nvrtc 13.5"), plan(), BuildOptions()),
        machine_id(BUILD, plan(), BuildOptions(fmad=False)),
    }
    assert len(ids) == 5

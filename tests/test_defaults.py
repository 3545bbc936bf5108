"""The `[default]` table: what a candidate's id leaves out, and what a winner's file puts in."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from evo.genome import Genome, candidate_id, with_defaults
from evo.records import Values

ROOT = Path(__file__).parent.parent
SEEDS = [*sorted(ROOT.glob("operators/*/seeds/*.c*")), ROOT / "operators/kda/exact.cu"]
START = '/* evo\noperator = "norm"\nspecies = "a"\n'
GENES = "[genes]\nROWS = [1, 4, 8]\n"
LAUNCH = '[[launch]]\nkernel = "k"\ngrid = [1]\nblock = ["ROWS"]\n'
BODY = '*/\nextern "C" void k() {}\n'
TEXT = 'summary = """\\\n[default] # \\\nx"""\n'  # a line of a text that looks like the table


def identity(text: str, values: Values | None = None) -> str:
    return candidate_id("norm", "cpu", Genome.parse(text, ".cpp"), values or {})


def round_trip(text: str, values: Values, suffix: str = ".cpp") -> str:
    """The winner's file of a genome with these values, after all that must hold of it."""
    genome = Genome.parse(text, suffix)
    changed = with_defaults(genome.canonical, values)
    again = Genome.parse(changed, suffix)
    assert again.canonical == changed
    assert again.defaults() == values
    assert again.body.split() == genome.body.split()
    assert again.header.data == genome.header.data | {"default": values}
    assert candidate_id("norm", "cpu", again, {}) == candidate_id("norm", "cpu", genome, values)
    assert with_defaults(changed, values) == changed, "a second time changes nothing"
    assert with_defaults(changed, genome.defaults()) == with_defaults(genome.canonical, genome.defaults())
    return changed


def test_ids_of_seeds_are_what_they_were() -> None:
    """Archives and results hold these; a seed that has changed since is another candidate, and leaves the list."""
    known = json.loads((Path(__file__).parent / "data" / "seed_ids.json").read_text())
    compared = 0
    for path in SEEDS:
        genome = Genome.read(path)
        entry = known.get(path.relative_to(ROOT).as_posix())
        if entry and entry["source"] == hashlib.sha256(genome.canonical.encode()).hexdigest():
            assert candidate_id(genome.operator, entry["target"], genome, {}) == entry["id"], path
            compared += 1
    assert compared


def test_a_text_that_looks_like_the_table_is_part_of_the_identity() -> None:
    top = ['build.fmad = true\nconstraints.all = ["1"]\n', 'build.fmad = false\nstatic = ["N"]\n']
    files = [START.replace("species", TEXT + "species") + each + GENES + LAUNCH + BODY for each in top]
    assert identity(files[0]) != identity(files[1])
    for file in files:
        changed = round_trip(file, {"ROWS": 8})
        assert TEXT in changed


def test_a_text_that_looks_like_the_table_does_not_hide_the_table() -> None:
    file = START + TEXT + GENES + "[default]\nROWS = 4\n" + LAUNCH + BODY
    assert identity(file) == identity(file.replace("ROWS = 4", "ROWS = 1"), {"ROWS": 4})
    assert "ROWS = 4" not in round_trip(file, {"ROWS": 8})

"""The `[default]` table: what a candidate's id leaves out, and what a winner's file puts in."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from evo.errors import GenomeError
from evo.genome import Genome, candidate_id, with_defaults
from evo.genome.header import MAX_HEADER_BYTES, MAX_SOURCE_BYTES
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


TABLE = "[default]\nROWS = 4\n"
INLINE = 'launch = [{ kernel = "k", grid = [1], block = ["ROWS"] }]\n'
SPELLINGS = {
    "no table": GENES + LAUNCH + "*/",
    "before the genes": TABLE + GENES + LAUNCH + "*/",
    "before the launch": GENES + TABLE + LAUNCH + "*/",
    "last": GENES + LAUNCH + TABLE + "*/",
    "last, with an indented end": GENES + LAUNCH + TABLE + "  */",
    "last, with the end behind a value": GENES + LAUNCH + TABLE.strip() + " */",
    "last, with the end at a value": GENES + LAUNCH + TABLE.strip() + "*/",
    "last, with the end behind a comment": GENES + LAUNCH + TABLE.strip() + " # four */",
    "empty, with the end behind it": GENES + LAUNCH + "[default] */",
    "indented, with blanks and a comment": GENES + "  [ default ]  # mine\n\n  # [x]\n  ROWS = 4\n" + LAUNCH + "*/",
    "the end behind the launch": GENES + LAUNCH.strip() + " */",
    "blanks in the launch's brackets": GENES + LAUNCH.strip().replace("[[launch]]", "[[ launch ]]") + " */",
    "quotes in the launch's brackets": GENES + LAUNCH.strip().replace("[[launch]]", '[["launch"]]') + "*/",
    "an inline launch": INLINE + GENES + "*/",
    "an inline launch, the end behind the genes": INLINE + GENES.strip() + " # rows */",
    "everything inline": INLINE + "genes.ROWS = [1, 4, 8]*/",
    "everything inline and a text": TEXT + INLINE + "genes.ROWS = [1, 4, 8]  */",
    "a text that looks like the launch": TEXT.replace("[default]", "[[launch]]") + GENES + LAUNCH + "*/",
}


@pytest.mark.parametrize("before", ["", "// see foo/*/bar\n", "// [default]\n\n  "], ids=["", "comment end", "comment"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_takes_new_defaults(spelling: str, before: str) -> None:
    text = before + START + SPELLINGS[spelling] + '\nextern "C" void k() {}\n'
    for value in (1, 4, 8):
        round_trip(text, {"ROWS": value})


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: f"{path.parts[-3]}-{path.stem}{path.suffix}")
def test_every_seed_takes_every_value(path: Path) -> None:
    genome = Genome.read(path)
    most = max((len(gene.choices) for gene in genome.genes.values()), default=0)  # exact.cu has no genes
    for step in range(min(most, 12)):
        values = {name: gene.choices[step % len(gene.choices)] for name, gene in genome.genes.items()}
        changed = Genome.parse(with_defaults(genome.canonical, values), path.suffix)
        assert changed.defaults() == values
        ids = {candidate_id(genome.operator, "any", each, values) for each in (genome, changed)}
        assert ids == {candidate_id(genome.operator, "any", changed, {})}


@pytest.mark.parametrize(
    "table",
    [
        "default = { ROWS = 4 }\n" + GENES,
        "default = {}\n" + GENES,
        "default.ROWS = 4\n" + GENES,
        GENES + '["default"]\nROWS = 4\n',
        GENES + "[ 'default' ]\nROWS = 4\n",
        '[genes]\nROWS = ["x", "[x"]\n[default]\nROWS = """\\\n[x"""\n',
        "default.ROWS = 4\n" + TEXT + GENES,
    ],
)
def test_other_spellings_of_the_table_are_refused(table: str) -> None:
    """Else a winner's file would hold the table twice, or its id would depend on what it is to leave out."""
    with pytest.raises(GenomeError, match=r"default: .*\n *write it as a table: a line \[default\]") as caught:
        Genome.parse(START + table + LAUNCH + BODY, ".cpp")
    assert caught.value.line == START.count("\n") + table.count("\n", 0, table.index("default")) + 1


def test_a_header_of_texts_that_look_like_the_table_is_refused() -> None:
    text = TEXT.replace("[default] # \\\n", "[default] # \\\n" * 9)
    with pytest.raises(GenomeError, match="lines look like the table"):
        Genome.parse(START + text + GENES + LAUNCH + BODY, ".cpp")


@pytest.mark.parametrize("body", [False, True], ids=["header", "file"])
def test_a_genome_has_room_for_its_table(body: bool) -> None:
    fits, table = MAX_SOURCE_BYTES if body else MAX_HEADER_BYTES, len("[default]\nROWS = 8\n\n")
    texts = {}
    for free in (table, table - 1):
        text = START + GENES + "#\n" + LAUNCH + BODY
        size = len(text) if body else text.index("*/") - len("/* evo")
        pad = "x" * (fits - size - free)
        texts[free] = text + f"//{pad[3:]}\n" if body else text.replace("#\n", f"#{pad}\n")
    round_trip(texts[table], {"ROWS": 8})
    with pytest.raises(GenomeError, match=rf"no room for the \[default\] table.*: {table - 1} bytes of {table}"):
        Genome.parse(texts[table - 1], ".cpp")

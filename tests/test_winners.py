"""The winner's file is its genome with its gene values as defaults."""

from __future__ import annotations

import pytest

from evo.genome import Genome, candidate_id, with_defaults
from evo.operators.rmsnorm import RmsNorm


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_every_seed_takes_new_defaults(target: str) -> None:
    for path in RmsNorm().seeds(target):
        genome = Genome.read(path)
        last = {name: gene.choices[-1] for name, gene in genome.genes.items()}
        changed = with_defaults(genome.canonical, last)
        again = Genome.parse(changed, genome.suffix)
        assert again.defaults() == last
        first = {name: gene.choices[0] for name, gene in genome.genes.items()}
        assert Genome.parse(with_defaults(changed, first), genome.suffix).defaults() == first
        assert with_defaults(changed, last) == changed, "a second time changes nothing"
        names = [candidate_id("rmsnorm", target, each, last) for each in (genome, again)]
        assert names[0] == names[1], "the file is the candidate"
        assert candidate_id("rmsnorm", target, again, {}) == names[0]


def test_a_default_table_in_the_middle_is_replaced() -> None:
    text = (
        '/* evo\noperator = "x"\n[default]\nA_GENE = 1\n[genes]\nA_GENE = [1, 2]\n[[launch]]\nkernel = "k"\n*/\nbody\n'
    )
    changed = with_defaults(text.replace("[default]", " [ default ]  # mine"), {"A_GENE": 2})
    assert changed == with_defaults(text, {"A_GENE": 2})
    assert changed.count("[default]") == 1
    assert "A_GENE = 2\n" in changed
    assert changed.index("[genes]") < changed.index("[[launch]]")
    assert changed.endswith("*/\nbody\n")

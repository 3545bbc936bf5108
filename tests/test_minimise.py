"""A winner without what does not pay: by a formula, and on the real CPU target."""

from __future__ import annotations

import shutil
from pathlib import Path

import landscape
import pytest

from evo.app.memory.minimise import minimise
from evo.archive import Archive, RunRecord
from evo.engine.reduction import Reduction, Variant, Worth
from evo.errors import UsageError
from evo.genome import Genome, make_candidate
from evo.ids import new_id
from evo.operators.rmsnorm import RmsNorm
from evo.records import Author, Candidate, Proposal


def pair() -> tuple[Candidate, Candidate]:
    """A seed and a winner: three genes changed, a useful hunk, a useless comment, and one that others need."""
    seed = landscape.genome()
    text = seed.canonical.replace("y[i] = 2.0f * x[i];", "y[i] = x[i] + x[i];  // USEFUL")
    text = text.replace('extern "C"', '// USELESS\nextern "C"')
    text = text.replace('FFF = ["plain", "fancy"]', 'FFF = ["plain", "fancy", "better"]')
    winner = Genome.parse(text, ".cpp")
    old = make_candidate("scale", "cpu", seed, {})
    return old, make_candidate("scale", "cpu", winner, {"AAA": 7, "BBB": 64, "FFF": "better"})


def test_edits_that_do_not_pay_are_taken_out() -> None:
    ancestor, winner = pair()
    reduction = Reduction(ancestor, winner)
    assert [(edit.kind, edit.name) for edit in reduction.edits[:3]] == [
        ("gene", "AAA"), ("gene", "BBB"), ("gene", "FFF"),
    ]  # fmt: skip
    assert len(reduction.edits) == 6
    assert reduction.variant(reduction.edits) == Variant(winner.source, winner.values)
    assert reduction.variant(()).source == ancestor.source

    def cost(variant: Variant) -> float:
        slow = 1.0 + 0.1 * (variant.values["AAA"] != 7) + 0.2 * ("USEFUL" not in variant.source)
        return slow + 0.05 * (variant.values.get("FFF") != "better")

    def weigh(variant: Variant, without: Variant) -> Worth:
        ratio = cost(without) / cost(variant)
        return Worth(ratio, ratio - 0.01, ratio + 0.01, "n256")

    weighed = reduction.run(weigh)
    kept = [each.edit for each in weighed if each.kept]
    smallest = reduction.variant(kept)
    assert smallest.values == {**winner.values, "BBB": ancestor.values["BBB"]}
    assert "USELESS" not in smallest.source
    assert "USEFUL" in smallest.source
    worth = {each.edit.name: each.worth for each in weighed}
    assert worth["AAA"].ratio == pytest.approx(1.1)
    assert worth["BBB"].ratio == 1.0
    declared = next(each for each in weighed if "better" in each.edit.after and each.edit.kind == "hunk")
    assert declared.kept
    assert "no genome without it" in declared.worth.why


@pytest.mark.alone
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_a_real_winner_is_minimised_on_the_cpu(tmp_path: Path) -> None:
    operator = RmsNorm()
    plain = Genome.read(operator.seeds("cpu")[0])
    body = plain.canonical.rstrip("\n") + "\n// a remark that costs nothing\n"
    ancestor = make_candidate("rmsnorm", "cpu", plain, {})
    winner = make_candidate("rmsnorm", "cpu", Genome.parse(body, ".cpp"), {})
    path = tmp_path / "evo.db"
    with Archive.open(str(path)) as store:
        store.start_run(RunRecord("run-1", "rmsnorm", "cpu", "cpu:0", "", 0, "", (), "", "e", 1.0))
        store.propose(Proposal(new_id(), "run-1", ancestor))
        store.propose(Proposal(new_id(), "run-1", winner, (ancestor.id,), Author("person")))
    out = tmp_path / "small.cpp"
    found = minimise(str(path), winner.id, cases=("bf16-32x1024",), sessions=1, pairs=8, out=out)
    assert found.ancestor == ancestor.id
    assert len(found.edits) == 1
    (edit,) = found.edits
    assert edit.worth.case == "bf16-32x1024"
    assert edit.worth.low < edit.worth.ratio < edit.worth.high
    if not edit.kept:  # a noisy neighbour may make a remark pay
        assert "a remark" not in out.read_text()
        assert Genome.read(out).defaults() == plain.defaults()
    with pytest.raises(UsageError, match="its own ancestor"):
        minimise(str(path), ancestor.id, cases=("bf16-32x1024",), out=out)

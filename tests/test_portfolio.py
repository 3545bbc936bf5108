"""A run's winners, certified together, and what others are on record with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evo.app.trust.certificates import elsewhere
from evo.app.trust.portfolio import portfolio
from evo.cli.root import app
from evo.errors import UsageError
from evo.operators.kda import Kda
from evo.operators.rmsnorm import RmsNorm

SEEDS = Path(__file__).parent.parent / "operators" / "rmsnorm" / "seeds"
CASE, SMALL = "bf16-32x1024", "fp32-64x256"


@pytest.fixture
def winners(tmp_path: Path) -> Path:
    """As `evo run` hands them back: two files and what each is for."""
    folder = tmp_path / "winners"
    folder.mkdir()
    held = {CASE: "simd.cpp", SMALL: "plain.cpp"}
    for file in held.values():
        (folder / file).write_text((SEEDS / file).read_text())
    (folder / "portfolio.json").write_text(json.dumps({case: {"file": file} for case, file in held.items()}))
    return folder


def test_cases_by_file(winners: Path) -> None:
    assert portfolio(winners) == {winners / "simd.cpp": (CASE,), winners / "plain.cpp": (SMALL,)}
    assert portfolio(winners, ("fp32-*",)) == {winners / "plain.cpp": (SMALL,)}


def test_folders_that_are_no_portfolio(winners: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read .*portfolio.json: No such file"):
        portfolio(tmp_path)
    with pytest.raises(UsageError, match="no case of .* matches nothing") as caught:
        portfolio(winners, ("nothing",))
    assert CASE in caught.value.fix
    for text, says in (
        ("{", "maps no cases"), ("[1]", "maps no cases"), ('{"a": 3}', "maps no cases"), ("{}", "no case of"),
        ('{"a": {"file": "gone.cu"}}', "'gone.cu', which is not there"),
        ('{"a": {"file": "../elsewhere.cu"}}', "which is not there"),
    ):  # fmt: skip
        (winners / "portfolio.json").write_text(text)
        with pytest.raises(UsageError, match=says):
            portfolio(winners)


def test_mistakes_are_told_before_anything_is_measured(winners: Path, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["certify", str(winners), "--out", str(tmp_path / "none")])
    assert told.exit_code == 2
    told = CliRunner().invoke(app, ["certify", str(winners), "--gene", "A=1"])
    assert told.exit_code == 2
    assert "winners have their genes" in told.output
    (winners / "plain.cpp").write_text("no genome")
    told = CliRunner().invoke(app, ["certify", str(winners), "-t", "cpu"])
    assert told.exit_code == 2
    assert "no header" in told.output
    assert "building" not in told.output


def test_only_the_same_protocol_and_device_are_compared() -> None:
    cases = ["bf16-32768x256", "bf16-32768x512"]
    found = elsewhere(RmsNorm(), "sm_90", "NVIDIA H200", "triton", cases)
    assert {entry.case for entry in found} == set(cases)
    assert all(entry.time_us > 0 and "H200" in entry.provenance for entry in found)
    assert elsewhere(RmsNorm(), "sm_90", "NVIDIA H200", "rotation", cases) == ()
    assert elsewhere(RmsNorm(), "sm_90", "NVIDIA H100 80GB HBM3", "triton", cases) == ()
    found = elsewhere(Kda(), "sm_90", "NVIDIA H200", "flashkda", ["h96-fixed"])
    assert "FlashKDA" in " ".join(entry.opponent for entry in found)


@pytest.mark.alone
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_winners_are_certified_together(winners: Path, tmp_path: Path) -> None:
    """One fails by itself, and the other is certified all the same."""
    broken = (winners / "plain.cpp").read_text().replace("evo_cast", "evo_cast_2")
    (winners / "plain.cpp").write_text(broken)
    words = ["certify", str(winners), "-t", "cpu", "--sessions", "3", "--pairs", "16", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--quiet", "--json"])
    assert done.exit_code == 1, done.output
    said = json.loads(done.stdout)
    ((path, certificate),) = said["certificates"].items()
    assert json.loads(Path(path).read_text())["digest"] == certificate["digest"]
    assert [case["case"] for case in certificate["cases"] if case["status"] == "ok"] == [CASE]
    assert list(said["failed"]) == ["plain.cpp"]
    assert "build_error" in said["failed"]["plain.cpp"]

"""What the yardstick's hash depends on, and what it does not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from landscape import FACTS, Scale

from evo.app.provenance import device_facts, evaluator_hash, operator_hash, versions, yardstick_hash
from evo.operator import Operator
from evo.operators.rmsnorm import RmsNorm

EXAMPLE = Path(__file__).parent.parent / "plugins" / "examples" / "evo-scale" / "evo_scale"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A third party's operator in a package of its own, beside a folder that is none of its business."""
    folder = tmp_path / "their_scale"
    folder.mkdir()
    for name in ("operator.py", "plain.cpp", "oracle.cpp"):
        (folder / name).write_text((EXAMPLE / name).read_text())
    (folder / "__init__.py").write_text("")
    (folder / "tuned.cpp").write_text((EXAMPLE / "plain.cpp").read_text())
    (tmp_path / "neighbour.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in ("their_scale", "their_scale.operator"):
        sys.modules.pop(name, None)


def loaded(folder: Path) -> Operator:
    operator = importlib.import_module("their_scale.operator").Scale()
    seeds = (folder / "plain.cpp", folder / "tuned.cpp")
    kind = type(
        "Seeded", (type(operator),), {"seeds": lambda self, target: seeds, "__module__": type(operator).__module__}
    )
    made = kind()
    assert isinstance(made, Operator)
    return made


@pytest.mark.parametrize(
    ("file", "moves"),
    [
        ("their_scale/operator.py", True),  # cases, reference, tolerance
        ("their_scale/oracle.cpp", True),
        ("their_scale/plain.cpp", True),  # the first seed: yardstick of last resort
        ("their_scale/tuned.cpp", False),  # a candidate
        ("neighbour.py", False),
    ],
)
def test_what_moves_the_operators_hash(package: Path, file: str, moves: bool) -> None:
    operator = loaded(package)
    before = operator_hash(operator, "cpu")
    assert operator_hash(operator, "cpu") == before
    with (package.parent / file).open("a") as stream:
        stream.write("\n// changed\n")
    assert (operator_hash(operator, "cpu") != before) is moves


def test_the_version_counts(package: Path) -> None:
    operator = loaded(package)
    before = operator_hash(operator, "cpu")
    type(operator).version = "2"
    assert operator_hash(operator, "cpu") != before


def test_a_lone_module_counts_alone() -> None:
    """Not with all that lies in its folder, which may be a whole site-packages."""
    before = operator_hash(Scale0(), "cpu")
    beside = Path(__file__).parent / "a_file_beside_it.py"
    beside.write_text("")
    try:
        assert operator_hash(Scale0(), "cpu") == before
    finally:
        beside.unlink()


class Scale0(Scale):
    """Inherits its truth from another lone module."""


def test_the_hash_of_all_names_evaluator_operator_and_device() -> None:
    operator, facts = RmsNorm(), FACTS
    name = yardstick_hash(operator, facts)
    assert name.split("-")[:2] == [evaluator_hash(), operator_hash(operator, "cpu")]
    assert yardstick_hash(operator, replace(facts, name="another chip")) != name
    assert yardstick_hash(operator, replace(facts, id="cpu:1")) == name
    assert operator_hash(operator, "sm_90") != operator_hash(operator, "cpu")


def test_versions_are_told() -> None:
    assert {"python", "numpy", "evo-kernels"} <= set(versions(FACTS))
    assert device_facts(FACTS) == {}

"""An operator that is installed for a test as a third party's is, in this process and in the workers."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evo import app
from evo.certificate import Certificate
from evo.errors import RunError
from evo.records import Status

EXAMPLE = Path(__file__).parent.parent / "plugins" / "examples" / "evo-scale"
KERNEL = (EXAMPLE / "evo_scale" / "plain.cpp").read_text()

RIGHT = KERNEL.replace('operator = "scale"', 'operator = "held"').replace('species  = "plain"', 'species  = "mine"')
WRONG = RIGHT.replace("y[item] = a * x[item]", "y[item] = a * x[item] + 1.0f").replace(
    "y[item + lane] = a * x[item + lane]", "y[item + lane] = a * x[item + lane] + 1.0f"
)
SESSIONS, PAIRS = 3, 16  # the interval of a few pairs is wide on a busy machine

HELD = """
from pathlib import Path
from evo.plugins import hookimpl
from evo_scale.operator import Scale, _case

class Held(Scale):
    name = "held"

    def cases(self, target):
        tune, check = _case("n4096", "tune", 4096), _case("n1001", "check", 1001, factor=-0.75)
        return (tune, _case("n16384", "tune", 16384), check, _case("secret-n8192", "holdout", 8192))

    def seeds(self, target):
        return (Path(__file__).parent / "held.cpp",)

    def oracle(self, target):
        return Path(__file__).parent / "held-oracle.cpp"

@hookimpl
def evo_operators(register):
    register(Held())
"""


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Operator `held`: that of evo-scale, with two tune cases and a hold-out."""
    (folder / "held_plugin.py").write_text(HELD)
    for name, source in (("held", "plain"), ("held-oracle", "oracle")):
        text = (EXAMPLE / "evo_scale" / f"{source}.cpp").read_text()
        (folder / f"{name}.cpp").write_text(text.replace('operator = "scale"', 'operator = "held"'))
    info = folder / "held-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: held\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[evo]\nheld_plugin = held_plugin\n")
    places, before = [str(folder), str(EXAMPLE)], os.environ.get("PYTHONPATH")
    sys.path[:0] = places
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *filter(None, [before])])
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for place in places:
            sys.path.remove(place)
        for name in ("held_plugin", "evo_scale", "evo_scale.operator"):
            sys.modules.pop(name, None)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def order(identity: Path | str, **options: Any) -> app.Order:
    given: dict[str, Any] = {"target": "cpu", "sessions": SESSIONS, "pairs": PAIRS} | options
    return app.Order(str(identity), **given)


def steadily(order: app.Order, say: Callable[[str], None] = lambda message: None) -> Certificate:
    """With a time for each case that was asked for: a neighbour may have the machine for a moment."""
    for _ in range(5):
        try:
            certificate = app.certify(order, say)
        except RunError as error:
            if "unstable_timing" not in error.what:
                raise
            continue
        if all(case.status is not Status.UNSTABLE_TIMING for case in certificate.cases):
            return certificate
    pytest.fail("five times unsteady")

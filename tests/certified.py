"""An operator that is installed for a test as a third party's is, in this process and in the workers."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "plugins" / "examples" / "evo-scale"
KERNEL = (EXAMPLE / "evo_scale" / "plain.cpp").read_text()

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

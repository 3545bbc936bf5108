"""Which evaluator and which versions a result came from."""

from __future__ import annotations

import importlib.metadata
import inspect
import platform
from collections.abc import Mapping
from pathlib import Path

import evo.fitness
import evo.genome
from evo import ids
from evo.operator import Operator
from evo.records import DeviceFacts

CODE = (".py", ".cu", ".cpp", ".h")
LIBRARIES = ("evo-kernels", "numpy", "deap", "cuda-core", "cuda-bindings")


def evaluator_hash(operator: Operator, facts: DeviceFacts) -> str:
    """A hash over the gate, the clock, the genome rules, the operator and the device's name.

    Results of different hashes are not ranked together.
    """
    roots = [Path(evo.fitness.__file__).parent, Path(evo.genome.__file__).parent]
    roots.append(Path(inspect.getfile(type(operator))).parent)
    files = sorted({path for root in roots for path in root.rglob("*") if path.suffix in CODE and _counts(path)})
    return ids.digest([facts.name, *(part for path in files for part in (path.name, path.read_bytes()))])[:16]


def _counts(path: Path) -> bool:
    """Seeds are candidates, not part of the yardstick."""
    return "seeds" not in path.parts


def versions(facts: DeviceFacts) -> Mapping[str, str]:
    """Python, libraries and the device's own."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | dict(facts.versions)

"""Which evaluator, operator, device and versions a result came from."""

from __future__ import annotations

import importlib.metadata
import inspect
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import evo
import evo.fitness
import evo.genome
from evo import ids
from evo.operator import Operator
from evo.records import DeviceFacts

CODE = (".py", ".cu", ".cpp", ".ptx", ".h")
LIBRARIES = ("evo-kernels", "numpy", "deap", "cuda-core", "cuda-bindings")
INTERFACES = ("operator.py", "plan.py", "target.py", "dtypes.py")
# Of `fitness`: what says nothing of a candidate.
NO_YARDSTICK = {"zoo", "filters.py", "findings.py", "health.py", "nvml.py", "tooling.py", "sanitizer.py", "profile.py"}
LENGTH = 12  # characters of a hash: enough to tell versions apart


@cache
def evaluator_hash() -> str:
    """Over the gate, the clock, the targets, the rules of the genome file and the interfaces between them."""
    root = Path(evo.__file__).parent
    files = {f"fitness/{path}": data for path, data in _folder(Path(evo.fitness.__file__).parent)}
    files = {name: data for name, data in files.items() if not NO_YARDSTICK & set(Path(name).parts)}
    files |= {f"genome/{path}": data for path, data in _folder(Path(evo.genome.__file__).parent)}
    files |= {name: (root / name).read_bytes() for name in INTERFACES}
    return _digest(files)


def operator_hash(operator: Operator, target: str) -> str:
    """Over what an operator says is true and fair: cases, contents, reference, tolerance, oracle, baselines, and the
    first seed, which is the yardstick of last resort.

    Its other seeds are candidates and do not count. A third party's counts by the package that its class is in, or by
    the single file where there is no package.
    """
    seeds = [path.resolve() for path in operator.seeds(target)]
    oracle = operator.oracle(target)
    judges = {*seeds[:1], *(path.resolve() for path in operator.genome_baselines(target).values())}
    judges |= {oracle.resolve()} if oracle else set()
    files = {"version": operator.version.encode()}
    for kind in type(operator).__mro__:
        if issubclass(kind, Operator) and kind is not Operator:
            files |= {f"{kind.__module__}:{name}": data for name, data in _module(kind, set(seeds) - judges)}
    files |= {f"judge:{path.name}": path.read_bytes() for path in judges}
    return _digest(files)


def yardstick_hash(operator: Operator, facts: DeviceFacts) -> str:
    """Evaluator, operator and kind of device in one name; results under different ones are never ranked together."""
    device = ids.digest([facts.target, facts.name])[:LENGTH]
    return f"{evaluator_hash()}-{operator_hash(operator, facts.target)}-{device}"


def versions(facts: DeviceFacts) -> Mapping[str, str]:
    """Python, libraries and the device's own."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | dict(facts.versions)


def device_facts(facts: DeviceFacts) -> Mapping[str, str]:
    """What else a certificate says of a GPU: which one, and whether its memory corrects errors."""
    if facts.target == "cpu":
        return {}
    from evo.fitness.cuda.nvml import read_nvml

    gpu = next((gpu for gpu in read_nvml().gpus if gpu.visible == facts.id), None)
    if gpu is None:
        return {}
    ecc = {True: "on", False: "off", None: "unknown"}[gpu.ecc]
    return {"uuid": gpu.uuid, "ecc": ecc}


def _folder(root: Path) -> Iterable[tuple[str, bytes]]:
    """All code below a folder, by relative path."""
    return ((path.relative_to(root).as_posix(), path.read_bytes()) for path in root.rglob("*") if path.suffix in CODE)


def _module(kind: type, candidates: set[Path]) -> Iterable[tuple[str, bytes]]:
    """The code of the package that a class is in, without the files that are candidates; or of its lone module."""
    module = inspect.getmodule(kind)
    file = Path(inspect.getfile(kind))
    if module is None or not module.__package__:
        return [(file.name, file.read_bytes())]
    ours = file.parent.resolve()
    others = {path.relative_to(ours).as_posix() for path in candidates if path.is_relative_to(ours)}
    folders = {Path(path).parent for path in others} - {Path()}  # a folder of seeds may hold those of other targets
    return [
        (name, data) for name, data in _folder(ours) if name not in others and not folders & set(Path(name).parents)
    ]


def _digest(files: Mapping[str, bytes]) -> str:
    return ids.digest(part for name in sorted(files) for part in (name, files[name]))[:LENGTH]

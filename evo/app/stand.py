"""A test stand: an operator, a target with its device, an executor, and the yardstick of every case."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from evo.errors import TargetError, UnknownNameError, UsageError
from evo.fitness.cache import BuildCache
from evo.fitness.calibration import Calibration, calibrate
from evo.fitness.executor import LocalExecutor
from evo.fitness.protocols import must_not_repeat, offered
from evo.genome import Genome
from evo.operator import Case, Operator
from evo.plugins.manager import Plugins
from evo.records import DeviceFacts
from evo.target import Target

CPU = "cpu"


@dataclass(frozen=True)
class Stand:
    operator: Operator
    target: Target
    facts: DeviceFacts
    cases: tuple[Case, ...]  # selected ones and the checks that go with them
    executor: LocalExecutor
    note: str  # how the target was chosen, when it was not named
    protocol: str = ""  # that everything is timed under; "": the target's default

    @property
    def timed(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases if case.group != "check")

    def seeds(self) -> list[Genome]:
        """The operator's genomes for this target, without those written for other architectures."""
        genomes = [Genome.read(path) for path in self.operator.seeds(self.target.name)]
        return [genome for genome in genomes if not genome.arch or self.target.arch in genome.arch]

    def calibrate(
        self,
        say: Callable[[str], None],
        opponents: Mapping[str, Genome] | None = None,
        names: tuple[str, ...] | None = None,
    ) -> Calibration:
        """Chooses the yardsticks; `opponents` replaces the operator's own genome-file baselines. `say` is told later,
        too, should another evo be found to use the device."""
        self.executor.say = say
        if names != ():
            must_not_repeat(self.protocol or self.target.protocols[0], self.target, self.operator)
        files = self.operator.genome_baselines(self.target.name)
        mine = {name: Genome.read(path) for name, path in files.items()} if opponents is None else opponents
        fallback = {f"seed:{genome.species}": genome for genome in self.seeds()}
        return calibrate(
            self.executor, self.operator, self.target, self.cases, mine, fallback=fallback, names=names,
            protocol=self.protocol, say=say,
        )  # fmt: skip


@contextmanager
def stand(plugins: Plugins, operator: str, target: str, patterns: Sequence[str], protocol: str = "") -> Iterator[Stand]:
    """Opens an executor on the target's first device; closed, with all its processes, at the end."""
    item = plugins.operator(operator)
    place, facts, note = choose_target(plugins, target)
    protocol = offered(protocol, place.protocols, f"target {place.name!r}")
    cases = select_cases(item, place.name, patterns)
    if not item.seeds(place.name):
        raise UsageError(f"operator {operator!r} has no seed for target {place.name!r}", fix="choose another --target")
    BuildCache()  # unusable ones are noticed before anything is started
    executor = LocalExecutor([facts])
    try:
        yield Stand(item, place, facts, cases, executor, note, protocol)
    finally:
        executor.close()


def choose_target(plugins: Plugins, name: str) -> tuple[Target, DeviceFacts, str]:
    """The target, its first device, and a note when the choice was evo's."""
    if name == "auto":
        for registered in plugins.targets():
            devices = registered.item.devices() if registered.name != CPU else ()
            if devices:
                return _ready(registered.item), devices[0], f"found {devices[0].name}: target {registered.name}"
        target = _ready(plugins.target(CPU))
        return target, _device(plugins, target), "no GPU found: evolving on the embedded cpu target"
    target = _ready(find_target(plugins, name))
    return target, _device(plugins, target), ""


def find_target(plugins: Plugins, name: str) -> Target:
    """By name, or by a chip's name (H100, H200, B200)."""
    from evo.fitness.cuda.target import canonical_target

    if name not in {registered.name for registered in plugins.targets()}:
        with contextlib.suppress(UnknownNameError):
            name = canonical_target(name)
    return plugins.target(name)


def _ready(target: Target) -> Target:
    missing = target.missing()
    if missing:
        raise TargetError(f"target {target.name!r} cannot build here: {missing}")
    return target


def _device(plugins: Plugins, target: Target) -> DeviceFacts:
    devices = target.devices()
    if devices:
        return devices[0]
    there = [d.name for r in plugins.targets() if r.name != CPU for d in r.item.devices()]
    found = f"the GPUs here: {', '.join(there)}" if there else "no GPU was found here"
    raise TargetError(
        f"target {target.name!r} has no device on this machine; {found}",
        fix="use --target cpu, or build without running: evo check FILE --target "
        f"{target.name} --build-only, or run evo on a machine that has one",
    )


def select_cases(operator: Operator, target: str, patterns: Sequence[str]) -> tuple[Case, ...]:
    """The `tune` cases, or those that a pattern names; and the small checks of the same dtypes."""
    every = operator.cases(target)
    named = [case for case in every if case.group != "check"]
    chosen = [case for case in named if case.group == "tune"]
    if patterns:
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(case.name, pattern) for case in every):
                raise UnknownNameError("case", pattern, [case.name for case in every])
        wanted = [case for case in every if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)]
        chosen = [case for case in wanted if case.group != "check"]
        if not chosen:  # only small checks were named: nothing is timed
            return tuple(wanted)
    kinds = [dict(case.dtypes) for case in chosen]
    checks = [case for case in every if case.group == "check" and dict(case.dtypes) in kinds]
    return (*checks, *chosen)

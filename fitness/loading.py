"""Programs of candidates, loaded once and kept while they are likely to be needed again."""

from __future__ import annotations

from collections import OrderedDict

from evo.errors import GenomeError
from evo.fitness.cache import BuildCache
from evo.fitness.inspection import inspect
from evo.fitness.tasks import Subject
from evo.genome import Genome, machine_id, resolve_plan, uncovered
from evo.operator import Case, Operator
from evo.plan import LaunchPlan
from evo.records import Build, Status
from evo.target import Machine, Program, Rejected

KEPT = 64


class Loader:
    """Least recently used programs stay loaded; evicted ones are closed."""

    def __init__(self, machine: Machine, operator: Operator, cache: BuildCache) -> None:
        self.machine = machine
        self.operator = operator
        self.cache = cache
        self._programs: OrderedDict[str, Program] = OrderedDict()

    def load(self, subject: Subject, case: Case, build_of: str) -> tuple[Program, str]:
        """The subject's program for `case`, made from its build for the case `build_of`, with its machine identity.

        Raises `Rejected` when plan and code do not fit the device.
        """
        genome = Genome.parse(subject.source, subject.suffix)
        try:
            plan = resolve_plan(genome, self.operator, case, subject.values, self.machine.facts)
        except GenomeError as error:
            raise Rejected(Status.INVALID_GENOME, str(error)) from error
        build = subject.code[subject.builds[build_of]]
        key = machine_id(build, plan, genome.build_options(subject.values))
        program = self._programs.get(key)
        if program is None:
            program = self._load(build, plan)
            self._programs[key] = program
            while len(self._programs) > KEPT:
                self._programs.popitem(last=False)[1].close()
        self._programs.move_to_end(key)
        return program, key

    def serves(self, subject: Subject, near: Case, case: Case) -> bool:
        """Whether the build for `case` also serves its neighbour `near`, and the genome claims it."""
        genome = Genome.parse(subject.source, subject.suffix)
        if any(near.dims[name] != case.dims[name] for name in genome.static):
            return False
        return not uncovered(genome, self.operator, near, subject.values, self.machine.facts)

    def _load(self, build: Build, plan: LaunchPlan) -> Program:
        status, diagnosis = inspect(build, plan, self.machine.facts)
        if diagnosis is not None:
            raise Rejected(status, diagnosis.message)
        return self.machine.load(build, self.cache.blobs.get(build.blob), plan)

    def close(self) -> None:
        while self._programs:
            self._programs.popitem()[1].close()

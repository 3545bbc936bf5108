"""One operator on one device: checks and times candidates, and remembers the oracle and the yardsticks.

Lives in the worker process that owns the device. Ties the gate (`check`) and the clock (`clock`) to a machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from evo.fitness.cache import BuildCache
from evo.fitness.check import Gate
from evo.fitness.clock import Rules, Side, light, race, seeded
from evo.fitness.layout import lay_out, oracle_case, refill, slots_for
from evo.fitness.loading import Loader
from evo.fitness.player import Player, baseline_player, program_player
from evo.fitness.tasks import BaselineReport, CalibrateTask, CheckTask, Subject, TimeTask
from evo.operator import Baseline, Case, Operator
from evo.records import CaseResult, Deviation, Diagnosis, Stage, Status
from evo.target import Machine, Rejected

Beat = Callable[[str], None]  # a sign of life: what is about to be done
CALIBRATION_SAMPLES = 9
# Libraries may be less exact than we ask of candidates (torch rounds RMSNorm's weight to the input's type). That is
# their advantage, not ours, so they stay opponents up to this many tolerances.
LIBRARY_SLACK = 2.0


class Session:
    """Not thread-safe; `close` gives the device back. A fatal `Rejected` leaves; the others become records."""

    def __init__(self, machine: Machine, operator: Operator, cache: BuildCache, beat: Beat) -> None:
        self.machine = machine
        self.operator = operator
        self.beat = beat
        self.loader = Loader(machine, operator, cache)
        self.cases = {case.name: case for case in operator.cases(machine.facts.target)}
        self.baselines: dict[str, Baseline] = {b.name: b for b in operator.baselines(machine.facts.target)}
        self.oracle: Subject | None = None
        self.opponents: Mapping[str, Subject] = {}

    def close(self) -> None:
        self.loader.close()
        self.machine.close()

    # --- calibrate: whom to believe and whom to beat

    def calibrate(self, task: CalibrateTask) -> tuple[BaselineReport, ...]:
        """Takes in the oracle and the opponents; when asked, checks the oracle and times everyone."""
        self.oracle, self.opponents = task.oracle, task.opponents
        if not task.measure:
            return ()
        if task.oracle is not None:
            self._check_oracle(task.oracle, task)
        usable = [name for name, baseline in self.baselines.items() if not baseline.missing()]
        names = (*usable, *task.opponents) if task.names is None else task.names
        return tuple(self._report(name, task) for name in names)

    def _check_oracle(self, oracle: Subject, task: CalibrateTask) -> None:
        """An oracle that disagrees with the float64 reference ends the run: nothing could be believed."""
        pairs = [(c, c.name) for c in self.cases.values() if c.group == "check" and c.name in oracle.builds]
        pairs += [(near, name) for name in task.cases for near in self.operator.neighbours(self.cases[name])]
        for case, build_of in pairs:
            self.beat(f"oracle {case.name}")
            try:
                self._deviation(oracle, oracle_case(self.operator, case), build_of, task.seed)
            except Rejected as error:
                message = f"the oracle of {self.operator.name!r} fails on {case.name}: {error.message}"
                raise Rejected(Status.EVALUATOR_ERROR, message, detail=error.detail, fatal=error.fatal) from error

    def _report(self, name: str, task: CalibrateTask) -> BaselineReport:
        baseline, times, failures, settings, errors = self.baselines.get(name), {}, {}, {}, {}
        claimed = [c for c in task.cases if baseline or c in task.opponents[name].builds]
        for case in (self.cases[each] for each in claimed):
            self.beat(f"baseline {name} {case.name}")
            try:
                settings[case.name] = baseline.configuration(case) if baseline else "default genes"
                times[case.name], errors[case.name] = self._measure(name, case, task.seed)
            except Rejected as error:
                if error.fatal:
                    raise
                failures[case.name] = f"{error.status}: {error.message}"
            except Exception as error:  # a baseline may raise anything: it is listed as failed on this case
                failures[case.name] = f"{type(error).__name__}: {error}"
        return BaselineReport(name, baseline.version() if baseline else "", times, errors, failures, settings)

    def _measure(self, name: str, case: Case, seed: int) -> tuple[float, float]:
        """Median microseconds of a call that was checked first, and its relative RMS error."""
        player = self._opponent(name, case)
        gate = self._gate(case, [player], seed, slots_for(self.machine, self.operator, case), timed=True)
        side, worst = self._side(gate, player)
        watch = self.machine.stopwatch(side.calls, light(self.machine, self.operator, case))
        try:
            samples = []
            for _ in range(CALIBRATION_SAMPLES):
                self.beat(f"baseline {name} {case.name}")
                samples.append(watch.sample())
            return statistics.median(samples), worst.rms
        finally:
            watch.close()

    # --- check

    def check(self, task: CheckTask) -> tuple[CaseResult, ...]:
        """Every case with its neighbours; ends at the first that fails."""
        return self._each(task.cases, Stage.CHECK, lambda case: self._check_case(task, case))

    def _check_case(self, task: CheckTask, case: Case) -> CaseResult:
        near = self.operator.neighbours(case) if case.group != "check" else ()
        for each in (each for each in near if self.loader.serves(task.subject, each, case)):
            self.beat(f"check {each.name}")
            self._deviation(task.subject, each, case.name, task.seed)
        self.beat(f"check {case.name}")
        deviation = self._deviation(task.subject, case, case.name, task.seed)
        _, identity = self.loader.load(task.subject, case, case.name)
        return CaseResult(case.name, Status.OK, deviation, machine_id=identity)

    def _deviation(self, subject: Subject, case: Case, build_of: str, seed: int) -> Deviation:
        """One case checked on fresh inputs: of its own distribution where it is timed, of a random one elsewhere."""
        program, _ = self.loader.load(subject, case, build_of)
        player = program_player("candidate", program)
        law = case.distribution
        if case.group == "check":
            law = str(seeded(seed, case.name, "law").choice(list(self.operator.distributions)))
        gate = self._gate(case, [player], seed, 1, law)
        slot = gate.layout.slots[0]
        call = player.call(self.machine, gate.layout.bound(slot, player.owner))
        return gate.check(call, player.plan, slot, player.owner)

    # --- time

    def time(self, task: TimeTask) -> tuple[CaseResult, ...]:
        """Times the cases against the yardstick; ends at the first that fails."""
        return self._each(task.cases, Stage.TIME, lambda case: self._time_case(task, case))

    def _time_case(self, task: TimeTask, case: Case) -> CaseResult:
        self.beat(f"time {case.name}")
        rules = Rules(task.pairs_min, task.pairs_max, task.rivals.get(case.name, 0.0), task.fixed)
        program, identity = self.loader.load(task.subject, case, case.name)
        yardstick = task.yardsticks[case.name]
        players = (program_player("candidate", program), self._opponent(yardstick, case))
        gate = self._gate(case, players, task.seed, slots_for(self.machine, self.operator, case), timed=True)
        candidate, deviation = self._side(gate, players[0])
        try:
            opponent, _ = self._side(gate, players[1], verify=task.fixed)
        except Rejected as error:  # not the candidate's fault
            message = f"the yardstick {yardstick!r} fails here: {error.message}"
            raise Rejected(Status.EVALUATOR_ERROR, message, detail=error.detail, fatal=error.fatal) from error
        timing = race(gate, candidate, opponent, yardstick, rules, lambda: self.beat(f"time {case.name}"))
        return CaseResult(case.name, Status.OK, deviation, timing, machine_id=identity)

    # --- shared

    def _each(self, names: Sequence[str], stage: Stage, judge: Callable[[Case], CaseResult]) -> tuple[CaseResult, ...]:
        results: list[CaseResult] = []
        for name in names:
            try:
                results.append(judge(self.cases[name]))
            except Rejected as error:
                if error.fatal:
                    raise
                diagnosis = Diagnosis(stage, error.message, name, error.detail)
                results.append(CaseResult(name, error.status, diagnosis=diagnosis))
                break
        return tuple(results)

    def _gate(
        self, case: Case, players: Sequence[Player], seed: int, count: int, law: str = "", *, timed: bool = False
    ) -> Gate:
        """Slots with fresh contents for these players and, unless the case is small, the oracle."""
        program = None
        if self.oracle is not None and case.group != "check":
            program, _ = self.loader.load(self.oracle, oracle_case(self.operator, case), case.name)
        plans = {player.owner: player.plan for player in players} | ({"oracle": program.plan} if program else {})
        lanes = self.machine.lanes(light(self.machine, self.operator, case)) if timed else 0
        layout = lay_out(self.machine, self.operator, case, plans, count=count, lanes=lanes)
        gate = Gate(self.machine, self.operator, case, layout, program, seeded(seed, case.name, "contents"))
        for slot in layout.slots:
            refill(self.machine, self.operator, case, slot, gate.rng, law or case.distribution)
        return gate

    def _side(self, gate: Gate, player: Player, *, verify: bool = True) -> tuple[Side, Deviation]:
        """The player's calls, one a slot, each checked in full (an opponent that passed before need not be verified
        again in search); digests kept where its timed outputs can be read."""
        calls = [player.call(self.machine, gate.layout.bound(s, player.owner)) for s in gate.layout.lanes]
        worst, digests = Deviation(0.0, 0.0), []
        for slot, call in zip(gate.layout.slots, calls, strict=False):  # the first lanes are the slots
            if verify:
                slack = 1.0 if player.program else LIBRARY_SLACK
                found = gate.check(call, player.plan, slot, player.owner, repeat=False, slack=slack)
                worst = max(worst, found, key=lambda item: item.rms)
            else:
                gate.prepare(slot, gate.layout.scratch.get(player.owner, {}), player.plan)
                self.machine.run(call)
            digests += gate.digests(slot)
        comparable = player.leaves_bits and self.operator.deterministic
        return Side(player.owner, player.plan, calls, tuple(digests) if comparable else ()), worst

    def _opponent(self, name: str, case: Case) -> Player:
        if name in self.opponents:
            program, _ = self.loader.load(self.opponents[name], case, case.name)
            return program_player("opponent", program)
        return baseline_player(self.baselines[name].prepare(case))

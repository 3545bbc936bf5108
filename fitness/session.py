"""One operator on one device: checks and times candidates, and remembers the oracle and the yardsticks.

Lives in the worker process that owns the device. Ties the gate (`check`) and the clock (`clock`) to a machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from evo.fitness.cache import BuildCache
from evo.fitness.check import Gate
from evo.fitness.clock import Rules, Side, light, race, seeded
from evo.fitness.layout import lay_out, oracle_case, refill, slots_for, turns
from evo.fitness.loading import Loader
from evo.fitness.player import Player, baseline_player, program_player
from evo.fitness.steadiness import WARM_UP_S, settle
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
        self.warm_up_s = WARM_UP_S  # of the first timing in this process; 0 afterwards
        self.errors: dict[tuple[str, str], float] = {}  # relative RMS error by opponent and case, once it was checked

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
        usable = [n for n, b in self.baselines.items() if not b.missing() and not getattr(b, "on_request", False)]
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
                times[case.name], errors[case.name] = self._measure(name, case, task)
            except Rejected as error:
                if error.fatal:
                    raise
                failures[case.name] = f"{error.status}: {error.message}"
            except Exception as error:  # a baseline may raise anything: it is listed as failed on this case
                failures[case.name] = f"{type(error).__name__}: {error}"
        return BaselineReport(name, _version(baseline) if baseline else "", times, errors, failures, settings)

    def _measure(self, name: str, case: Case, task: CalibrateTask) -> tuple[float, float]:
        """Median microseconds of a call that was checked first, and its relative RMS error."""
        player = self._opponent(name, case)
        gate = self._timed_gate(case, [player], task)
        side, worst = self._side(gate, player)
        self.errors[name, case.name] = worst.rms
        watch = self.machine.stopwatch(side.calls, light(self.machine, self.operator, case), task.protocol)
        try:
            settle(self.machine, watch.sample, self._warm_up())
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
        drawn = {case.name: case for case in task.drawn}
        names = (*drawn, *task.cases)
        return self._each(names, Stage.CHECK, lambda case: self._check_case(task, case), self.cases | drawn)

    def _check_case(self, task: CheckTask, case: Case) -> CaseResult:
        near = self.operator.drawn_near(case, seeded(task.seed, case.name, "near"))
        if case.group != "check":
            near = (*self.operator.neighbours(case), *near)
        for each in (each for each in near if self.loader.serves(task.subject, each, case)):
            self.beat(f"check {each.name}")
            self._deviation(task.subject, each, case.name, task.seed)
        self.beat(f"check {case.name}")
        if case.group != "check" and (other := self._other_law(case, task.seed)):
            for turn in range(turns(self.operator, case, other, seeded(task.seed, case.name, "turns"))):
                self._deviation(task.subject, case, case.name, task.seed, other, turn)
        deviation = self._deviation(task.subject, case, case.name, task.seed)
        _, identity = self.loader.load(task.subject, case, case.name)
        return CaseResult(case.name, Status.OK, deviation, machine_id=identity)

    def _other_law(self, case: Case, seed: int) -> str:
        """What a timed shape is also checked under: rows of several kinds where the operator has them."""
        others = [law for law in self.operator.distributions if law != case.distribution]
        return "mixed" if "mixed" in others else str(seeded(seed, case.name, "law").choice(others)) if others else ""

    def _deviation(
        self, subject: Subject, case: Case, build_of: str, seed: int, law: str = "", turn: int = 0
    ) -> Deviation:
        """One case checked on fresh inputs, twice in different places: of its own distribution where it is timed, of a
        random one elsewhere, or of `law`; results under other laws have the tolerance of a check."""
        program, _ = self.loader.load(subject, case, build_of)
        player = program_player("candidate", program)
        if case.group == "check":
            law = str(seeded(seed, case.name, "law").choice(list(self.operator.distributions)))
        gate = self._gate(case, [player], seed, 2, law, turn=turn, readonly=1)
        if law:
            gate = replace(gate, case=replace(case, group="check", distribution=law))
        (call, slot), again = [
            (player.call(self.machine, gate.layout.bound(slot, player.owner)), slot) for slot in gate.layout.slots
        ]
        return gate.check(call, player.plan, slot, player.owner, again=again)

    # --- time

    def time(self, task: TimeTask) -> tuple[CaseResult, ...]:
        """Times the cases against the yardstick; ends at the first that fails. A search goes on where only the clock
        did not hold still: that says nothing of the candidate, and the other cases may win it a place."""
        passing = frozenset() if task.fixed else frozenset({Status.UNSTABLE_TIMING})
        return self._each(task.cases, Stage.TIME, lambda case: self._time_case(task, case), self.cases, passing)

    def _time_case(self, task: TimeTask, case: Case) -> CaseResult:
        self.beat(f"time {case.name}")
        rival = task.rivals.get(case.name, 0.0)
        rules = Rules(task.pairs_min, task.pairs_max, rival, task.fixed, task.seconds_max)
        program, identity = self.loader.load(task.subject, case, case.name)
        yardstick = task.yardsticks[case.name]
        players = (program_player("candidate", program), self._opponent(yardstick, case))
        gate = self._timed_gate(case, players, task)
        candidate, deviation = self._side(gate, players[0])
        try:
            unknown = (yardstick, case.name) not in self.errors
            opponent, found = self._side(gate, players[1], verify=task.fixed or unknown)
        except Rejected as error:  # not the candidate's fault
            message = f"the yardstick {yardstick!r} fails here: {error.message}"
            raise Rejected(Status.EVALUATOR_ERROR, message, detail=error.detail, fatal=error.fatal) from error
        if unknown:
            self.errors[yardstick, case.name] = found.rms
        error_rms = self.errors[yardstick, case.name]
        if players[1].run is not None:  # a library; a plain genome may be more exact than any fast kernel
            gate.as_exact_as(error_rms, deviation.rms)
        timing = race(
            gate, candidate, opponent, yardstick, rules, lambda: self.beat(f"time {case.name}"),
            protocol=task.protocol, warm_up_s=self._warm_up(),
        )  # fmt: skip
        return CaseResult(case.name, Status.OK, deviation, replace(timing, opponent_rms=error_rms), machine_id=identity)

    # --- shared

    def _each(
        self,
        names: Sequence[str],
        stage: Stage,
        judge: Callable[[Case], CaseResult],
        cases: Mapping[str, Case],
        passing: frozenset[Status] = frozenset(),
    ) -> tuple[CaseResult, ...]:
        results: list[CaseResult] = []
        for name in names:
            try:
                results.append(judge(cases[name]))
            except Rejected as error:
                if error.fatal:
                    raise
                diagnosis = Diagnosis(stage, error.message, name, error.detail)
                results.append(CaseResult(name, error.status, diagnosis=diagnosis))
                if error.status not in passing:
                    break
        return tuple(results)

    def _warm_up(self) -> float:
        least_s, self.warm_up_s = self.warm_up_s, 0.0
        return least_s

    def _timed_gate(self, case: Case, players: Sequence[Player], task: TimeTask | CalibrateTask) -> Gate:
        """Slots and lanes as the protocol wants them."""
        protocol = task.protocol or self.machine.protocols[0]
        lanes = self.machine.lanes(light(self.machine, self.operator, case), protocol)
        return self._gate(case, players, task.seed, slots_for(self.machine, self.operator, case, protocol), lanes=lanes)

    def _gate(
        self,
        case: Case,
        players: Sequence[Player],
        seed: int,
        count: int,
        law: str = "",
        *,
        lanes: int = 0,
        turn: int = 0,
        readonly: int = 0,
    ) -> Gate:
        """Slots with fresh contents for these players and, unless the case is small, the oracle."""
        program = None
        if self.oracle is not None and case.group != "check":
            program, _ = self.loader.load(self.oracle, oracle_case(self.operator, case), case.name)
        plans = {player.owner: player.plan for player in players} | ({"oracle": program.plan} if program else {})
        layout = lay_out(self.machine, self.operator, case, plans, count=count, lanes=lanes, readonly=readonly)
        gate = Gate(self.machine, self.operator, case, layout, program, seeded(seed, case.name, "contents", law))
        for slot in layout.slots:
            refill(self.machine, self.operator, case, slot, gate.rng, law or case.distribution, turn)
        return gate

    def _side(self, gate: Gate, player: Player, *, verify: bool = True) -> tuple[Side, Deviation]:
        """The player's calls, one a slot, each checked in full (an opponent that passed before need not be verified
        again in search); digests kept where its timed outputs can be read."""
        calls = [player.call(self.machine, gate.layout.bound(s, player.owner)) for s in gate.layout.lanes]
        worst, digests = Deviation(0.0, 0.0), []
        for slot, call in zip(gate.layout.slots, calls, strict=False):  # the first lanes are the slots
            if verify:
                slack = 1.0 if player.program else LIBRARY_SLACK
                found = gate.check(call, player.plan, slot, player.owner, slack=slack)
                worst = max(worst, found, key=lambda item: item.rms)
            else:
                gate.prepare(slot, player.plan, player.owner)
                self.machine.run(call)
            digests += gate.digests(slot)
        comparable = player.leaves_bits and self.operator.deterministic
        return Side(player.owner, player.plan, calls, tuple(digests) if comparable else ()), worst

    def _opponent(self, name: str, case: Case) -> Player:
        if name in self.opponents:
            program, _ = self.loader.load(self.opponents[name], case, case.name)
            return program_player("opponent", program)
        return baseline_player(self.baselines[name].prepare(case))


def _version(baseline: Baseline) -> str:
    """A baseline may raise anything here, too: one that cannot say what it is was measured all the same."""
    try:
        return baseline.version()
    except Exception as error:
        return f"unknown ({type(error).__name__}: {error})"

"""What prompts tell, for evo's own operators: the contract, cases, device and diagnoses, and never a hold-out case."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from evo.engine.problem import Problem
from evo.genome import Genome, make_candidate
from evo.mutators.agents.desk import RecordedDesk
from evo.mutators.agents.evidence import source_excerpt
from evo.mutators.agents.jobs import Options
from evo.mutators.agents.prompts import Prompts
from evo.mutators.agents.swarm import Swarm
from evo.mutators.agents.worker import Worker
from evo.mutators.base import Parent
from evo.operator import Operator
from evo.operators.kda import Kda
from evo.operators.rmsnorm import RmsNorm
from evo.plugins.manager import Plugins
from evo.records import (  # fmt: skip
    Author,
    Build,
    CaseResult,
    Deviation,
    Diagnosis,
    Evaluation,
    Kernel,
    Proposal,
    Purpose,
    Stage,
    Status,
    Timing,
    Verdict,
)


def swarm_of(operator: Operator, name: str) -> tuple[Swarm, Parent]:
    target = Plugins.load().target(name)
    cases = tuple(case for case in operator.cases(name) if case.group == "tune")
    problem = Problem(operator, name, cases, target.nominal())
    worker = Worker(RecordedDesk({}), Prompts(), Options(), operator, target.arch, problem.cases, problem.facts)
    seed = Genome.read(operator.seeds(name)[0])
    candidate = make_candidate(operator.name, name, seed, {})
    return Swarm(worker, {"a": 1.0}), Parent(candidate.id, seed, candidate.values, {cases[0].name: 0.1})


def evaluated(parent: Parent, operator: Operator, target: str, status: Status, case: str) -> Verdict:
    """A verdict on the parent's own source, which a hold-out case is part of."""
    tune = next(case for case in operator.cases(target) if case.group == "tune")
    timing = Timing("rotation", "torch 2.9", 10.0, 12.0, 1.2, 1.19, 1.21, 0.95, 9, "resolved", light_us=8.0)
    results = (
        CaseResult(tune.name, Status.OK, Deviation(1e-3, 2e-3), timing),
        CaseResult(case, Status.OK, Deviation(1e-3, 2e-3), replace(timing, time_us=77.125)),
    )
    kernel = Kernel("main", registers=168, spill_bytes=24, opcodes={"LDG.E.128": 7}, flags=("uses local memory",))
    build = Build("k", Status.OK, "nvrtc", 0.1, kernels=(kernel,))
    why = None if status is Status.OK else Diagnosis(Stage.CHECK, f"wrong in {case}", case, "y[0]: got 1, expected 2")
    candidate = make_candidate(operator.name, target, parent.genome, parent.values)
    evaluation = Evaluation("e", "r", candidate.id, Purpose.SEARCH, "torch", "cuda:0", status, why, (build,), results)
    return Verdict(Proposal("p", "r", candidate, (), Author("seed")), evaluation)


@pytest.mark.parametrize(("operator", "target"), [(RmsNorm(), "sm_90"), (RmsNorm(), "cpu"), (Kda(), "sm_90")])
def test_no_prompt_names_a_hold_out_case(operator: Operator, target: str) -> None:
    hidden = [case.name for case in operator.cases(target) if case.group == "holdout"]
    swarm, parent = swarm_of(operator, target)
    for status in (Status.OK, Status.WRONG_RESULT):
        for name in hidden or ["none"]:
            verdict = evaluated(parent, operator, target, status, name)
            swarm.tell(verdict, parent.genome, 0.0)
            swarm.knowledge.fail(
                parent.candidate, "i", swarm.knowledge.diagnosis(verdict.proposal.candidate, verdict.evaluation)
            )
    prompts = [swarm.prompt(parent, [parent])]
    for kind in ("_plan", "_history"):
        words = ("a", [parent]) if kind == "_plan" else ("a",)
        prompts.append(swarm.worker.first_prompt(getattr(swarm, kind)(*words)))
    text = "\n".join(request.messages[0].text for request in prompts)
    assert [name for name in hidden if name in text] == []
    assert "77.1" not in text
    shown = next(case.name for case in operator.cases(target) if case.group == "tune")
    for part in (shown, "10 us, 1.200 x as fast as torch 2.9 (1.190 to 1.210), 80 % of the speed of light"):
        assert part in text
    assert "168 registers, 24 bytes spilled" in text
    assert "LDG.E.128 7" in text
    assert operator.tensors[0].name in text


def test_a_log_s_lines_are_shown_with_their_neighbours() -> None:
    source = "\n".join(f"line {number}" for number in range(1, 30))
    log = "candidate.cu(7): error: x\ncandidate.cpp:20:3: warning: y\ncandidate.cu(99999999): z\ncandidate.cu(500): far"
    assert source_excerpt(log, source) == (
        "     6 | line 6\n>    7 | line 7\n     8 | line 8\n    19 | line 19\n>   20 | line 20\n    21 | line 21"
    )
    assert source_excerpt("no place", source) == ""


def test_a_second_parent_comes_with_the_reason_that_it_is_good() -> None:
    operator = RmsNorm()
    swarm, parent = swarm_of(operator, "sm_90")
    other = Genome.read(operator.seeds("sm_90")[1])
    names = [case.name for case in operator.cases("sm_90") if case.group == "tune"]
    mate = Parent("f" * 64, other, other.defaults(), {names[0]: 0.0, names[1]: 0.5})

    class Always(random.Random):
        def random(self) -> float:
            return 0.0

    swarm.directions.add([{"name": "ahead", "hypothesis": "loads are late", "change": "fetch", "effect": "+5 %"}])
    job = swarm._write("a", [parent, mate], [], None, Always())
    text = swarm.worker.first_prompt(job).messages[0].text
    assert (job.kind, job.mates) == ("crossover", (mate.candidate,))
    assert f"where the second parent is better]]\n{names[1]} 1.649 x" in text
    assert f"where the first parent is better]]\n{names[0]} 1.105 x" in text
    assert other.canonical.splitlines()[-1] in text
    assert job.direction == "ahead", "whose try it is"
    assert "the direction to follow]]\nahead: loads are late\nchange: fetch\npredicted effect: +5 %\n" in text
    assert "Write one child that joins what makes each of them good, following the direction. It is an edit" in text

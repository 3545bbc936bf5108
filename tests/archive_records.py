"""Small records that the archive's tests propose and file."""

from __future__ import annotations

from evo.archive import Archive, RunRecord
from evo.ids import digest, new_id
from evo.records import Author, Candidate, CaseResult, Deviation, Evaluation, Proposal, Purpose, Status, Timing

RUN = RunRecord(
    id="run-1", operator="rmsnorm", target="cpu", device="cpu:0", command="evo run", seed=2**70, budget="minutes=1",
    cases=("a", "b"), yardstick="numpy", evaluator="e1", started_s=1000.0, versions={"evo": "0.1.0"},
)  # fmt: skip


def candidate(name: str, species: str = "plain") -> Candidate:
    source = f"// {species}\nint main;"
    return Candidate(digest([name]), "rmsnorm", "cpu", species, ".cpp", source, {"TILE": 8, "LOAD": name})


def proposal(name: str, *parents: str, run: str = "run-1", species: str = "plain", author: str = "seed") -> Proposal:
    ancestors = tuple(candidate(parent).id for parent in parents)
    return Proposal(new_id(), run, candidate(name, species), ancestors, Author(author, "m"), f"note on {name}")


def timed(case: str, ratio: float, status: Status = Status.OK, machine: str = "") -> CaseResult:
    timing = Timing("warm", "numpy", 10 / ratio, 10.0, ratio, ratio * 0.9, ratio * 1.1, 0.95, 2, "resolved")
    return CaseResult(case, status, Deviation(1e-3, 2e-3), timing, machine_id=machine)


def evaluation(
    name: str,
    *cases: CaseResult,
    run: str = "run-1",
    status: Status = Status.OK,
    purpose: Purpose = Purpose.SEARCH,
    yardstick: str = "numpy",
) -> Evaluation:
    return Evaluation(new_id(), run, candidate(name).id, purpose, yardstick, "cpu:0", status, cases=cases)


def add(archive: Archive, name: str, *cases: CaseResult, run: str = "run-1", status: Status = Status.OK) -> Proposal:
    made = proposal(name, run=run)
    archive.propose(made)
    archive.file(evaluation(name, *cases, run=run, status=status), made.id)
    return made

"""Evaluations: filed whole in one transaction, read back as they were filed."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, insert, select, text

from evo.archive import proposals
from evo.archive.rows import (
    Row,
    build_record,
    build_row,
    case_record,
    case_row,
    machines,
    pack_diagnosis,
    pack_json,
    pack_samples,
    score,
    unpack_diagnosis,
    word,
)  # fmt: skip
from evo.archive.tables import BUILD, CASE_RESULT, EVALUATION, EVALUATION_BUILD, SAMPLE, insert_new
from evo.errors import ArchiveError
from evo.ids import digest
from evo.records import Build, CaseResult, Evaluation, Purpose, State, Status

_KNOWN = text("SELECT 1 FROM evaluation WHERE id = :id")
_RUN = text("SELECT operator, target, evaluator, started_s FROM run WHERE id = :id")
_KEEP_BOARD = text(
    "INSERT INTO board (id, operator, target, evaluator, yardstick, protocol, newest_s)"
    " VALUES (:id, :operator, :target, :evaluator, :yardstick, :protocol, :started)"
    " ON CONFLICT (id) DO UPDATE SET newest_s = excluded.newest_s WHERE excluded.newest_s > board.newest_s"
)
_NEXT = text("SELECT coalesce(max(sequence), 0) + 1 FROM evaluation WHERE run = :run")

# Made once: building a statement costs more than running it.
_INSERT = insert(EVALUATION)
_INSERT_BUILDS = insert_new(BUILD)
_INSERT_LINKS = insert(EVALUATION_BUILD)
_INSERT_CASES = insert(CASE_RESULT)
_INSERT_SAMPLES = insert(SAMPLE)


def insert_evaluation(connection: Connection, evaluation: Evaluation, proposal: str | None, state: State) -> None:
    """The evaluation with builds, cases, samples and the proposal's new state. One already there is left as it is."""
    if connection.execute(_KNOWN, {"id": evaluation.id}).first():
        return
    board = _board(connection, evaluation)
    sequence = connection.execute(_NEXT, {"run": evaluation.run}).scalar_one()
    connection.execute(_INSERT, _evaluation_row(evaluation, proposal, board, sequence))
    _insert_builds(connection, evaluation)
    _insert_cases(connection, evaluation, board)
    if proposal is not None:
        proposals.set_state(connection, proposal, state, duplicate_of=evaluation.duplicate_of)


def _board(connection: Connection, evaluation: Evaluation) -> str:
    """The board that the evaluation ranks on, made if it is new."""
    run = connection.execute(_RUN, {"id": evaluation.run}).mappings().first()
    if run is None:
        raise ArchiveError(f"there is no run {evaluation.run!r} in the archive", fix="start the run before filing")
    protocols = {result.timing.protocol for result in evaluation.cases if result.timing}
    names = (run["operator"], run["target"], run["evaluator"], evaluation.yardstick, ", ".join(sorted(protocols)))
    board = digest(names)[:16]  # short, since every case repeats it; there are dozens of boards, not billions
    row = dict(zip(("operator", "target", "evaluator", "yardstick", "protocol"), names, strict=True))
    connection.execute(_KEEP_BOARD, {"id": board, **row, "started": run["started_s"]})
    return board


def _evaluation_row(evaluation: Evaluation, proposal: str | None, board: str, sequence: int) -> Row:
    mean, covered = score(evaluation.cases)
    return {
        "id": evaluation.id, "run": evaluation.run, "candidate": evaluation.candidate, "proposal": proposal,
        "board": board, "sequence": sequence, "purpose": str(evaluation.purpose), "yardstick": evaluation.yardstick,
        "device": evaluation.device, "status": str(evaluation.status),
        "score": mean if evaluation.status is Status.OK else None, "covered": covered,
        "machine_set": machines(evaluation.cases), "diagnosis_json": pack_diagnosis(evaluation.diagnosis),
        "seconds_json": pack_json(dict(evaluation.seconds)), "duplicate_of": evaluation.duplicate_of,
        "filed_s": time.time(),
    }  # fmt: skip


def _insert_builds(connection: Connection, evaluation: Evaluation) -> None:
    if not evaluation.builds:
        return
    rows = [build_row(build) for build in evaluation.builds]
    connection.execute(_INSERT_BUILDS, rows)
    links = [
        {"evaluation": evaluation.id, "position": position, "build": row["id"]} for position, row in enumerate(rows)
    ]
    connection.execute(_INSERT_LINKS, links)


def _insert_cases(connection: Connection, evaluation: Evaluation, board: str) -> None:
    if not evaluation.cases:
        return
    rows = [
        case_row(result, evaluation=evaluation.id, position=position, board=board)
        for position, result in enumerate(evaluation.cases)
    ]
    connection.execute(_INSERT_CASES, rows)
    samples = [
        {"evaluation": evaluation.id, "position": position, "pairs_us": pack_samples(result.timing.samples)}
        for position, result in enumerate(evaluation.cases)
        if result.timing is not None and result.timing.samples
    ]
    if samples:
        connection.execute(_INSERT_SAMPLES, samples)


def load_evaluations(connection: Connection, where: str, value: str) -> list[Evaluation]:
    """Evaluations whose column `where` (id, candidate or proposal) is `value`, in order of filing."""
    query = select(EVALUATION).where(EVALUATION.c[where] == value).order_by(EVALUATION.c.filed_s, EVALUATION.c.sequence)
    return assemble(connection, connection.execute(query).mappings().all())


def load_page(connection: Connection, run: str, *, after: int, size: int) -> tuple[list[Evaluation], int]:
    """The next `size` evaluations of a run behind sequence number `after`, and the last one's number."""
    query = (
        select(EVALUATION)
        .where(EVALUATION.c.run == run, EVALUATION.c.sequence > after)
        .order_by(EVALUATION.c.sequence)
        .limit(size)
    )
    rows = connection.execute(query).mappings().all()
    return assemble(connection, rows), rows[-1]["sequence"] if rows else after


def assemble(connection: Connection, rows: Sequence[Any]) -> list[Evaluation]:
    """Rows of evaluation with their builds, cases and samples, as records in the same order."""
    ids = [row["id"] for row in rows]
    builds = _load_builds(connection, ids)
    cases = _load_cases(connection, ids)
    return [
        Evaluation(
            id=row["id"], run=row["run"], candidate=row["candidate"], purpose=word(Purpose, row["purpose"]),
            yardstick=row["yardstick"], device=row["device"], status=word(Status, row["status"]),
            diagnosis=unpack_diagnosis(row["diagnosis_json"]), builds=tuple(builds[row["id"]]),
            cases=tuple(cases[row["id"]]), seconds=json.loads(row["seconds_json"]), duplicate_of=row["duplicate_of"],
        )
        for row in rows
    ]  # fmt: skip


def _load_builds(connection: Connection, ids: Sequence[str]) -> dict[str, list[Build]]:
    link = EVALUATION_BUILD.c
    query = (
        select(link.evaluation, BUILD)
        .join(BUILD, BUILD.c.id == link.build)
        .where(link.evaluation.in_(ids))
        .order_by(link.evaluation, link.position)
    )
    found: dict[str, list[Build]] = defaultdict(list)
    for row in connection.execute(query).mappings():
        found[row["evaluation"]].append(build_record(row))
    return found


def _load_cases(connection: Connection, ids: Sequence[str]) -> dict[str, list[CaseResult]]:
    case = CASE_RESULT.c
    same = (SAMPLE.c.evaluation == case.evaluation) & (SAMPLE.c.position == case.position)
    query = (
        select(CASE_RESULT, SAMPLE.c.pairs_us)
        .outerjoin(SAMPLE, same)
        .where(case.evaluation.in_(ids))
        .order_by(case.evaluation, case.position)
    )
    found: dict[str, list[CaseResult]] = defaultdict(list)
    for row in connection.execute(query).mappings():
        found[row["evaluation"]].append(case_record(row, row["pairs_us"] or b""))
    return found

"""Shared records to the tables' rows and back: pure functions, no database.

Python floats that are NaN become NULL (SQLite has no NaN) and come back as NaN; infinities pass. Raw samples are kept
as float32: a clock is good to 1e-4, float32 to 6e-8.
"""

from __future__ import annotations

import functools
import json
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import StrEnum
from itertools import chain
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import RowMapping

from evo import codec
from evo.archive.views import ProposalView, RunRecord
from evo.errors import ArchiveError
from evo.genome import machine_set
from evo.ids import digest
from evo.records import (
    Author,
    Build,
    Candidate,
    CaseResult,
    Deviation,
    Diagnosis,
    Kernel,
    Proposal,
    Stage,
    State,
    Status,
    Timing,
)  # fmt: skip

Row = dict[str, Any]  # column name to value, as a Core insert takes it
Stored = RowMapping  # a row that was read
Word = TypeVar("Word", bound=StrEnum)
Read = TypeVar("Read")
Given = ParamSpec("Given")


def word(kind: type[Word], written: str) -> Word:
    """One of a closed set of words. Raises `ArchiveError` for another: no evo that was released wrote it."""
    try:
        return kind(written)
    except ValueError:
        raise ArchiveError(
            f"the archive holds the {kind.__name__.lower()} {written!r}, which this evo does not know",
            fix="`evo archive check` lists such rows",
        ) from None


def legible(read: Callable[Given, Read]) -> Callable[Given, Read]:
    """For what makes a record of a stored row: one that cannot be read was damaged, or is not evo's."""

    @functools.wraps(read)
    def reading(*given: Given.args, **named: Given.kwargs) -> Read:
        try:
            return read(*given, **named)
        except (zlib.error, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            what = read.__name__.removesuffix("_record").removesuffix("_view").removeprefix("unpack_")
            raise ArchiveError(
                f"a stored {what} cannot be read: {type(error).__name__}: {error}",
                fix="`evo archive check` says which rows are damaged; a backup has what they were",
            ) from error

    return reading


def pack_json(data: object) -> str:
    """Compact JSON; the order of keys is kept. Raises `TypeError` on what JSON cannot hold."""
    return json.dumps(data, separators=(",", ":"))


def pack_text(text: str) -> bytes:
    """A long text compressed; any `str` round-trips, lone surrogates included."""
    return zlib.compress(text.encode("utf-8", "surrogatepass")) if text else b""


def unpack_text(data: bytes) -> str:
    return zlib.decompress(data).decode("utf-8", "surrogatepass") if data else ""


def pack_samples(samples: Iterable[tuple[float, float]]) -> bytes:
    """(pairs, 2) little-endian float32."""
    flat = array("f", chain.from_iterable(samples))
    if sys.byteorder == "big":
        flat.byteswap()
    return flat.tobytes()


def unpack_samples(data: bytes) -> tuple[tuple[float, float], ...]:
    flat = array("f", data)
    if sys.byteorder == "big":
        flat.byteswap()
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def run_row(record: RunRecord) -> Row:
    return {
        "id": record.id, "operator": record.operator, "target": record.target, "device": record.device,
        "command": record.command, "seed": str(record.seed), "budget": record.budget,
        "cases_json": pack_json(record.cases), "yardstick": record.yardstick, "evaluator": record.evaluator,
        "started_s": record.started_s, "ended_s": record.ended_s, "state": record.state,
        "versions_json": pack_json(dict(record.versions)),
    }  # fmt: skip


@legible
def run_record(row: Stored) -> RunRecord:
    return RunRecord(
        id=row["id"], operator=row["operator"], target=row["target"], device=row["device"], command=row["command"],
        seed=int(row["seed"]), budget=row["budget"], cases=tuple(json.loads(row["cases_json"])),
        yardstick=row["yardstick"], evaluator=row["evaluator"], started_s=row["started_s"], ended_s=row["ended_s"],
        state=row["state"], versions=json.loads(row["versions_json"]),
    )  # fmt: skip


def source_hash(text: str) -> str:
    return digest((text.encode("utf-8", "surrogatepass"),))


def candidate_row(candidate: Candidate, source: str) -> Row:
    """`source` is the hash of the candidate's source."""
    return {
        "id": candidate.id, "operator": candidate.operator, "target": candidate.target, "species": candidate.species,
        "suffix": candidate.suffix, "source": source, "values_json": pack_json(dict(candidate.values)),
    }  # fmt: skip


@legible
def candidate_record(row: Stored) -> Candidate:
    """From a row of candidate joined with its source's `text`."""
    return Candidate(
        id=row["id"], operator=row["operator"], target=row["target"], species=row["species"], suffix=row["suffix"],
        source=unpack_text(row["text"]), values=json.loads(row["values_json"]),
    )  # fmt: skip


def proposal_row(proposal: Proposal, state: State, now_s: float) -> Row:
    return {
        "id": proposal.id, "run": proposal.run, "candidate": proposal.candidate.id, "author": proposal.author.kind,
        "model": proposal.author.model, "note": proposal.note, "state": str(state), "lease_until_s": None,
        "duplicate_of": None, "created_s": now_s,
    }  # fmt: skip


@legible
def proposal_view(row: Stored, candidate: Candidate, parents: tuple[str, ...]) -> ProposalView:
    author = Author(row["author"], row["model"])
    proposal = Proposal(row["id"], row["run"], candidate, parents, author, row["note"])
    return ProposalView(
        proposal, word(State, row["state"]), row["created_s"], row["lease_until_s"], row["duplicate_of"] or ""
    )


def build_row(build: Build) -> Row:
    kernels = codec.dumps(build.kernels, tuple[Kernel, ...])
    row: Row = {
        "key": build.key, "status": str(build.status), "toolchain": build.toolchain, "seconds": build.seconds,
        "diagnosis_json": pack_diagnosis(build.diagnosis), "blob": build.blob, "code_hash": build.code_hash,
        "kernels": kernels, "log": pack_text(build.log),
    }  # fmt: skip
    row["id"] = digest(value if isinstance(value, bytes) else repr(value) for value in row.values())
    row["kernels"] = zlib.compress(kernels)
    return row


@legible
def build_record(row: Stored) -> Build:
    kernels: tuple[Kernel, ...] = codec.loads(tuple[Kernel, ...], zlib.decompress(row["kernels"]))
    return Build(
        key=row["key"], status=word(Status, row["status"]), toolchain=row["toolchain"], seconds=row["seconds"],
        diagnosis=unpack_diagnosis(row["diagnosis_json"]), blob=row["blob"], code_hash=row["code_hash"],
        kernels=kernels, log=unpack_text(row["log"]),
    )  # fmt: skip


_DEVIATION = ("error_rms", "error_max", "error_row", "worst_index", "worst_got", "worst_expected")
_TIMING = (
    "protocol", "opponent", "time_us", "opponent_us", "ratio", "low", "high", "level", "pairs", "stopped",
    "clocks_json", "light_us", "method", "more_json",
)  # fmt: skip
_ELSEWHERE = {"samples", "clocks", *_TIMING}  # fields of a timing that have a column, or a table


def case_row(result: CaseResult, *, evaluation: str, position: int, board: str) -> Row:
    row: Row = {
        "evaluation": evaluation, "position": position, "board": board, "case_name": result.case,
        "status": str(result.status), "machine_id": result.machine_id,
        "diagnosis_json": pack_diagnosis(result.diagnosis),
    }  # fmt: skip
    row.update(dict.fromkeys(_DEVIATION + _TIMING))
    if result.deviation is not None:
        d = result.deviation
        row.update(zip(_DEVIATION, (d.rms, d.max, d.row, d.index, d.got, d.expected), strict=True))
    if result.timing is not None:
        t = result.timing
        timing = (
            t.protocol, t.opponent, t.time_us, t.opponent_us, t.ratio, t.low, t.high, t.level, t.pairs, t.stopped,
            pack_json(dict(t.clocks)), t.light_us, t.method, _more(t),
        )  # fmt: skip
        row.update(zip(_TIMING, timing, strict=True))
    return {name: None if value != value else value for name, value in row.items()}  # a server ranks NaN highest


@legible
def case_record(row: Stored, samples: bytes) -> CaseResult:
    return CaseResult(
        case=row["case_name"], status=word(Status, row["status"]), deviation=_deviation(row),
        timing=_timing(row, samples), diagnosis=unpack_diagnosis(row["diagnosis_json"]), machine_id=row["machine_id"],
    )  # fmt: skip


def _deviation(row: Stored) -> Deviation | None:
    if row["worst_index"] is None:
        return None
    return Deviation(
        rms=real(row["error_rms"]), max=real(row["error_max"]), row=real(row["error_row"]), index=row["worst_index"],
        got=real(row["worst_got"]), expected=real(row["worst_expected"]),
    )  # fmt: skip


def _more(timing: Timing) -> str | None:
    """The timing's fields that have no column, as JSON; None where all have their defaults."""
    others = [field for field in fields(Timing) if field.name not in _ELSEWHERE]
    found = {field.name: getattr(timing, field.name) for field in others}
    found = {field.name: found[field.name] for field in others if found[field.name] != field.default}
    return pack_json(found) if found else None


def _timing(row: Stored, samples: bytes) -> Timing | None:
    if row["protocol"] is None:
        return None
    more = json.loads(row["more_json"] or "{}")
    others: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in more.items()}
    return Timing(
        protocol=row["protocol"], opponent=row["opponent"], time_us=real(row["time_us"]),
        opponent_us=real(row["opponent_us"]), ratio=real(row["ratio"]), low=real(row["low"]), high=real(row["high"]),
        level=real(row["level"]), pairs=row["pairs"], stopped=row["stopped"], samples=unpack_samples(samples),
        clocks=json.loads(row["clocks_json"]), light_us=real(row["light_us"]), method=row["method"],
        **others,
    )  # fmt: skip


def real(value: float | None) -> float:
    return math.nan if value is None else float(value)  # SQLite keeps a text in a column of numbers, if told to


def pack_diagnosis(diagnosis: Diagnosis | None) -> str | None:
    if diagnosis is None:
        return None
    d = diagnosis
    return pack_json({"stage": d.stage, "message": d.message, "case": d.case, "detail": d.detail})


@legible
def unpack_diagnosis(data: str | None) -> Diagnosis | None:
    if data is None:
        return None
    found = json.loads(data)
    return Diagnosis(word(Stage, found["stage"]), found["message"], found["case"], found["detail"])


def score(results: Iterable[CaseResult]) -> tuple[float | None, int]:
    """The geometric mean of the ratios of the ok cases, and how many those are."""
    ratios = [result.timing.ratio for result in results if result.status is Status.OK and result.timing is not None]
    logs = [math.log(ratio) for ratio in ratios if 0 < ratio < math.inf]
    return (math.exp(math.fsum(logs) / len(logs)), len(logs)) if logs else (None, 0)


def machines(results: Iterable[CaseResult]) -> str:
    """The machine set of an evaluation's cases; "" when no case got as far."""
    return machine_set({result.case: result.machine_id for result in results if result.machine_id})

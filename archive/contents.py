"""Whether what the archive holds is what it says: hashes of names, blobs of their format, scores of their cases."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, text

from evo import codec
from evo.archive.rows import source_hash, unpack_text, word
from evo.genome.identity import name_of
from evo.records import Kernel, Purpose, State, Status

_BLOCK = 500
_CASES = (
    "SELECT e.id, e.score, e.covered, r.ratio FROM evaluation e"
    " LEFT JOIN case_result r ON r.evaluation = e.id AND r.status = 'ok' AND r.ratio > 0"
    " WHERE e.score IS NOT NULL ORDER BY e.id"
)


def damaged_rows(connection: Connection) -> dict[str, list[str]]:
    """Ids of the rows that are not what they say, by what is wrong. Reads everything once, a block at a time."""
    return {
        what: [key for key, *row in _stream(connection, query) if not _sound(test, key, *row)]
        for what, (query, test) in _TESTS.items()
    } | {"a score that is not the mean of its cases": _wrong_scores(connection)}


def _stream(connection: Connection, query: str) -> Any:
    return connection.execute(text(query).execution_options(yield_per=_BLOCK))


def _sound(test: Callable[..., bool], *row: Any) -> bool:
    try:
        return test(*row)
    except Exception:  # whatever a decoder says of bytes that are not its own, they are damaged
        return False


def _source(key: str, data: bytes) -> bool:
    return source_hash(unpack_text(data)) == key


def _candidate(key: str, operator: str, target: str, suffix: str, values: str, source: bytes) -> bool:
    return key == name_of(operator, target, suffix, _canonical(source), json.loads(values))


@lru_cache(maxsize=256)
def _canonical(data: bytes) -> str:
    return unpack_text(data)


def _build(_: str, kernels: bytes, log: bytes, diagnosis: str | None) -> bool:
    codec.loads(tuple[Kernel, ...], zlib.decompress(kernels))
    return isinstance(unpack_text(log), str) and _diagnosis(diagnosis)


def _samples(_: str, data: bytes, pairs: int) -> bool:
    return len(data) == 8 * pairs


def _evaluation(_: str, diagnosis: str | None, seconds: str) -> bool:
    return _diagnosis(diagnosis) and isinstance(json.loads(seconds), dict)


def _words(*kinds: type[StrEnum]) -> Callable[..., bool]:
    return lambda _, *written: all(word(kind, each) for kind, each in zip(kinds, written, strict=True))


def _diagnosis(diagnosis: str | None) -> bool:
    return diagnosis is None or isinstance(json.loads(diagnosis)["message"], str)


_TESTS: Mapping[str, tuple[str, Callable[..., bool]]] = {
    "a source that is not what its hash says": ("SELECT hash, text FROM source", _source),
    "a candidate that is not what its id says": (
        "SELECT c.id, c.operator, c.target, c.suffix, c.values_json, s.text FROM candidate c"
        " JOIN source s ON s.hash = c.source ORDER BY c.source", _candidate,
    ),
    "a build with unreadable facts": ("SELECT id, kernels, log, diagnosis_json FROM build", _build),
    "samples that are not as many as their case says": (
        "SELECT s.evaluation, s.pairs_us, r.pairs FROM sample s"
        " JOIN case_result r ON r.evaluation = s.evaluation AND r.position = s.position", _samples,
    ),
    "an evaluation with an unreadable diagnosis": (
        "SELECT id, diagnosis_json, seconds_json FROM evaluation", _evaluation,
    ),
    "a proposal in a state that this evo does not know": ("SELECT id, state FROM proposal", _words(State)),
    "an evaluation with words that this evo does not know": (
        "SELECT id, purpose, status FROM evaluation", _words(Purpose, Status),
    ),
    "a case with a status that this evo does not know": ("SELECT evaluation, status FROM case_result", _words(Status)),
}  # fmt: skip


def _wrong_scores(connection: Connection) -> list[str]:
    """Scores that are not the geometric mean of the evaluation's ok cases."""
    wrong: list[str] = []
    current: Any = None
    logs: list[float] = []

    def close() -> None:
        if current is not None and not _is_mean(current.score, current.covered, logs):
            wrong.append(current.id)

    for row in _stream(connection, _CASES):
        if current is None or row.id != current.id:
            close()
            current, logs = row, []
        if row.ratio is not None and math.isfinite(row.ratio):
            logs.append(math.log(row.ratio))
    close()
    return wrong


def _is_mean(score: float, covered: int, logs: list[float]) -> bool:
    return (
        len(logs) == covered and bool(logs) and math.isclose(score, math.exp(math.fsum(logs) / covered), rel_tol=1e-9)
    )

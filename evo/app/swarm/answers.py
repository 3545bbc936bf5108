"""Answers as they come from outside: a genome file, edits, or the pinned JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evo.app.swarm.asked import Told
from evo.app.swarm.asking import Desk, asked, open_desk
from evo.archive import Archive
from evo.errors import UsageError
from evo.genome import Genome
from evo.genome.genome import SUFFIXES
from evo.genome.header import MAX_SOURCE_BYTES
from evo.plugins.manager import Plugins
from evo.records import Author

KEYS = "ask, parents, source | edits | values, note, author: {kind, model}"


class Edit(BaseModel):
    model_config = ConfigDict(extra="forbid")

    search: str
    replace: str


class By(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: str = "agent"
    model: str = ""


class Answer(BaseModel):
    """The pinned object that `tell` takes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ask: str = ""
    parents: list[str] = Field(default=[], max_length=8)
    source: str = ""
    edits: str | list[Edit] = ""
    values: dict[str, int | str] = {}
    note: str = Field(default="", max_length=4000)
    author: By = By()
    suffix: str = ""


def read_answer(file: Path | None, *, genes: Mapping[str, str], stdin: TextIO) -> dict[str, Any]:
    """What a file (or, as `-`, standard input) and `--gene` options say, as the pinned object. Values stay texts."""
    answer: dict[str, Any] = {"values": dict(genes)} if genes else {}
    if file is None:
        return answer
    text, suffix = _text(file, stdin)
    if suffix == ".json" or text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{file} is not JSON: {error}", fix=f"an answer is an object with {KEYS}") from None
        if not isinstance(data, dict):
            raise UsageError(f"{file} holds no object", fix=f"an answer is an object with {KEYS}")
        return data | answer
    if suffix in SUFFIXES:
        return answer | {"source": text, "suffix": suffix}
    return answer | {"edits": text}  # or a whole file inside an answer's words


def _text(file: Path, stdin: TextIO) -> tuple[str, str]:
    if str(file) == "-":
        return stdin.read(2 * MAX_SOURCE_BYTES), ""
    if file.is_dir():
        raise UsageError(f"{file} is a folder", fix="name a genome file, edits, or an answer as JSON")
    if not file.is_file():
        raise UsageError(f"no such file: {file}", fix="name a genome file, edits, or an answer as JSON")
    try:
        return file.read_bytes()[: 2 * MAX_SOURCE_BYTES].decode(), file.suffix
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}", fix="an answer is UTF-8 text") from None


def desk_for(archive: str, answer: Mapping[str, Any], *, run: str, operator: str, target: str) -> Desk:
    """The desk that an answer belongs to: the run or operator named, else those of its ask, its parents, its source.

    Raises `UsageError` where nothing tells, and for a whole genome of another operator: before an archive is made.
    """
    source, suffix = str(answer.get("source") or ""), str(answer.get("suffix") or "")
    if operator and source and suffix in SUFFIXES:
        Genome.parse(source, suffix).contract(Plugins.load().operator(operator))
    if not (run or operator):
        run, operator, place = _belongs(archive, answer)
        target = place if target == "auto" else target
    return open_desk(archive, run=run, operator=operator, target=target)


def _belongs(archive: str, answer: Mapping[str, Any]) -> tuple[str, str, str]:
    """(run, operator, target), the first or the others empty."""
    if answer.get("ask") or answer.get("parents"):
        with Archive.open(archive, create=False) as store, store.reading() as connection:
            if ask := str(answer.get("ask") or ""):
                return asked(connection, ask).run, "", "auto"
            for parent in answer.get("parents") or ():
                candidate = store.candidate(str(parent))
                return "", candidate.operator, candidate.target
    if source := str(answer.get("source") or ""):
        suffix = str(answer.get("suffix") or ".cu")
        return "", Genome.parse(source, suffix).operator, "cpu" if suffix == ".cpp" else "auto"
    raise UsageError("which operator is this for?", fix="name it: --operator NAME, --run RUN, --parent ID or --ask ID")


def tell_answer(desk: Desk, answer: Mapping[str, Any]) -> Told:
    """Tells the pinned object to a desk. Raises `UsageError` for one of another shape."""
    given = {key: value for key, value in answer.items() if value not in (None, "", [], {})}
    try:
        read = Answer.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "answer"
        raise UsageError(f"{where}: {first['msg']}", fix=f"an answer is an object with {KEYS}") from None
    edits = read.edits if isinstance(read.edits, str) else [edit.model_dump() for edit in read.edits]
    return desk.tell(
        source=read.source, edits=edits, values=read.values, parents=read.parents, note=read.note, ask=read.ask,
        author=Author(read.author.kind, read.author.model), suffix=read.suffix,
    )  # fmt: skip

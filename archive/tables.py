"""The archive's tables.

Ids are text (content hashes or time-ordered UUIDs), so that archives merge. Times of day are seconds since the epoch
(`_s`), measured times microseconds (`_us`). A float that is NaN is kept as NULL. Columns named `*_json` hold compact
JSON, `bytes` columns hold zlib-compressed text or raw float32 (see `evo.archive.rows`).

These classes describe the newest schema; the files that make it are numbered SQL (see `evo.archive.migrations`), and
a test holds the two together.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import ForeignKeyConstraint, Index, MetaData, Table, TextClause, text
from sqlmodel import Field, SQLModel

OPEN_STATES = "state IN ('pending', 'building', 'evaluating')"  # literal, so that the partial index applies
_NO_ROWID = {"sqlite_with_rowid": False}  # the text key is the row's place: no second copy of it in an index


def _ranked(name: str, *columns: str) -> Index:
    """An index of the rows that have a value in the last column."""
    present = text(f"{columns[-1]} IS NOT NULL")
    return Index(name, *columns, sqlite_where=present, postgresql_where=present)


class Base(SQLModel):
    metadata = MetaData()  # our own: a plugin's SQLModel tables are none of the archive's


class RunRow(Base, table=True):
    __tablename__: ClassVar[Any] = "run"
    id: str = Field(primary_key=True)
    operator: str
    target: str
    device: str
    command: str
    seed: str  # an integer of any size
    budget: str
    cases_json: str
    yardstick: str
    evaluator: str
    started_s: float
    ended_s: float | None
    state: str
    versions_json: str


class RunStateRow(Base, table=True):
    """What the engine needs to go on after a kill."""

    __tablename__: ClassVar[Any] = "run_state"
    run: str = Field(primary_key=True, foreign_key="run.id")
    data_json: str
    saved_s: float


class SourceRow(Base, table=True):
    """Canonical source, once, however many candidates differ only by gene values."""

    __tablename__: ClassVar[Any] = "source"
    hash: str = Field(primary_key=True)
    text: bytes


class CandidateRow(Base, table=True):
    __tablename__: ClassVar[Any] = "candidate"
    __table_args__: ClassVar[Any] = _NO_ROWID
    id: str = Field(primary_key=True)
    operator: str
    target: str
    species: str
    suffix: str
    source: str = Field(foreign_key="source.hash")
    values_json: str


class ProposalRow(Base, table=True):
    __tablename__: ClassVar[Any] = "proposal"
    __table_args__: ClassVar[Any] = (
        Index("proposal_by_candidate", "candidate", "id"),
        Index("proposal_open", "run", sqlite_where=text(OPEN_STATES), postgresql_where=text(OPEN_STATES)),
    )
    id: str = Field(primary_key=True)
    run: str = Field(foreign_key="run.id")
    candidate: str = Field(foreign_key="candidate.id")
    author: str
    model: str
    note: str
    state: str
    lease_until_s: float | None
    duplicate_of: str | None = Field(foreign_key="candidate.id")
    created_s: float


class ProposalParentRow(Base, table=True):
    __tablename__: ClassVar[Any] = "proposal_parent"
    __table_args__: ClassVar[Any] = _NO_ROWID
    proposal: str = Field(primary_key=True, foreign_key="proposal.id")
    position: int = Field(primary_key=True)
    parent: str = Field(foreign_key="candidate.id")


class BoardRow(Base, table=True):
    """Evaluations whose ratios may be ranked together: one operator, target, evaluator, yardstick and protocol ("" for
    those that were never timed)."""

    __tablename__: ClassVar[Any] = "board"
    id: str = Field(primary_key=True)
    operator: str
    target: str
    evaluator: str
    yardstick: str
    newest_s: float  # start of the newest run that filed into it
    protocol: str = Field(sa_column_kwargs={"server_default": text("''")})


class BuildRow(Base, table=True):
    """The outcome of one compilation. `id` hashes the whole outcome: a retried build has the same key, another id."""

    __tablename__: ClassVar[Any] = "build"
    id: str = Field(primary_key=True)
    key: str
    status: str
    toolchain: str
    seconds: float
    diagnosis_json: str | None
    blob: str
    code_hash: str
    kernels: bytes
    log: bytes


class EvaluationRow(Base, table=True):
    __tablename__: ClassVar[Any] = "evaluation"
    __table_args__: ClassVar[Any] = (
        Index("evaluation_by_run", "run", "sequence", unique=True),
        Index("evaluation_by_candidate", "candidate"),
        _ranked("evaluation_by_score", "board", "score"),
    )
    id: str = Field(primary_key=True)
    run: str = Field(foreign_key="run.id")
    candidate: str = Field(foreign_key="candidate.id")
    proposal: str | None = Field(foreign_key="proposal.id")
    board: str = Field(foreign_key="board.id")
    sequence: int  # order of filing within the run, from 1
    purpose: str
    yardstick: str
    device: str
    status: str
    score: float | None  # geometric mean of the ratios of the ok cases; NULL unless the status is ok
    covered: int  # number of ok cases that have a ratio
    machine_set: str  # digest of (case, machine id) over the cases; "" where nothing was built
    diagnosis_json: str | None
    seconds_json: str
    duplicate_of: str
    filed_s: float


class EvaluationBuildRow(Base, table=True):
    __tablename__: ClassVar[Any] = "evaluation_build"
    __table_args__: ClassVar[Any] = _NO_ROWID
    evaluation: str = Field(primary_key=True, foreign_key="evaluation.id")
    position: int = Field(primary_key=True)
    build: str = Field(foreign_key="build.id")


class CaseResultRow(Base, table=True):
    """One case. `worst_index` is NULL where there is no deviation, `protocol` where there is no timing."""

    __tablename__: ClassVar[Any] = "case_result"
    __table_args__: ClassVar[Any] = (
        _ranked("case_result_by_ratio", "board", "case_name", "ratio"),
        _NO_ROWID,
    )
    evaluation: str = Field(primary_key=True, foreign_key="evaluation.id")
    position: int = Field(primary_key=True)
    board: str  # the evaluation's, repeated for the index
    case_name: str
    status: str
    machine_id: str
    diagnosis_json: str | None
    error_rms: float | None
    error_max: float | None
    error_row: float | None
    worst_index: int | None
    worst_got: float | None
    worst_expected: float | None
    protocol: str | None
    opponent: str | None
    time_us: float | None
    opponent_us: float | None
    ratio: float | None
    low: float | None
    high: float | None
    level: float | None
    pairs: int | None
    stopped: str | None
    clocks_json: str | None
    light_us: float | None
    method: str | None
    more_json: str | None  # of the timing: fields that have no column of their own, where they differ from the default


class SampleRow(Base, table=True):
    """Raw (candidate_us, opponent_us) pairs of one case: little-endian float32, shape (pairs, 2)."""

    __tablename__: ClassVar[Any] = "sample"
    __table_args__: ClassVar[Any] = (
        ForeignKeyConstraint(["evaluation", "position"], ["case_result.evaluation", "case_result.position"]),
        _NO_ROWID,
    )
    evaluation: str = Field(primary_key=True)
    position: int = Field(primary_key=True)
    pairs_us: bytes


class DeviceRow(Base, table=True):
    """A device as found. `id` hashes the facts: a new driver makes a new row."""

    __tablename__: ClassVar[Any] = "device"
    id: str = Field(primary_key=True)
    device: str
    name: str
    target: str
    facts_json: str
    first_seen_s: float


class EnvironmentRow(Base, table=True):
    """Versions, host and settings; `id` hashes them."""

    __tablename__: ClassVar[Any] = "environment"
    id: str = Field(primary_key=True)
    facts_json: str
    first_seen_s: float


class LessonRow(Base, table=True):
    """What was learned (see `evo.lesson`). `effect`, `low` and `high` are natural logarithms; `weight` orders lessons
    of one scope. Its words lie in the full-text index `lesson_text`."""

    __tablename__: ClassVar[Any] = "lesson"
    __table_args__: ClassVar[Any] = (
        Index("lesson_by_key", "key", unique=True),
        Index("lesson_by_scope", "operator", "target", "weight"),
    )
    id: str = Field(primary_key=True)
    key: str
    kind: str
    claim: str
    operator: str
    target: str
    species: str
    family: str
    dtype: str
    genes_json: str
    direction: int
    effect: float | None
    low: float | None
    high: float | None
    pairs: int
    supporting: int
    refuting: int
    origin: str
    author: str
    standing: str
    reason: str
    weight: float
    created_s: float
    updated_s: float


class LessonEvidenceRow(Base, table=True):
    """An evaluation for or against a lesson; no foreign key, since it may lie in another team's archive."""

    __tablename__: ClassVar[Any] = "lesson_evidence"
    __table_args__: ClassVar[Any] = _NO_ROWID
    lesson: str = Field(primary_key=True, foreign_key="lesson.id")
    evaluation: str = Field(primary_key=True)
    supports: int
    effect: float | None


class NicheRow(Base, table=True):
    """The niche of a right candidate by its behaviour, with the board and score of its evaluation for the index."""

    __tablename__: ClassVar[Any] = "niche"
    __table_args__: ClassVar[Any] = (Index("niche_by_score", "board", "niche", "score"), _NO_ROWID)
    evaluation: str = Field(primary_key=True, foreign_key="evaluation.id")
    board: str
    niche: str
    score: float


class MessageRow(Base, table=True):
    """What is said to a run from outside (see `evo.archive.messages`)."""

    __tablename__: ClassVar[Any] = "message"
    __table_args__: ClassVar[Any] = (
        Index("message_by_run", "run", "said_s"),
        Index("message_by_subject", "subject"),
    )
    id: str = Field(primary_key=True)
    run: str = Field(foreign_key="run.id")
    kind: str
    subject: str  # the id that it is about
    data_json: str
    said_s: float


class ExchangeRow(Base, table=True):
    """One call of a language model. `prompt` is the digest of the request; texts are compressed, and free of keys."""

    __tablename__: ClassVar[Any] = "exchange"
    __table_args__: ClassVar[Any] = (Index("exchange_by_run", "run", "job", "step"),)
    id: str = Field(primary_key=True)
    run: str = Field(foreign_key="run.id")
    job: int
    step: int
    role: str
    model: str
    prompt: str
    request: bytes
    answer: bytes
    finish: str
    error: str
    attempts: int
    tokens_in: int
    tokens_out: int
    usage_json: str
    usd: float | None  # NULL: the price is not known
    charged_usd: float  # what the budget was charged
    started_s: float
    seconds: float
    memory: bytes


class AgentJobRow(Base, table=True):
    """What became of a job: the candidate's id, or "" and the problem. No foreign key: what was known already may be
    another archive's."""

    __tablename__: ClassVar[Any] = "agent_job"
    __table_args__: ClassVar[Any] = (Index("agent_job_by_candidate", "candidate"),)
    run: str = Field(primary_key=True, foreign_key="run.id")
    job: int = Field(primary_key=True)
    kind: str
    model: str
    direction: str
    candidate: str
    idea: str
    problem: str


class TurnRow(Base, table=True):
    """What a run with agents did in one turn of its loop, in order (see `evo.archive.exchanges`)."""

    __tablename__: ClassVar[Any] = "turn"
    run: str = Field(primary_key=True, foreign_key="run.id")
    number: int = Field(primary_key=True)
    events: str


class MigrationRow(Base, table=True):
    __tablename__: ClassVar[Any] = "migration"
    number: int = Field(primary_key=True)
    name: str
    applied_s: float


def insert_new(table: Table) -> TextClause:
    """An insert of a whole row that leaves the one already there as it is: alike in every database."""
    names = table.columns.keys()
    values = ", ".join(f":{name}" for name in names)
    return text(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values}) ON CONFLICT DO NOTHING")


def _table(row: type[Base]) -> Table:
    """The Core table: rows are written and read as plain tuples, never as ORM objects."""
    return Base.metadata.tables[str(row.__tablename__)]


RUN, RUN_STATE = _table(RunRow), _table(RunStateRow)
SOURCE, CANDIDATE = _table(SourceRow), _table(CandidateRow)
PROPOSAL, PROPOSAL_PARENT = _table(ProposalRow), _table(ProposalParentRow)
BOARD, BUILD = _table(BoardRow), _table(BuildRow)
EVALUATION, EVALUATION_BUILD = _table(EvaluationRow), _table(EvaluationBuildRow)
CASE_RESULT, SAMPLE = _table(CaseResultRow), _table(SampleRow)
LESSON, LESSON_EVIDENCE, NICHE = _table(LessonRow), _table(LessonEvidenceRow), _table(NicheRow)
DEVICE, ENVIRONMENT, MIGRATION = _table(DeviceRow), _table(EnvironmentRow), _table(MigrationRow)
MESSAGE = _table(MessageRow)
EXCHANGE, AGENT_JOB, TURN = _table(ExchangeRow), _table(AgentJobRow), _table(TurnRow)

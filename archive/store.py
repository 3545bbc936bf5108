"""The archive: everything that runs propose, measure and learn, in one SQLite file or on a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, Engine, text

from evo.archive import claims, evaluations, proposals, ranking, runs, server
from evo.archive.connect import BUSY_S, open_database
from evo.archive.faults import Place
from evo.archive.prefixes import find_one
from evo.archive.rows import pack_json
from evo.archive.transactions import Transactions
from evo.archive.views import Elite, RunRecord, RunState
from evo.errors import ArchiveError
from evo.records import Candidate, DeviceFacts, Evaluation, Proposal, State

_PAGE = 200  # evaluations read at a time

_KNOWN = text(
    "SELECT e.candidate, e.status FROM evaluation e JOIN board b ON b.id = e.board"
    " WHERE b.operator = :operator AND b.target = :target AND :evaluator IN ('', b.evaluator)"
    " ORDER BY e.status <> 'evaluator_error', e.filed_s, e.id"
)
_MACHINES = text(
    "SELECT e.machine_set, e.candidate FROM evaluation e JOIN board b ON b.id = e.board"
    " WHERE b.operator = :operator AND b.target = :target AND :evaluator IN ('', b.evaluator)"
    " AND e.machine_set <> '' AND e.status <> 'evaluator_error' ORDER BY e.filed_s DESC, e.id DESC"
)


class Archive:
    """One open archive. Threads may share it; several processes may have the same one open.

    Every method raises `ArchiveError` when the place fails it: locked beyond the time-out, read-only, disk full,
    damaged, not reached. Writes are committed when the method, or the batch round it, returns: a kill after that loses
    nothing.
    """

    def __init__(self, place: Place, engine: Engine, *, readonly: bool) -> None:
        self.place = place
        self._engine = engine
        self._transactions = Transactions(engine, place, readonly=readonly)

    @property
    def path(self) -> Path:
        """The archive's file. Raises `ArchiveError` when it lies on a server."""
        if isinstance(self.place, str):
            raise ArchiveError(f"the archive {self.place} is not a file", fix="name an SQLite file with --archive")
        return self.place

    @property
    def folder(self) -> Path:
        """Where a run puts its files: beside the archive's, or the working folder when that lies on a server."""
        return Path.cwd() if isinstance(self.place, str) else self.place.parent

    @classmethod
    def open(cls, url_or_path: str, *, create: bool = True, readonly: bool = False, busy_s: float = BUSY_S) -> Archive:
        """Opens, and with `create` makes, the archive at a path or an `sqlite:///` or `postgresql://` URL; brings an
        older one up to date.

        `busy_s`: how long a write waits for another process. Raises `ArchiveError`: no such folder or file, not an
        SQLite file, another application's, written by a newer evo, locked, read-only, disk full, no such server.
        """
        place, engine = open_database(url_or_path, create=create, readonly=readonly, busy_s=busy_s)
        return cls(place, engine, readonly=readonly)

    def close(self) -> None:
        self._transactions.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def batch(self) -> AbstractContextManager[None]:
        """Groups the writes of this thread into one transaction; an error inside undoes all of them."""
        return self._transactions.batch()

    def reading(self) -> AbstractContextManager[Connection]:
        """A database snapshot for queries (see `evo.archive.queries`)."""
        return self._transactions.read()

    def writing(self) -> AbstractContextManager[Connection]:
        """One transaction, or a part of this thread's batch, for what has a file of its own (lessons, niches)."""
        return self._transactions.write()

    def compact(self) -> None:
        """Gives the room of removed rows back to the disk, and takes as much of it meanwhile."""
        self._transactions.compact()

    # Runs

    def start_run(self, record: RunRecord) -> None:
        with self._transactions.write() as connection:
            runs.start(connection, record)

    def claim(self, run: str) -> AbstractContextManager[None]:
        """Whoever works on a run (whole id) holds it. Raises `UsageError` when another process does."""
        if isinstance(self.place, str):
            return server.claimed(self._engine, self.place, run)
        return claims.claimed(self.place, run)

    def is_claimed(self, run: str) -> bool:
        """Whether a process works on the run (whole id) now: on this host, or on any for an archive on a server."""
        if isinstance(self.place, str):
            return server.is_claimed(self._engine, self.place, run)
        return claims.is_claimed(self.place, run)

    def update_run(
        self,
        run: str,
        *,
        device: str | None = None,
        yardstick: str | None = None,
        evaluator: str | None = None,
        cases: Sequence[str] | None = None,
        versions: Mapping[str, str] | None = None,
        state: RunState | None = None,
        ended_s: float | None = None,
    ) -> None:
        """Sets what was not known when the run started; None leaves a field as it is."""
        columns = {
            "device": device, "yardstick": yardstick, "evaluator": evaluator, "state": state, "ended_s": ended_s,
            "cases_json": None if cases is None else pack_json(tuple(cases)),
            "versions_json": None if versions is None else pack_json(dict(versions)),
        }  # fmt: skip
        with self._transactions.write() as connection:
            runs.change(connection, run, {name: value for name, value in columns.items() if value is not None})

    def finish_run(self, run: str, state: RunState) -> None:
        """Notes how and (now) when the run ended; "running" takes a run up again."""
        with self._transactions.write() as connection:
            runs.finish(connection, run, state)

    def runs(self, limit: int = 20) -> list[RunRecord]:
        """Newest first."""
        with self.reading() as connection:
            return runs.newest(connection, limit)

    def run(self, prefix: str) -> RunRecord:
        """Raises `UnknownNameError` when no run's id starts so, `UsageError` when several do."""
        with self.reading() as connection:
            return runs.by_prefix(connection, prefix)

    def save_state(self, run: str, data: Mapping[str, Any]) -> None:
        """Keeps what the engine needs to go on, in place of what was kept before. JSON: tuples come back as lists."""
        with self._transactions.write() as connection:
            runs.save_state(connection, run, data)

    def load_state(self, run: str) -> dict[str, Any] | None:
        """What was last saved; None before that."""
        with self.reading() as connection:
            return runs.load_state(connection, run)

    # Proposals and evaluations

    def propose(self, proposal: Proposal, state: State = State.PENDING) -> None:
        """Stores a proposal with its candidate, source and parents, which must be candidates of the archive.
        Proposing the same proposal id twice changes nothing."""
        with self._transactions.write() as connection:
            proposals.insert_proposal(connection, proposal, state)

    def set_state(
        self, proposal: str, state: State, lease_until_s: float | None = None, duplicate_of: str = ""
    ) -> None:
        with self._transactions.write() as connection:
            proposals.set_state(connection, proposal, state, lease_until_s=lease_until_s, duplicate_of=duplicate_of)

    def file(self, evaluation: Evaluation, proposal: str | None, state: State = State.DONE) -> None:
        """Stores an evaluation and sets its proposal's state. Filing the same evaluation id twice changes nothing.
        Raw samples are kept as float32."""
        with self._transactions.write() as connection:
            evaluations.insert_evaluation(connection, evaluation, proposal, state)

    def open_proposals(self, run: str) -> list[tuple[Proposal, State]]:
        """Those of a run (whole id) that are pending, building or evaluating, oldest first."""
        with self.reading() as connection:
            return [(view.proposal, view.state) for view in proposals.open_proposals(connection, run)]

    def evaluations(self, run: str) -> Iterator[Evaluation]:
        """Those of a run (whole id) in order of filing, as they were filed; read page by page."""
        after = 0
        while True:
            with self.reading() as connection:
                page, last = evaluations.load_page(connection, run, after=after, size=_PAGE)
            yield from page
            if last == after:
                return
            after = last

    def candidate(self, prefix: str) -> Candidate:
        """Raises `UnknownNameError` when no candidate's id starts so, `UsageError` when several do."""
        with self.reading() as connection:
            found = find_one(connection, prefix, kinds=("candidate",)).id
            return proposals.load_candidates(connection, [found])[found]

    # What earlier runs know

    def known(self, operator: str, target: str, evaluator: str = "") -> dict[str, str]:
        """Status by candidate id, of all that were evaluated (by this evaluator, if one is named).
        The newest verdict counts; evo's own faults only where there is no other."""
        with self.reading() as connection:
            row = {"operator": operator, "target": target, "evaluator": evaluator}
            return {candidate: status for candidate, status in connection.execute(_KNOWN, row)}

    def machine_ids(self, operator: str, target: str, evaluator: str = "") -> dict[str, str]:
        """The first candidate by machine set (see `machine_set`), of all that were built."""
        with self.reading() as connection:
            row = {"operator": operator, "target": target, "evaluator": evaluator}
            return {machines: candidate for machines, candidate in connection.execute(_MACHINES, row)}

    def elites(self, operator: str, target: str, evaluator: str = "", limit: int = 24) -> list[Elite]:
        """The best by score and the best in each case over all runs (of this evaluator, if one is named)."""
        with self.reading() as connection:
            return ranking.elites(connection, operator, target, evaluator=evaluator or None, limit=limit)

    # Where it was measured

    def record_device(self, facts: DeviceFacts) -> str:
        """Keeps a device's facts; the same facts give the same id."""
        with self._transactions.write() as connection:
            return runs.record_device(connection, facts)

    def record_environment(self, facts: Mapping[str, Any]) -> str:
        """Keeps versions, host and settings (JSON); the same facts give the same id."""
        with self._transactions.write() as connection:
            return runs.record_environment(connection, facts)

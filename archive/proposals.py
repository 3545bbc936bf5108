"""Candidates and the proposals that bring them in."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, bindparam, insert, select, text

from evo.archive.rows import candidate_record, candidate_row, pack_text, proposal_row, proposal_view, source_hash
from evo.archive.tables import CANDIDATE, OPEN_STATES, PROPOSAL, PROPOSAL_PARENT, SOURCE, insert_new
from evo.archive.views import ProposalView
from evo.errors import ArchiveError
from evo.records import Candidate, Proposal, State

_CHUNK = 500  # bound parameters in one statement; SQLite's own limit is 999 in old versions
_KNOWN = text("SELECT 1 FROM candidate WHERE id = :id")
_SOURCE_KNOWN = text("SELECT 1 FROM source WHERE hash = :hash")
_CANDIDATES = select(CANDIDATE, SOURCE.c.text).join(SOURCE, SOURCE.c.hash == CANDIDATE.c.source)
_SET_STATE = text(
    "UPDATE proposal SET state = :state, lease_until_s = :lease, duplicate_of = nullif(:duplicate_of, '')"
    " WHERE id = :proposal"
)
_PARENTS = text("SELECT proposal, parent FROM proposal_parent WHERE proposal IN :ids ORDER BY proposal, position")

# Made once: building a statement costs more than running it.
_INSERT_SOURCE = insert(SOURCE)
_INSERT_CANDIDATE = insert(CANDIDATE)
_INSERT_PROPOSAL = insert_new(PROPOSAL)
_INSERT_PARENTS = insert(PROPOSAL_PARENT)


def insert_candidate(connection: Connection, candidate: Candidate) -> None:
    """The candidate and its source, unless they are there."""
    if connection.execute(_KNOWN, {"id": candidate.id}).first():
        return
    source = source_hash(candidate.source)
    if not connection.execute(_SOURCE_KNOWN, {"hash": source}).first():  # spares compressing a known text
        connection.execute(_INSERT_SOURCE, {"hash": source, "text": pack_text(candidate.source)})
    connection.execute(_INSERT_CANDIDATE, candidate_row(candidate, source))


def insert_proposal(connection: Connection, proposal: Proposal, state: State) -> None:
    """The proposal with its candidate and parents. One that is already there is left as it is."""
    insert_candidate(connection, proposal.candidate)
    new = connection.execute(_INSERT_PROPOSAL, proposal_row(proposal, state, time.time()))
    if new.rowcount and proposal.parents:
        rows = [
            {"proposal": proposal.id, "position": position, "parent": parent}
            for position, parent in enumerate(proposal.parents)
        ]
        connection.execute(_INSERT_PARENTS, rows)


def set_state(
    connection: Connection, proposal: str, state: State, *, lease_until_s: float | None = None, duplicate_of: str = ""
) -> None:
    """Raises `ArchiveError` when there is no such proposal."""
    row = {"proposal": proposal, "state": str(state), "lease": lease_until_s, "duplicate_of": duplicate_of}
    if connection.execute(_SET_STATE, row).rowcount == 0:
        raise ArchiveError(f"there is no proposal {proposal!r} in the archive", fix="propose before setting its state")


def load_candidates(connection: Connection, ids: Sequence[str]) -> dict[str, Candidate]:
    """Candidates by id; ids that are not there are left out. At most a few hundred ids at a time."""
    found = connection.execute(_CANDIDATES.where(CANDIDATE.c.id.in_(ids))).mappings()
    return {row["id"]: candidate_record(row) for row in found}


def load_proposals(connection: Connection, where: str, value: str) -> list[ProposalView]:
    """Proposals whose column `where` (id, candidate or run) is `value`, oldest first, with candidates and parents."""
    query = select(PROPOSAL).where(PROPOSAL.c[where] == value).order_by(PROPOSAL.c.id)
    return _views(connection, query)


def open_proposals(connection: Connection, run: str) -> list[ProposalView]:
    """Those of a run that still wait for a verdict, oldest first."""
    query = select(PROPOSAL).where(PROPOSAL.c.run == run, text(OPEN_STATES)).order_by(PROPOSAL.c.id)
    return _views(connection, query)


def _views(connection: Connection, query: Select[Any]) -> list[ProposalView]:
    rows = connection.execute(query).mappings().all()
    views = []
    for at in range(0, len(rows), _CHUNK):
        chunk = rows[at : at + _CHUNK]
        candidates = load_candidates(connection, [row["candidate"] for row in chunk])
        parents: dict[str, list[str]] = defaultdict(list)
        ids = [row["id"] for row in chunk]
        for proposal, parent in connection.execute(_PARENTS.bindparams(bindparam("ids", ids, expanding=True))):
            parents[proposal].append(parent)
        views += [proposal_view(row, candidates[row["candidate"]], tuple(parents[row["id"]])) for row in chunk]
    return views

"""Calls of language models, and the journal that says in which order a run took things in.

An event of the journal is a word: `a` the search was asked for a proposal, `t` it was told a verdict (they come in the
order of filing), `jN` job N arrived, `vNAME=RULING` a person ruled on a direction, `xPROPOSAL` and
`bGENE=VALUE` somebody put in a candidate or banned a gene value, `dDEVICE` the device's facts, `r` the run was resumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, select, text

from evo import codec
from evo.archive.rows import pack_json, pack_text, unpack_text
from evo.archive.store import Archive
from evo.archive.tables import AGENT_JOB, EXCHANGE, TURN, insert_new
from evo.exchange import Exchange, Outcome, Reply, Request, Usage

_INSERT, _INSERT_JOB = insert_new(EXCHANGE), insert_new(AGENT_JOB)
_JOB = text("SELECT run, job FROM agent_job WHERE candidate = :candidate ORDER BY run, job LIMIT 1")
_LAST_TURN = text("SELECT max(number) FROM turn WHERE run = :run")
_EVENTS = text("SELECT events FROM turn WHERE run = :run ORDER BY number")
_TOTALS = text(
    "SELECT model, role, count(*), sum(tokens_in), sum(tokens_out), sum(usd), sum(charged_usd), count(usd)"
    " FROM exchange WHERE run = :run GROUP BY model, role ORDER BY model, role"
)


def keep_turn(
    archive: Archive, run: str, events: Sequence[str], exchanges: Sequence[Exchange], outcomes: Sequence[Outcome] = ()
) -> None:
    """Files the exchanges that ended, what came of jobs, and what happened since the last time, in one transaction.
    What is there already is left as it is."""
    if not events and not exchanges and not outcomes:
        return
    with archive.writing() as connection:
        file_exchanges(connection, exchanges)
        if outcomes:
            connection.execute(_INSERT_JOB, [asdict(outcome) for outcome in outcomes])
        if events:
            number = (connection.execute(_LAST_TURN, {"run": run}).scalar_one() or 0) + 1
            connection.execute(insert(TURN), {"run": run, "number": number, "events": " ".join(events)})


def file_exchanges(connection: Connection, exchanges: Sequence[Exchange]) -> None:
    if exchanges:
        connection.execute(_INSERT, [_row(exchange) for exchange in exchanges])


def journal(archive: Archive, run: str) -> list[str]:
    """All events of a run (whole id), in order."""
    with archive.reading() as connection:
        return [event for events in connection.execute(_EVENTS, {"run": run}).scalars() for event in events.split()]


def exchanges(archive: Archive, run: str) -> Iterator[Exchange]:
    """Those of a run (whole id), by job and step."""
    query = select(EXCHANGE).where(EXCHANGE.c.run == run).order_by(EXCHANGE.c.job, EXCHANGE.c.step, EXCHANGE.c.id)
    with archive.reading() as connection:
        rows = connection.execute(query).mappings().all()
    return (_record(row) for row in rows)


def exchanges_of(archive: Archive, candidate: str) -> list[Exchange]:
    """The calls of the job that a candidate (whole id) came of; none where no model wrote it."""
    with archive.reading() as connection:
        job = connection.execute(_JOB, {"candidate": candidate}).first()
        if job is None:
            return []
        query = select(EXCHANGE).where(EXCHANGE.c.run == job[0], EXCHANGE.c.job == job[1]).order_by(EXCHANGE.c.step)
        return [_record(row) for row in connection.execute(query).mappings()]


def outcomes(archive: Archive, run: str) -> list[Outcome]:
    """What became of a run's jobs, in their order."""
    with archive.reading() as connection:
        query = select(AGENT_JOB).where(AGENT_JOB.c.run == run).order_by(AGENT_JOB.c.job)
        return [Outcome(**row) for row in connection.execute(query).mappings()]


def totals(archive: Archive, run: str) -> list[dict[str, Any]]:
    """By model and role: calls, tokens, and USD as far as prices are known (`priced` calls of them)."""
    names = ("model", "role", "calls", "tokens_in", "tokens_out", "usd", "charged_usd", "priced")
    with archive.reading() as connection:
        return [dict(zip(names, row, strict=True)) for row in connection.execute(_TOTALS, {"run": run})]


def _row(exchange: Exchange) -> dict[str, Any]:
    reply = exchange.reply
    return {
        "id": exchange.id, "run": exchange.run, "job": exchange.job, "step": exchange.step, "role": exchange.role,
        "model": exchange.model, "prompt": exchange.digest,
        "request": pack_text(codec.dumps(exchange.request).decode()), "answer": pack_text(reply.text),
        "finish": reply.finish, "error": reply.error, "attempts": reply.attempts, "tokens_in": reply.usage.input,
        "tokens_out": reply.usage.output, "usage_json": pack_json(asdict(reply.usage)), "usd": exchange.usd,
        "charged_usd": exchange.charged_usd, "started_s": exchange.started_s, "seconds": exchange.seconds,
        "memory": pack_text(exchange.memory),
    }  # fmt: skip


def _record(row: RowMapping) -> Exchange:
    usage = Usage(**json.loads(row["usage_json"]))
    reply = Reply(unpack_text(row["answer"]), row["finish"], usage, row["attempts"], row["error"])
    return Exchange(
        row["id"], row["run"], row["job"], row["step"], row["role"], row["model"],
        codec.loads(Request, unpack_text(row["request"])), reply, row["prompt"], row["usd"], row["charged_usd"],
        row["started_s"], row["seconds"], unpack_text(row["memory"]),
    )  # fmt: skip

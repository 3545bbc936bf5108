"""`evo status`, `inject`, `ban` and `stop`: a run that goes on in another process is spoken to through its archive."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evo.app.liveness import seen
from evo.app.resumable import named
from evo.app.single import gene_values, read_genome
from evo.app.swarm.asked import Told
from evo.app.swarm.asking import ASKING, open_desk
from evo.app.swarm.evaluating import COMMAND
from evo.archive import Archive, RunRecord
from evo.archive.leaders import leaders
from evo.archive.messages import heard, say, starved
from evo.archive.tallies import tally
from evo.engine.budget import Budget, Meter
from evo.errors import UnknownNameError, UsageError
from evo.genome import Genome
from evo.plugins.manager import Plugins
from evo.records import Author, State
from evo.report.standing import Standing

PERSON = Author("person")
LOOKED_AT = 200  # newest runs, among which one that goes on is looked for


def status(archive: str, run: str = "") -> Standing:
    """Of the run with that id (any unique prefix), else of the one that goes on, else of the newest."""
    with Archive.open(archive, create=False) as store:
        record = store.run(run) if run else _current(store) or _newest(store)
        live = store.is_claimed(record.id)
        saved = store.load_state(record.id) or {}
        with store.reading() as connection:
            bans = [message.data for message in heard(connection, record.id, ("ban",))]
            orders = heard(connection, record.id, ("stop", "resume"))
            told = len(starved(connection, record.id))
            held = {case: name for case, (name, _) in (saved.get("search") or {}).get("portfolio", {}).items()}
            best = leaders(connection, record.id, held)
            search: Mapping[str, Any] = saved.get("search") or {}
            if record.command.startswith((ASKING, COMMAND)):  # no search keeps count
                search = asdict(tally(connection, record.id))
        states = Counter(str(state) for _, state in store.open_proposals(record.id))
    spent = saved.get("meter") or {}
    meter = Meter(Budget.parse(record.budget), spent=spent) if record.budget else None
    return Standing(
        run=record.id, operator=record.operator, target=record.target, command=record.command,
        state="stopping" if live and orders and orders[-1].kind == "stop" else seen(store, record).state,
        seconds=_seconds(record, live), evaluated=search.get("evaluated", 0), duplicates=search.get("duplicates", 0),
        rejected=search.get("rejected", {}), used=meter.used() if meter else {}, left=meter.left() if meter else "",
        best=best, open=states, told=told, banned=tuple(f"{data['gene']}={data['value']}" for data in bans),
    )  # fmt: skip


def inject(archive: str, file: Path, *, run: str = "", genes: Mapping[str, str] | None = None, note: str = "") -> Told:
    """Hands a genome file to a run: to the one that goes on where none is named. It is evaluated with the run's own
    proposals, and may become a parent."""
    genome = read_genome(file)
    with Archive.open(archive, create=False) as store:
        record = store.run(run) if run else _going(store, "or hand it in for later: evo tell FILE")
    if record.state == "done":
        raise UsageError(f"run {record.id} has ended", fix="start another, or hand it in for later: evo tell FILE")
    with open_desk(archive, run=record.id) as desk:
        values = gene_values(genome, genes or {})
        return desk.tell(
            source=genome.canonical, suffix=genome.suffix, values=values, note=note or "injected", author=PERSON
        )


def ban(archive: str, gene: str, value: str, *, run: str = "") -> str:
    """From now on the run proposes nothing with this gene value; its id. What was measured stays.

    Raises `UnknownNameError` for a gene, and `UsageError` for a value, that no seed and no elite of the operator has.
    """
    with Archive.open(archive, create=False) as store:
        record = store.run(run) if run else _going(store, "or name one with --run: it heeds this when it is resumed")
        choices = _choices(store, record)
        if gene not in choices:
            raise UnknownNameError("gene", gene, choices)
        if value not in choices[gene]:
            raise UsageError(f"gene {gene} has no choice {value!r}", fix=f"there are: {', '.join(choices[gene])}")
        with store.writing() as connection:
            say(connection, record.id, "ban", data={"gene": gene, "value": value})
        return record.id


def stop(archive: str, *, run: str = "") -> str:
    """Asks the run to end after what it is doing now, as Ctrl-C would; its id. `evo resume` goes on with it.

    A run that only holds what was told ends at once, and what waits there is cancelled.
    """
    with Archive.open(archive, create=False) as store:
        record = store.run(run) if run else _going(store, "name one with --run")
        if record.command.startswith(ASKING):
            _close(store, record)
        elif not store.is_claimed(record.id):
            raise UsageError(f"run {record.id} is not going on", fix=_way_on(store, record))
        else:
            with store.writing() as connection:
                say(connection, record.id, "stop")
        return record.id


def _way_on(store: Archive, record: RunRecord) -> str:
    """From a run that no process works on."""
    state = seen(store, record).state
    nothing = f"its state is {state}: nothing to stop"
    if state == "done":
        return nothing
    if record.command.startswith(COMMAND):
        return f"{nothing}; `{COMMAND}{named(store)}` judges what waits"
    return f"{nothing}; `evo resume {record.id}{named(store)}` goes on with it"


def refuse_resuming(record: RunRecord) -> None:
    """Raises `UsageError` for runs that hold or judge what was told: they have no search that could go on."""
    if record.command.startswith((ASKING, COMMAND)):
        raise UsageError(f"run {record.id} has no search of its own: {record.command}", fix=f"use `{COMMAND}`")


def _close(store: Archive, record: RunRecord) -> None:
    with store.batch():
        for proposal, _ in store.open_proposals(record.id):
            store.set_state(proposal.id, State.CANCELLED)
        store.finish_run(record.id, "done")


def _current(store: Archive) -> RunRecord | None:
    """The newest run that a process works on."""
    running = (record for record in store.runs(LOOKED_AT) if record.state == "running")
    searching = (record for record in running if not record.command.startswith((ASKING, COMMAND)))
    return next((record for record in searching if store.is_claimed(record.id)), None)


def _going(store: Archive, otherwise: str) -> RunRecord:
    if record := _current(store):
        return record
    raise UsageError("no run is going on in this archive", fix=otherwise)


def _newest(store: Archive) -> RunRecord:
    for record in store.runs(1):
        return record
    raise UsageError("the archive holds no run", fix="start one: evo run --operator rmsnorm")


def _choices(store: Archive, record: RunRecord) -> dict[str, list[str]]:
    """Genes of the operator's seeds and elites with their choices."""
    genomes = [Genome.read(path) for path in Plugins.load().operator(record.operator).seeds(record.target)]
    elites = [elite.candidate for elite in store.elites(record.operator, record.target)]
    genomes += [Genome.parse(candidate.source, candidate.suffix) for candidate in elites]
    found: dict[str, dict[str, None]] = {}
    for genome in genomes:
        for name, gene in genome.genes.items():
            found.setdefault(name, {}).update(dict.fromkeys(map(str, gene.choices)))
    return {name: list(values) for name, values in found.items()}


def _seconds(record: RunRecord, live: bool) -> float:
    """Since it began, to its end where that is known."""
    if record.ended_s is not None:
        return record.ended_s - record.started_s
    return time.time() - record.started_s if live else 0.0

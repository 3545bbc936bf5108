"""Ask and tell from outside: a coding agent or an engineer is the mutation operator, the device may be elsewhere.

`open_desk` opens a desk on an archive. What is told waits there as a pending proposal: for the run it was told to, or
for `evo evaluate --pending` on a machine that has the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType

from sqlalchemy import Connection

from evo import ids
from evo.app.single import gene_values
from evo.app.stand import choose_target, find_target, select_cases
from evo.app.swarm.ask_choice import Choice, Stock, choose, improving
from evo.app.swarm.ask_prompt import LESSONS_TOKENS, prompt
from evo.app.swarm.asked import SCHEMA, Answer, Ask, ParentView, Told, case_views
from evo.app.swarm.authors import expect_author
from evo.archive import Archive, ProposalView, RunRecord, lessons, queries
from evo.archive.evaluations import load_evaluations
from evo.archive.messages import Message, by_id, heard, newest, say
from evo.archive.proposals import insert_candidate, load_proposals
from evo.errors import UnknownNameError, UsageError
from evo.genome import Genome, make_candidate
from evo.mutators.agents.edits import Edit, EditError, apply_edits, proposed_source
from evo.operator import Operator
from evo.plugins.manager import Plugins
from evo.records import BLAMELESS, Author, Candidate, Evaluation, Proposal, State, Status, Value, Values
from evo.target import Target

ASKING = "evo ask"  # how the command of a run begins that holds what was told without one
LEASE_S = 1800.0
ELITES = 24
LOOK_BACK = 50  # told candidates among which failed ones are looked for
AGENT = Author("agent")
OPEN = (State.PENDING, State.BUILDING, State.EVALUATING)
Edits = str | Sequence[Mapping[str, str]]


class Desk:
    """One operator and target of one archive. Use as a context manager; one thread at a time.

    `run` is where what is told will wait, `cases` names those that count.
    """

    def __init__(
        self, archive: Archive, operator: Operator, target: Target, run: RunRecord, *, filed: bool = True
    ) -> None:
        self.archive = archive
        self.operator = operator
        self.target = target
        self._run = run
        self._filed = filed
        tuned = {case.name for case in operator.cases(target.name) if case.group == "tune"}
        self.cases = [name for name in run.cases if name in tuned]  # hold-out cases are not for authors

    @property
    def run(self) -> RunRecord:
        """Filed, with the seeds in it, when it is first needed: an answer that is refused leaves no run behind."""
        if not self._filed:
            self._run, self._filed = _file_run(self.archive, self.operator, self.target, self._run), True
        return self._run

    def __enter__(self) -> Desk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.archive.close()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """All or nothing, the run included."""
        before = self._run, self._filed
        try:
            with self.archive.batch(), self.archive.writing() as connection:
                yield connection
        except BaseException:
            self._run, self._filed = before
            raise

    def ask(self, *, lease_s: float = LEASE_S, parent: str = "") -> Ask:
        """The next question. `parent` names a candidate (any unique prefix) instead of evo's own choice."""
        with self._writing() as connection:
            said = heard(connection, self.run.id, ("ask", "tell"))
            choice = self._about(parent) if parent else choose(self._stock(), self._failed(), said)
            names = [one.candidate.id for one in choice.parents]
            until = time.time() + lease_s
            for one in choice.parents:  # an answer will name them; a seed may be new here
                insert_candidate(connection, one.candidate)
            data = {"kind": choice.kind, "parents": names, "direction": choice.direction, "lease_until": until}
            ask = say(connection, self.run.id, "ask", data=data).id
        parents = tuple(
            ParentView(p.candidate.id, p.candidate.source, p.candidate.values, p.cases) for p in choice.parents
        )
        words = prompt(self.operator, self.target.name, choice, self._lessons(choice))
        return Ask(
            SCHEMA, ask, self.run.id, self.operator.name, self.target.name, choice.kind, parents, choice.direction,
            words, until,
        )  # fmt: skip

    def tell(
        self,
        *,
        source: str = "",
        edits: Edits = (),
        values: Values | None = None,
        parents: Sequence[str] = (),
        note: str = "",
        author: Author = AGENT,
        ask: str = "",
        suffix: str = "",
    ) -> Told:
        """Takes a candidate in: a whole `source`, `edits` of the first parent, or only other gene `values` for it.

        `edits` is text with SEARCH/REPLACE blocks, or a list of {"search", "replace"}. `ask` names the question; its
        parents are taken where none are given. Telling the same again changes nothing and says the same candidate.

        Raises `UsageError` for an answer that does not fit its parent or its question and for an author without
        a proper name, and (a `GenomeError`) for a source that is no genome of this operator.
        """
        expect_author(author)
        with self._writing() as connection:
            run = self.run.id  # with the seeds in it, of which the answer may be one
            question = asked(connection, ask, run) if ask else None
            named = [self.archive.candidate(name) for name in parents]
            if not named and question is not None:
                named = [self.archive.candidate(name) for name in question.data["parents"]]
            candidate = self._candidate(source, edits, values, named, suffix)
            lineage = tuple(parent.id for parent in named if parent.id != candidate.id)
            views = self._views(candidate.id)
            told = _known(views, Proposal("", run, candidate, lineage, author, note), self._evaluations(views))
            if told is None:
                proposal = Proposal(ids.new_id(), run, candidate, lineage, author, note)
                self.archive.propose(proposal)
                told = Told(candidate.id, State.PENDING)
                say(connection, run, "tell", subject=proposal.id, data={"ask": ask})
            elif ask:
                say(connection, run, "tell", data={"ask": ask})
            return told

    def answer(self, candidate: str) -> Answer:
        """What a candidate (any unique prefix) came to so far."""
        shown = queries.show(self.archive, self.archive.candidate(candidate).id)
        newest = max(shown.proposals, key=lambda view: (view.state in OPEN, view.proposal.id), default=None)
        state = newest.state if newest else State.DONE
        of = newest.duplicate_of if newest else ""
        if not shown.evaluations:
            return Answer(SCHEMA, shown.id, state, of=of)
        last = _last_word(shown.evaluations)
        cases = case_views(shown.evaluations, self.cases)
        return Answer(SCHEMA, shown.id, state, last.status, last.diagnosis, cases, of)

    def wait(
        self, candidate: str, *, timeout_s: float = 600.0, pause_s: float = 0.5,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Answer:  # fmt: skip
        """The answer once somebody has evaluated the candidate, or as it stands after the time-out."""
        until = time.monotonic() + timeout_s
        while not (answer := self.answer(candidate)).settled and time.monotonic() < until:
            sleep(min(pause_s, max(0.0, until - time.monotonic())))
        return answer

    def elites(self, limit: int = ELITES) -> list[ParentView]:
        """The best candidates of all runs with what is known of them, best first."""
        stock = self._elites(limit)
        return [ParentView(s.candidate.id, s.candidate.source, s.candidate.values, s.cases) for s in stock]

    def _lessons(self, choice: Choice) -> str:
        about = f"{choice.parents[0].candidate.species} {choice.direction}"
        with self.archive.reading() as connection:
            found = lessons.relevant(
                connection, self.operator.name, self.target.name, about, budget_tokens=LESSONS_TOKENS
            )
        return "\n".join(lessons.line(lesson) for lesson in found)

    # --- what there is to ask about

    def _stock(self) -> list[Stock]:
        """Elites, then the seeds of species that have none."""
        elites = self._elites(ELITES)
        species = {one.candidate.species for one in elites}
        seeds = [self._look(candidate) for candidate in seed_candidates(self.operator, self.target)]
        wrong = {str(status) for status in Status} - {"ok", "uncovered", *map(str, BLAMELESS)}
        known = self.archive.known(self.operator.name, self.target.name)
        fresh = [s for s in seeds if s.candidate.species not in species and known.get(s.candidate.id) not in wrong]
        if not (elites or fresh):
            raise UsageError(
                f"nothing to ask about: no right candidate and no seed of {self.operator.name} for {self.target.name}",
                fix="run `evo archive failures` to see why, or name a candidate with --parent",
            )
        return [*elites, *fresh]

    def _elites(self, limit: int) -> list[Stock]:
        found = self.archive.elites(self.operator.name, self.target.name, limit=limit)
        return [self._look(elite.candidate) for elite in found]

    def _failed(self) -> list[Stock]:
        """Told candidates of this run that were found wanting, newest first."""
        with self.archive.reading() as connection:
            subjects = [message.subject for message in heard(connection, self.run.id, ("tell",)) if message.subject]
        failed = []
        for proposal in reversed(subjects[-LOOK_BACK:]):
            shown = queries.show(self.archive, proposal)
            last = _last_word(shown.evaluations) if shown.evaluations else None
            if shown.candidate and last and last.diagnosis and last.status not in {Status.OK, *BLAMELESS}:
                cases = case_views(shown.evaluations, self.cases)
                failed.append(Stock(shown.candidate, cases, last.diagnosis))
        return failed

    def _look(self, candidate: Candidate) -> Stock:
        views = self._views(candidate.id)
        return Stock(candidate, case_views(self._evaluations(views), self.cases))

    def _about(self, prefix: str) -> Choice:
        candidate = self.archive.candidate(prefix)
        if candidate.operator != self.operator.name:
            raise UsageError(
                f"candidate {candidate.id[:12]} is of {candidate.operator}", fix="name one of this operator"
            )
        failed = [one for one in self._failed() if one.candidate.id == candidate.id]
        stock = failed[0] if failed else self._look(candidate)
        if failed:
            return choose([stock], failed, ())
        return Choice("mutation", (stock,), improving(stock))

    def _views(self, candidate: str) -> Sequence[ProposalView]:
        with self.archive.reading() as connection:
            return load_proposals(connection, "candidate", candidate)

    def _evaluations(self, views: Sequence[ProposalView]) -> Sequence[Evaluation]:
        if not views:
            return []
        with self.archive.reading() as connection:
            return load_evaluations(connection, "candidate", views[0].proposal.candidate.id)

    def _candidate(
        self, source: str, edits: Edits, values: Values | None, parents: Sequence[Candidate], suffix: str
    ) -> Candidate:
        if source and edits:
            raise UsageError("both a source and edits were told", fix="give one of the two")
        if not (source or parents):
            raise UsageError("an answer without a source needs a parent", fix="name it: --parent ID, or the ask")
        first = parents[0] if parents else None
        text, inherited = source, dict[str, Value]()
        if not text and first is not None:
            text = edited(first.source, edits)
        ending = suffix or (first.suffix if first else (".cpp" if self.target.name == "cpu" else ".cu"))
        genome = Genome.parse(text, ending)
        genome.contract(self.operator)
        if first is not None and not source:
            inherited = {n: v for n, v in first.values.items() if n in genome.genes and v in genome.genes[n].choices}
        given = gene_values(genome, {name: str(value) for name, value in (values or {}).items()})
        return make_candidate(self.operator.name, self.target.name, genome, inherited | given)


def asked(connection: Connection, ask: str, run: str = "") -> Message:
    """The question of that whole id. Raises `UnknownNameError`, and `UsageError` for one asked of another run."""
    question = by_id(connection, ask)
    if question is None or question.kind != "ask":
        raise UnknownNameError("ask id", ask, newest(connection, "ask"), fix="`evo ask` asks another")
    if run and question.run != run:
        raise UsageError(
            f"question {ask} was asked of run {question.run}",
            fix=f"answer it there by --run {question.run}, or name its parents instead of it",
        )
    return question


def edited(source: str, edits: Edits) -> str:
    """`source` with the edits applied. Raises `UsageError` with what does not fit."""
    if not edits:
        return source
    try:
        if isinstance(edits, str):
            return proposed_source(edits, source)
        pairs = [Edit(tuple(e["search"].split("\n")), tuple(e["replace"].split("\n"))) for e in edits]
        return apply_edits(pairs, source)
    except KeyError as error:
        raise UsageError(f"an edit has no {error}", fix='write {"search": "...", "replace": "..."}') from None
    except EditError as error:
        raise UsageError(f"the edits do not fit: {error}", fix="quote the parent's lines exactly") from None


def seed_candidates(operator: Operator, target: Target) -> list[Candidate]:
    """The operator's seeds for this target with their default genes."""
    genomes = [Genome.read(path) for path in operator.seeds(target.name)]
    fitting = [genome for genome in genomes if not genome.arch or target.arch in genome.arch]
    return [make_candidate(operator.name, target.name, genome, {}) for genome in fitting]


def _last_word(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The newest that says something about the candidate, else the newest."""
    telling = [evaluation for evaluation in evaluations if evaluation.status not in BLAMELESS]
    return (telling or list(evaluations))[-1]


def _known(views: Sequence[ProposalView], told: Proposal, evaluations: Sequence[Evaluation]) -> Told | None:
    """What to say of a candidate that is there already; None when it should be proposed (again)."""
    name = told.candidate.id
    for view in views:
        if view.state not in (State.CANCELLED, State.QUARANTINED):
            same = view.proposal.run == told.run and view.proposal.author == told.author
            if same and view.proposal.parents == told.parents and view.proposal.note == told.note:
                return Told(name, view.state, view.duplicate_of)  # the same answer, told again
    waiting = any(view.state in OPEN for view in views)
    judged = any(evaluation.status not in BLAMELESS for evaluation in evaluations)
    return Told(name, State.DUPLICATE, name) if waiting or judged else None


def open_desk(
    archive: str, *, run: str = "", operator: str = "", target: str = "auto", cases: Sequence[str] = ()
) -> Desk:
    """Opens a desk on an archive, which is made where there is none.

    Args:
        run: a run's id or unique prefix: what is told waits for it. Else `operator` says what for, and a run that only
            holds what is told is taken up, or made when something is asked or told.
        target: "auto": that of the operator's newest run here, else this machine's.
        cases: patterns, as for `evo run --cases`; for a new run only.

    Raises `UsageError` and `ArchiveError`.
    """
    if bool(run) == bool(operator):
        raise UsageError("a desk needs a run or an operator, not both", fix='evo.open("evo.db", operator="rmsnorm")')
    plugins = Plugins.load()
    item = plugins.operator(operator) if operator else None
    store = Archive.open(archive, create=not run)
    try:
        if item is None:
            record = store.run(run)
            return Desk(store, plugins.operator(record.operator), plugins.target(record.target), record)
        place = _target(plugins, store, item.name, target)
        if not item.seeds(place.name):
            raise UsageError(f"operator {item.name!r} has no seed for target {place.name!r}", fix="name another target")
        wanted = _wanted_run(item, place, cases)
        held = _held_run(store, wanted, cases)
        return Desk(store, item, place, held or wanted, filed=held is not None)
    except BaseException:
        store.close()
        raise


def _target(plugins: Plugins, store: Archive, operator: str, name: str) -> Target:
    """A target needs no device here: only a name."""
    if name != "auto":
        return find_target(plugins, name)
    known = next((record.target for record in store.runs(200) if record.operator == operator), "")
    return plugins.target(known) if known else choose_target(plugins, name)[0]


def _wanted_run(operator: Operator, target: Target, patterns: Sequence[str]) -> RunRecord:
    """A run that would hold what is told for this operator and target."""
    cases = tuple(case.name for case in select_cases(operator, target.name, patterns) if case.group != "check")
    if not cases:
        raise UsageError(
            f"--cases {' '.join(patterns)} names only small check cases, of which none is timed",
            fix="leave --cases out, or name a case that is timed",
        )
    return RunRecord(
        id=ids.new_id(), operator=operator.name, target=target.name, device="", seed=0, budget="", cases=cases,
        command=f"{ASKING} --operator {operator.name} --target {target.name}", yardstick="", evaluator="",
        started_s=time.time(),
    )  # fmt: skip


def _held_run(store: Archive, wanted: RunRecord, patterns: Sequence[str]) -> RunRecord | None:
    """The run that is there already; of any cases where no patterns choose some."""
    for record in store.runs(1000):
        ours = record.command.startswith(ASKING) and record.state == "running"
        if ours and (record.operator, record.target) == (wanted.operator, wanted.target):
            if not patterns or record.cases == wanted.cases:
                return record
    return None


def _file_run(store: Archive, operator: Operator, target: Target, wanted: RunRecord) -> RunRecord:
    """Starts the run with the operator's seeds in it, unless somebody was faster."""
    with store.batch(), store.writing() as connection:
        if held := _held_run(store, wanted, wanted.cases):
            return held
        wanted = replace(wanted, id=ids.new_id(), started_s=time.time())  # a desk may be open for long before
        known = store.known(operator.name, target.name)
        store.start_run(wanted)
        for candidate in seed_candidates(operator, target):
            if candidate.id not in known:
                proposal = Proposal(ids.new_id(), wanted.id, candidate)
                store.propose(proposal)
                say(connection, wanted.id, "tell", subject=proposal.id)
    return wanted

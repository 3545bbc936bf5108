"""The four memories, for a prompt or for the search, each within a budget of tokens.

- working: this line of candidates, what each step changed and gained, and what was tried from here;
- episodic: recent runs and what they came to;
- semantic: what is known of the operator and the target: lessons, pitfalls, the operator's notes;
- procedural: sequences of edits that were faster, which may be replayed on another parent (`evo.engine.procedures`).

Only cases that the caller names are looked at, so that hold-outs stay out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, text

from evo.archive import lessons, ranking
from evo.archive.store import Archive
from evo.lesson import CaseFacts, Lesson
from evo.records import Value, Values

GENERATIONS = 12  # that working memory looks back
TRIED = 12  # children of the candidate at hand
EPISODES = 6
SOURCES = 8  # elites whose lines are read for procedures
_ORIGIN = text(
    "SELECT p.candidate, p.author, p.note, c.species, c.source, c.values_json, (SELECT l.parent FROM proposal_parent l"
    " WHERE l.proposal = p.id AND l.position = 0) AS parent FROM proposal p JOIN candidate c ON c.id = p.candidate"
    " WHERE p.candidate = :candidate ORDER BY p.id LIMIT 1"
)
_CHILDREN = text(
    "SELECT p.candidate FROM proposal_parent l JOIN proposal p ON p.id = l.proposal"
    " WHERE l.parent = :candidate AND l.position = 0 ORDER BY p.id DESC LIMIT :limit"
)
_BEST = text(
    "SELECT id, board, status FROM evaluation WHERE candidate = :candidate AND duplicate_of = ''"
    " ORDER BY covered DESC, filed_s DESC, id DESC LIMIT 1"
)
_RATIOS = text("SELECT case_name, ratio FROM case_result WHERE evaluation = :id AND status = 'ok' AND ratio > 0")
_RUNS = text(
    "SELECT id, started_s, budget, state FROM run WHERE operator = :operator AND target = :target"
    " ORDER BY started_s DESC, id DESC LIMIT :limit"
)
_STATUSES = text("SELECT status, count(*) FROM evaluation WHERE run = :run GROUP BY status ORDER BY count(*) DESC")
_BEST_OF_RUN = text(
    "SELECT r.case_name, max(r.ratio) FROM evaluation e JOIN case_result r ON r.evaluation = e.id"
    " WHERE e.run = :run AND e.score IS NOT NULL AND r.status = 'ok' AND r.ratio > 0"
    " GROUP BY r.case_name ORDER BY r.case_name"
)


@dataclass(frozen=True, slots=True)
class Budgets:
    """Tokens for each memory."""

    working: int = 400
    episodic: int = 200
    semantic: int = 800
    procedural: int = 300


@dataclass(frozen=True, slots=True)
class Step:
    """From a parent to its child: genes as (before, after), whether the source changed, and the mean log gain over the
    cases that both were timed in; None where they cannot be compared."""

    parent: str
    child: str
    species: str
    genes: Mapping[str, tuple[Value | None, Value | None]]
    rewritten: bool
    author: str
    note: str
    status: str
    gain: float | None


@dataclass(frozen=True, slots=True)
class Procedure:
    """Steps that were each faster, in order; `gain` is their sum, a natural logarithm."""

    steps: tuple[Step, ...]
    gain: float


@dataclass(frozen=True, slots=True)
class Recall:
    """What comes to mind; lines of text, and the records behind them."""

    working: tuple[str, ...] = ()
    episodic: tuple[str, ...] = ()
    semantic: tuple[str, ...] = ()
    procedural: tuple[str, ...] = ()
    lessons: tuple[Lesson, ...] = ()
    procedures: tuple[Procedure, ...] = field(default=())

    def text(self) -> str:
        """One Markdown section a memory that holds anything."""
        named = (
            ("This line of candidates", self.working), ("Recent runs", self.episodic),
            ("What is known", self.semantic), ("Edits that worked", self.procedural),
        )  # fmt: skip
        return "\n\n".join(f"## {name}\n" + "\n".join(f"- {line}" for line in lines) for name, lines in named if lines)


def recall(
    archive: Archive,
    operator: str,
    target: str,
    cases: Mapping[str, CaseFacts],
    *,
    candidate: str = "",
    question: str = "",
    genes: Values | None = None,
    notes: str = "",
    budgets: Budgets | None = None,
) -> Recall:
    """All four memories. `candidate` (a whole id) is the one at hand, `question` what is to be done, `notes` the
    operator's. Lines that do not fit their memory's budget are left out, the least relevant first."""
    limits = budgets or Budgets()
    with archive.reading() as connection:
        line = _line(connection, candidate, cases) if candidate else []
        known = lessons.relevant(connection, operator, target, question, genes, limits.semantic)
        left = limits.semantic - sum(lessons.tokens(lessons.line(lesson)) for lesson in known)
        procedures = _procedures(connection, operator, target, cases)
        shown = [(procedure, _procedure_line(procedure)) for procedure in procedures]
        procedural = _fitting([text for _, text in shown], limits.procedural)
        return Recall(
            working=_fitting([*_tried(connection, candidate, cases), *map(_step_line, line)], limits.working),
            episodic=_fitting(_episodes(connection, operator, target, cases), limits.episodic),
            semantic=(*map(lessons.line, known), *_fitting(_paragraphs(notes), left)),
            procedural=procedural,
            lessons=tuple(known),
            procedures=tuple(procedure for procedure, text in shown if text in procedural),
        )


def _fitting(lines: Iterable[str], budget_tokens: int) -> tuple[str, ...]:
    chosen = []
    for line in lines:
        if (cost := lessons.tokens(line)) <= budget_tokens:
            budget_tokens -= cost
            chosen.append(line)
    return tuple(chosen)


def _paragraphs(notes: str) -> list[str]:
    return [" ".join(part.split()) for part in notes.split("\n\n") if part.strip() and not part.startswith("#")]


# --- working


def _step(connection: Connection, candidate: str, cases: Mapping[str, CaseFacts]) -> Step | None:
    """How a candidate came from its first parent; None for one without."""
    child = connection.execute(_ORIGIN, {"candidate": candidate}).first()
    if child is None or child.parent is None:
        return None
    parent = connection.execute(_ORIGIN, {"candidate": child.parent}).first()
    if parent is None:
        return None
    before, after = json.loads(parent.values_json), json.loads(child.values_json)
    changed = {
        name: (before.get(name), after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    }
    board, status, mine = _measured(connection, candidate, cases)
    other, _, theirs = _measured(connection, child.parent, cases)
    common = mine.keys() & theirs.keys() if board == other else set()
    gain = sum(math.log(mine[case] / theirs[case]) for case in common) / len(common) if common else None
    return Step(
        child.parent, candidate, child.species, changed, parent.source != child.source, child.author, child.note,
        status, gain,
    )  # fmt: skip


def _measured(
    connection: Connection, candidate: str, cases: Mapping[str, CaseFacts]
) -> tuple[str, str, dict[str, float]]:
    found = connection.execute(_BEST, {"candidate": candidate}).first()
    if found is None:
        return "", "", {}
    ratios = {case: ratio for case, ratio in connection.execute(_RATIOS, {"id": found.id}) if case in cases}
    return found.board, found.status, ratios


def _line(connection: Connection, candidate: str, cases: Mapping[str, CaseFacts]) -> list[Step]:
    """The steps that led to a candidate, nearest first."""
    steps: list[Step] = []
    name, seen = candidate, {candidate}
    while len(steps) < GENERATIONS and (step := _step(connection, name, cases)):
        steps.append(step)
        name = step.parent
        if name in seen:  # an elite of one run may be a child in the next
            break
        seen.add(name)
    return steps


def _tried(connection: Connection, candidate: str, cases: Mapping[str, CaseFacts]) -> list[str]:
    children = connection.execute(_CHILDREN, {"candidate": candidate, "limit": TRIED}).scalars().all()
    steps = [_step(connection, child, cases) for child in dict.fromkeys(children)]
    return [f"tried from here: {_step_line(step)}" for step in steps if step]


def _step_line(step: Step) -> str:
    gain = step.status if step.gain is None else f"{100 * math.expm1(step.gain):+.1f} %"
    return f"{_edit(step)}: {gain or 'not evaluated'} (by {step.author})"


def _edit(step: Step) -> str:
    parts = [f"{name} {before} -> {after}" for name, (before, after) in step.genes.items()]
    parts += [f"source rewritten{f': {step.note}' if step.note else ''}"] if step.rewritten else []
    return ", ".join(parts) or "no change"


# --- episodic


def _episodes(connection: Connection, operator: str, target: str, cases: Mapping[str, CaseFacts]) -> list[str]:
    lines = []
    for run in connection.execute(_RUNS, {"operator": operator, "target": target, "limit": EPISODES}).all():
        statuses = ", ".join(f"{status} {count}" for status, count in connection.execute(_STATUSES, {"run": run.id}))
        best = [
            f"{case} {ratio:.3f}x" for case, ratio in connection.execute(_BEST_OF_RUN, {"run": run.id}) if case in cases
        ]
        lines.append(f"run {run.id[:13]} ({run.budget}, {run.state}): {statuses or 'nothing'}; best {', '.join(best)}")
    return lines


# --- procedural


def _procedures(connection: Connection, operator: str, target: str, cases: Mapping[str, CaseFacts]) -> list[Procedure]:
    """Stretches of steps that were all faster, of the lines of the best candidates; the largest gain first."""
    found: dict[tuple[str, ...], Procedure] = {}
    for elite in ranking.elites(connection, operator, target, evaluator=None, limit=SOURCES):
        stretch: list[Step] = []
        for step in [*reversed(_line(connection, elite.candidate.id, cases)), None]:
            if step is not None and step.gain is not None and step.gain > 0 and (step.genes or step.rewritten):
                stretch.append(step)
                continue
            if stretch:
                gain = math.fsum(each.gain or 0.0 for each in stretch)
                found.setdefault(tuple(each.child for each in stretch), Procedure(tuple(stretch), gain))
            stretch = []
    return sorted(found.values(), key=lambda procedure: -procedure.gain)


def _procedure_line(procedure: Procedure) -> str:
    steps = "; then ".join(_edit(step) for step in procedure.steps)
    return f"{100 * math.expm1(procedure.gain):+.1f} % in {procedure.steps[0].species}: {steps}"

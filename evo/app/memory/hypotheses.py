"""What is told with a reason is a hypothesis, and its verdict is a test of it: a lesson, tentative until more come."""

from __future__ import annotations

import math
from collections.abc import Iterable

from evo.archive import Archive
from evo.archive.learning import record_hypothesis, test_hypothesis
from evo.archive.lineage import lineage
from evo.archive.messages import heard
from evo.archive.proposals import load_proposals
from evo.errors import ArchiveError
from evo.lesson import Evidence, Origin, Scope
from evo.mutators.agents.fence import clean
from evo.records import BLAMELESS, Evaluation, Proposal, Purpose, State, Status, Verdict

CLAIM = 400  # characters of a note
GAIN = 1.005  # over the best parent: less is within what two timings differ by


def weigh_notes(archive: Archive, verdicts: Iterable[Verdict]) -> int:
    """Files what the verdicts say of the notes that their proposals came with; how many there were.

    A candidate that gained over the best of its measured parents supports its note, one that did not or was refused
    speaks against it. Where no parent was measured on the same board nothing is said, and nothing of duplicates.
    """
    tested = 0
    for verdict in verdicts:
        proposal, evaluation = verdict.proposal, verdict.evaluation
        claim = " ".join(clean(proposal.note).split())[:CLAIM]
        if not claim or not proposal.parents or verdict.state is State.DUPLICATE or evaluation.status in BLAMELESS:
            continue
        evidence = _evidence(archive, proposal, evaluation)
        if evidence is None:
            continue
        scope = Scope(proposal.candidate.operator, proposal.candidate.target)
        author = ":".join(filter(None, (proposal.author.kind, proposal.author.model)))
        origin = Origin.PERSON if proposal.author.kind == "person" else Origin.HISTORIAN
        lesson = record_hypothesis(archive, claim, scope=scope, direction=1, origin=origin, author=author)
        test_hypothesis(archive, lesson.id, evidence)
        tested += 1
    return tested


def weigh_told(archive: Archive, run: str) -> int:
    """The same for what was told to a run (whole id) while it went on, once it has ended."""
    with archive.reading() as connection:
        told = {message.subject for message in heard(connection, run, ("tell",)) if message.subject}
        views = [view for name in sorted(told) for view in load_proposals(connection, "id", name)]
    if not views:
        return 0
    found = {e.candidate: e for e in archive.evaluations(run) if e.purpose is Purpose.SEARCH}
    verdicts = [
        Verdict(view.proposal, found[view.proposal.candidate.id], view.state)
        for view in views
        if view.proposal.candidate.id in found
    ]
    return weigh_notes(archive, verdicts)


def _evidence(archive: Archive, proposal: Proposal, evaluation: Evaluation) -> Evidence | None:
    if evaluation.status is not Status.OK:
        return Evidence(evaluation.id, supports=False)
    try:
        gain = lineage(archive, proposal.candidate.id, depth=1)[0].gain
    except ArchiveError:
        return None
    if gain is None:
        return None
    return Evidence(evaluation.id, gain > GAIN, math.log(gain))

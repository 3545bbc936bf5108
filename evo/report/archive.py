"""What the archive answers: rankings, and everything about one thing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evo.archive.views import BoardCount, ProposalView, Shown, TopRow
from evo.errors import GenomeError
from evo.genome import Genome
from evo.records import Candidate, Evaluation, Purpose
from evo.report import notation
from evo.report.evaluation import evaluation_report
from evo.report.layout import FLATTERS, assemble, listed, speed_up, table, text
from evo.report.runs import run_record

OWN_CASES = (
    "geomean: over the cases that each was timed in, so that it compares among equal numbers of them; --case NAME ranks"
    " one case, by what was measured again where it was"
)
LEXERS = {".cu": "cuda", ".cpp": "cpp"}


def top_table(rows: Sequence[TopRow]) -> Group:
    """One ranking for each operator, target, yardstick, evaluator and protocol: ratios compare within these only."""
    if not rows:
        return Group(text("the archive holds no timed candidate that fits"))
    parts: list[RenderableType] = []
    for (operator, target, yardstick, protocol, evaluator), group in groupby(rows, key=_board):
        board = f"{operator} on {target}, against {yardstick}, {protocol}"
        title = assemble((board, "bold"), (f"   evaluator {evaluator}", "dim"))
        parts += ["", title, _ranking(list(group))]
    if any(row.purpose is Purpose.SEARCH for row in rows):
        parts.append(text(FLATTERS, "dim"))
    if len({row.covered for row in rows}) > 1:
        parts.append(text(OWN_CASES, "dim"))
    return Group(*parts[1:])


def others_line(others: Sequence[BoardCount]) -> Text:
    """What the ranking leaves out, with counts, and how to see it; empty when it leaves nothing out."""
    counts: dict[str, int] = {}
    for board in others:
        counts[board.evaluator] = counts.get(board.evaluator, 0) + board.evaluations
    if not counts:
        return text("")
    listed = ", ".join(f"{evaluator} ({count})" for evaluator, count in counts.items())
    return text(f"not shown, results of other evaluators: {listed}; see them with --evaluator HASH", "dim")


def shown_report(shown: Shown) -> Group:
    """All that the archive knows about a candidate, proposal, evaluation or run."""
    parts: list[RenderableType] = [assemble((shown.kind, "bold"), f" {shown.id}")]
    if shown.run is not None:
        parts += [run_record(shown.run), assemble("evaluations: ", notation.counts(shown.statuses))]
    if shown.candidate is not None:
        parts += [_candidate(shown.candidate), *launch_lines(shown.candidate)]
    if shown.proposals:
        parts += ["", _proposals(shown.proposals)]
    for use in shown.prompts:
        spent = "" if use.usd is None else f", {use.usd:.4f} USD"
        parts.append(
            text(
                f"{use.role} {use.model}: prompt {notation.short(use.prompt)}, job {use.job}.{use.step} of run"
                f" {notation.short(use.run)}, {use.tokens_in} + {use.tokens_out} tokens{spent}"
            )
        )
    for evaluation in shown.evaluations:  # the newest, or the only one, in full
        parts += ["", text(f"evaluation {evaluation.id} ({evaluation.purpose})", "bold")]
        parts.append(evaluation_report(evaluation, archived=evaluation is not shown.evaluations[-1]))
    if len(shown.evaluations) > 1:
        parts += ["", text(f"cost: {_cost(shown.evaluations)} over {len(shown.evaluations)} evaluations")]
    if shown.top:
        parts += ["", top_table(shown.top)]
    if shown.candidate is not None:
        parts += ["", _source(shown.candidate)]
    return Group(*parts)


def _board(row: TopRow) -> tuple[str, str, str, str, str]:
    return row.operator, row.target, row.yardstick, row.protocol, row.evaluator


def _ranking(rows: Sequence[TopRow]) -> Table:
    result = table(
        "candidate",
        "geomean",
        "cases",
        "speed-up",
        "case",
        "species",
        numbers=["geomean", "cases", "speed-up"],
        fold=["case"],
    )
    result.columns[-1].overflow = "ellipsis"
    for row in rows:
        result.add_row(
            notation.short(row.candidate), notation.ratio(row.score), str(row.covered),
            speed_up(row.ratio, row.low, row.high, final=row.purpose is not Purpose.SEARCH), text(row.case),
            text(row.species),
        )  # fmt: skip
    return result


def _candidate(candidate: Candidate) -> Text:
    return text(
        f"{candidate.operator} on {candidate.target}, species {candidate.species}\n{notation.genes(candidate.values)}"
    )


def launch_lines(candidate: Candidate) -> list[Text]:
    """The launch plan as the genome's header has it: every number still an expression of the case."""
    try:
        genome = Genome.parse(candidate.source, candidate.suffix)
    except GenomeError as error:  # written by another version of evo
        return [text(f"the launch plan cannot be read: {error.what}", "dim")]
    lines = []
    for launch in genome.launches:
        terms = {"grid": launch.grid, "block": launch.block, "cluster": launch.cluster, "shared": (launch.shared,)}
        terms |= {"when": (launch.when,) if launch.when else (), "repeat": (launch.repeat,) if launch.repeat else ()}
        written = {name: ", ".join(term.expression.text for term in each) for name, each in terms.items()}
        shown = "  ".join(
            f"{name} {value}" for name, value in written.items() if value not in ("", "0", "1", "1, 1, 1")
        )
        lines.append(assemble("launch ", (launch.kernel, "bold"), f"  {shown}"))
    return lines


def _cost(evaluations: Sequence[Evaluation]) -> str:
    """Seconds of all evaluations, by stage."""
    spent: dict[str, float] = {}
    for evaluation in evaluations:
        for stage, seconds in evaluation.seconds.items():
            spent[stage] = spent.get(stage, 0.0) + seconds
    return ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in spent.items()) or "not known"


def _proposals(views: Sequence[ProposalView]) -> Table:
    result = table("proposal", "run", "state", "author", "note", fold=["author", "note"])
    for view in views:
        proposal = view.proposal
        result.add_row(
            notation.short(proposal.id),
            notation.short(proposal.run),
            str(view.state),
            notation.author(proposal.author),
            text(proposal.note),
        )
    return result


def _source(candidate: Candidate) -> RenderableType:
    lexer = LEXERS.get(candidate.suffix)
    if lexer is None:
        return text(candidate.source)
    return listed(candidate.source, lexer)

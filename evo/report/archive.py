"""What the archive answers: rankings, everything about one thing, and lineages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from evo.archive.views import LineageNode, ProposalView, Shown, TopRow
from evo.records import Candidate, Purpose
from evo.report import notation
from evo.report.evaluation import evaluation_report
from evo.report.layout import FLATTERS, speed_up, table, text
from evo.report.runs import run_record

LEXERS = {".cu": "cuda", ".cpp": "cpp"}


def top_table(rows: Sequence[TopRow]) -> Group:
    """One ranking for each operator, target, yardstick and evaluator: ratios compare within these only."""
    if not rows:
        return Group(text("the archive holds no timed candidate that fits"))
    parts: list[RenderableType] = []
    for (operator, target, yardstick, evaluator), group in groupby(rows, key=_board):
        title = Text.assemble((f"{operator} on {target}, against {yardstick}", "bold"))
        title.append(f"   evaluator {notation.short(evaluator)}", "dim")
        parts += ["", title, _ranking(list(group))]
    if any(row.purpose is Purpose.SEARCH for row in rows):
        parts.append(text(FLATTERS, "dim"))
    return Group(*parts[1:])


def shown_report(shown: Shown) -> Group:
    """All that the archive knows about a candidate, proposal, evaluation or run."""
    parts: list[RenderableType] = [Text.assemble((shown.kind, "bold"), f" {shown.id}")]
    if shown.run is not None:
        parts += [run_record(shown.run), Text.assemble("evaluations: ", notation.counts(shown.statuses))]
    if shown.candidate is not None:
        parts.append(_candidate(shown.candidate))
    if shown.proposals:
        parts += ["", _proposals(shown.proposals)]
    for evaluation in shown.evaluations:
        parts += ["", text(f"evaluation {evaluation.id} ({evaluation.purpose})", "bold")]
        parts.append(evaluation_report(evaluation, archived=True))
    if shown.top:
        parts += ["", top_table(shown.top)]
    if shown.candidate is not None:
        parts += ["", _source(shown.candidate)]
    return Group(*parts)


def lineage_tree(nodes: Sequence[LineageNode]) -> Tree:
    """The candidate with its parents below it; an ancestor that is reached twice is unfolded once."""
    known = {node.candidate: node for node in nodes}
    root = min(nodes, key=lambda node: node.depth)
    tree = Tree(_ancestor(root), guide_style="dim")
    unfolded = {root.candidate}
    todo = [(tree, root)]
    while todo:
        branch, node = todo.pop()
        for parent in node.parents:
            if parent in unfolded or parent not in known:
                why = "see above" if parent in unfolded else "not followed"
                branch.add(text(f"{notation.short(parent)}  ({why})", "dim"))
                continue
            unfolded.add(parent)
            todo.append((branch.add(_ancestor(known[parent])), known[parent]))
    return tree


def _board(row: TopRow) -> tuple[str, str, str, str]:
    return row.operator, row.target, row.yardstick, row.evaluator


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


def _proposals(views: Sequence[ProposalView]) -> Table:
    result = table("proposal", "run", "state", "author", "note", fold=["author", "note"])
    for view in views:
        proposal = view.proposal
        author = " ".join(part for part in (proposal.author.kind, proposal.author.model) if part)
        result.add_row(
            notation.short(proposal.id),
            notation.short(proposal.run),
            str(view.state),
            text(author),
            text(proposal.note),
        )
    return result


def _source(candidate: Candidate) -> RenderableType:
    lexer = LEXERS.get(candidate.suffix)
    if lexer is None:
        return text(candidate.source)
    return Syntax(candidate.source, lexer, background_color="default", word_wrap=True)


def _ancestor(node: LineageNode) -> Text:
    line = Text.assemble((notation.short(node.candidate), "bold"), f"  {node.species}  ")
    if node.score is not None:
        line.append(notation.ratio(node.score))
    else:
        line.append(str(node.status) or "not evaluated", "red" if node.status else "dim")
    return line.append(f"  by {' '.join(part for part in (node.author.kind, node.author.model) if part)}", "dim")

"""A lineage as a tree: the line of first parents runs down, the others hang below the step that they had a part in."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from evo.archive.views import LineageNode
from evo.records import Purpose
from evo.report import notation
from evo.report.layout import FLATTERS, assemble, marked, text
from evo.report.printable import one_line


def lineage_report(nodes: Sequence[LineageNode]) -> Group:
    """The tree, and what its marks mean."""
    rough = any(node.purpose is Purpose.SEARCH and node.score is not None for node in nodes)
    return Group(lineage_tree(nodes), *([text(FLATTERS, "dim")] if rough else []))


def lineage_tree(nodes: Sequence[LineageNode]) -> Tree:
    """Every ancestor with what its step changed and gained; one that is reached twice is unfolded once."""
    known = {node.candidate: node for node in nodes}
    root = min(nodes, key=lambda node: node.depth)
    tree = Tree(_ancestor(root), guide_style="dim")
    unfolded = {root.candidate}
    todo = [(tree, tree, root)]
    while todo:
        own, line, node = todo.pop()
        for position, parent in enumerate(node.parents):
            branch = own if position else line
            if parent in unfolded or parent not in known:
                why = "see above" if parent in unfolded else "not followed"
                branch.add(text(f"{notation.short(parent)}  ({why})", "dim"))
                continue
            unfolded.add(parent)
            todo.append((branch.add(_ancestor(known[parent])), branch, known[parent]))
    return tree


def _ancestor(node: LineageNode) -> Text:
    outcome = (str(node.status) or "not evaluated", "red" if node.status else "dim")
    if node.score is not None:
        outcome = (marked(node.score, final=node.purpose is not Purpose.SEARCH), "")
    return assemble(
        (notation.short(node.candidate), "bold"),
        f"  {one_line(node.species)}  ",
        outcome,
        f"  step {node.gain - 1:+.1%}" if node.gain is not None else "",
        (f"  by {notation.author(node.author) or 'nobody'}", "dim"),
        f"  {one_line(', '.join(node.changes))}" if node.changes else "",
    )

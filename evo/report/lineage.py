"""A lineage as a tree: the line of first parents runs down, the others hang below the step that they had a part in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from evo.archive.views import LineageNode
from evo.records import Purpose
from evo.report import notation
from evo.report.layout import FLATTERS, assemble, marked, text
from evo.report.printable import one_line

STEPS = (
    "speed-ups are over the cases and the yardstick that each was timed with, and do not compare; a step is over the"
    " cases that parent and child have in common, against one yardstick"
)


def lineage_report(nodes: Sequence[LineageNode]) -> Group:
    """The tree, and what its marks mean."""
    rough = any(node.purpose is Purpose.SEARCH and node.score is not None for node in nodes)
    marks = [text(FLATTERS, "dim")] if rough else []
    if len(nodes) > 1 and any(node.score is not None for node in nodes):
        marks.append(text(STEPS, "dim"))
    return Group(lineage_tree(nodes), *marks)


def lineage_tree(nodes: Sequence[LineageNode]) -> Tree:
    """Every ancestor with what its step changed and gained; one that is reached twice is unfolded once, the line of
    first parents always in full."""
    known = {node.candidate: node for node in nodes}
    root = min(nodes, key=lambda node: node.depth).candidate
    line = set(_first_parents(root, known))
    tree = Tree("", guide_style="dim", hide_root=True)
    unfolded = set()
    todo = [(tree, root)]
    while todo:  # whoever is put in last comes first, so that a line is whole before the next one of its step
        branch, name = todo.pop()
        if name in unfolded or name not in known or (name in line and branch is not tree):
            why = "see above" if name in unfolded else "see below" if name in line else "not followed"
            branch.add(text(f"{notation.short(name)}  ({why})", "dim"))
            continue
        unfolded.add(name)
        step = branch.add(_ancestor(known[name]))
        first, others = known[name].parents[:1], known[name].parents[1:]
        todo += [(branch, parent) for parent in first]
        todo += [(step, parent) for parent in reversed(others)]
    return tree


def _first_parents(name: str, known: Mapping[str, LineageNode]) -> Iterator[str]:
    while name in known:
        yield name
        parents = known[name].parents
        if not parents:
            return
        name = parents[0]


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

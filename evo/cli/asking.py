"""`evo ask`, `evo tell` and `evo evaluate --pending`: somebody else proposes, the device may be elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evo.cli import options, output

if TYPE_CHECKING:
    from evo.app.swarm.asked import Answer, Told

Operator = Annotated[
    str, typer.Option("--operator", "-o", help="Whose candidates are asked for; `evo operators` lists them.")
]
Run = Annotated[str, typer.Option("--run", metavar="RUN", help="A run, live or not, that what is told waits for.")]
Cases = Annotated[
    list[str] | None,
    typer.Option("--cases", metavar="PATTERN", help="Only cases whose name matches; may be repeated."),
]


def ask(
    operator: Operator = "",
    target: options.Target = "auto",
    run: Run = "",
    cases: Cases = None,
    parent: Annotated[str, typer.Option("--parent", metavar="ID", help="Ask about this candidate.")] = "",
    lease: Annotated[float, typer.Option("--lease", metavar="MINUTES", min=0, help="Nobody else is asked.")] = 30.0,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Ask what to try next: parents, a direction, and everything that an author needs to know."""
    from evo import app

    with app.open_desk(archive, run=run, operator=operator, target=target, cases=tuple(cases or ())) as desk:
        question = desk.ask(lease_s=60 * lease, parent=parent)
    if as_json:
        output.print_json(app.ask_json(question))
        return
    output.exact(question.prompt)
    parents = " ".join(f"--parent {parent.id[:12]}" for parent in question.parents)
    to = f"--run {question.run}"
    output.echo(f"answer with: evo tell FILE {to} --ask {question.ask} {parents} --note '...'", err=True)


def tell(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A genome, SEARCH/REPLACE edits, an answer as JSON, or -."),
    ] = None,
    operator: Operator = "",
    target: options.Target = "auto",
    run: Run = "",
    ask: Annotated[str, typer.Option("--ask", metavar="ID", help="The question that this answers.")] = "",
    parent: Annotated[
        list[str] | None, typer.Option("--parent", metavar="ID", help="What it was made of; may be repeated.")
    ] = None,
    gene: options.Genes = None,
    note: Annotated[str, typer.Option("--note", help="What was changed, and what is expected of it.")] = "",
    author: Annotated[str, typer.Option("--author", metavar="KIND:MODEL", help="Who made it.")] = "person",
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
) -> None:
    """Hand in a candidate: a whole genome, edits of its parent, or other gene values. Evaluated by a live run, or later
    by `evo evaluate --pending`."""
    from evo import app

    answer = app.read_answer(file, genes=options.genes(gene), stdin=sys.stdin)
    answer |= _given(ask=ask, parents=parent, note=note)
    answer.setdefault("author", _author(author))
    with app.desk_for(archive, answer, run=run, operator=operator, target=target) as desk:
        told = app.tell_answer(desk, answer)
    if as_json:
        output.print_json(told.plain())
    else:
        output.echo(told_line(told))


def evaluate(
    pending: Annotated[bool, typer.Option("--pending", help="What was told and waits.")] = False,
    target: Annotated[str, typer.Option("--target", "-t", help="Only what is for this target.")] = "",
    protocol: options.Protocol = "",
    archive: options.Archive = "evo.db",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Evaluate what others proposed, on this machine's device. Exit 1 when something had to be left."""
    if not pending:
        raise typer.BadParameter("say what to evaluate; for one file see `evo bench`", param_hint="--pending")
    from evo import app

    judged = app.evaluate_pending(archive, target=target, protocol=protocol, say=output.sayer(quiet))
    for reason in judged.left:
        output.echo(f"left: {reason}", err=True)
    if as_json:
        output.print_json([app.answer_json(answer) for answer in judged.answers])
    else:
        output.echo("\n".join(_line(answer) for answer in judged.answers) or "nothing waited")
    if judged.left:
        raise typer.Exit(1)


def _line(answer: Answer) -> str:
    """One line an answer: what became of it, and its ratios."""
    ratios = [f"{name} {view.ratio:.3f}x" for name, view in answer.cases.items() if view.ratio]
    why = f": {answer.diagnosis.message}" if answer.diagnosis else ""
    same = f" of {answer.of[:12]}" if answer.of else ""
    return f"{answer.candidate[:12]}  {'duplicate' if same else answer.status}{same}{why}  {'  '.join(ratios)}".rstrip()


def told_line(told: Told) -> str:
    """What became of what was handed in, and what comes next."""
    if not told.of:
        return (
            f"{told.state}: candidate {told.candidate}\n  `evo evaluate --pending` judges it, or the run that goes on"
        )
    if told.of == told.candidate:
        return f"{told.state}: candidate {told.candidate} was handed in before"
    return f"{told.state}: candidate {told.candidate} equals {told.of}"


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def _author(text: str) -> dict[str, str]:
    kind, _, model = text.partition(":")
    return {"kind": kind, "model": model}

"""`evo archive ...`: what earlier runs found."""

from __future__ import annotations

from typing import Annotated

import typer

from evo.cli import care, options

app = typer.Typer(help="Look at what earlier runs found.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="A candidate, run or evaluation; any unique prefix.")]
Operator = Annotated[str | None, typer.Option("--operator", "-o", help="Only this operator.")]
TargetName = Annotated[str | None, typer.Option("--target", "-t", help="Only this target.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=options.MOST, help="At most so many rows.")]


@app.command()
def top(
    operator: Operator = None,
    target: TargetName = None,
    case: Annotated[str | None, typer.Option("--case", help="Only this case.")] = None,
    evaluator: Annotated[
        str,
        typer.Option("--evaluator", metavar="HASH", help="Results of this evaluator, by the beginning of its name."),
    ] = "",
    limit: Limit = 20,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """The fastest candidates under the newest evaluator; results of others are counted, never mixed in."""
    from evo import app as evo
    from evo.cli import output
    from evo.report.archive import others_line, top_table

    rows = evo.archive_top(archive, operator, target, case, limit, evaluator)
    others = others_line(evo.archive_others(archive, operator, target, evaluator))
    if as_json or as_csv:
        (output.print_json if as_json else output.print_csv)(rows)
        output.echo(others.plain, err=True, nl=bool(others.plain))
    else:
        output.print_table(top_table(rows), *([others] if others.plain else []))


@app.command()
def runs(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=options.MOST, help="At most so many runs.")] = 20,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """The runs: state, operator, target, start and command. `evo resume` takes their ids."""
    from evo import app as evo
    from evo.cli import output

    records = evo.archive_runs(archive, limit)
    if as_json or as_csv:
        (output.print_json if as_json else output.print_csv)(records)
    else:
        from evo.report.runs import run_list

        output.print_table(run_list(records))


@app.command()
def show(
    identity: Id, archive: options.Archive = "evo.db", as_json: options.Json = False, as_csv: options.Csv = False
) -> None:
    """One candidate in full: genes, launches, cases, machine code, cost, source. As CSV: its cases."""
    from evo import app as evo
    from evo.cli import output

    found = evo.archive_show(archive, identity)
    if as_json:
        output.print_json(found)
    elif as_csv:
        from evo.report.flat import case_rows

        output.print_csv(case_rows(found))
    else:
        from evo.report.archive import shown_report

        output.print_table(shown_report(found))


@app.command()
def lineage(
    identity: Id,
    depth: Annotated[int, typer.Option("--depth", min=1, max=options.MOST, help="Generations back.")] = 50,
    most: Annotated[
        int, typer.Option("--most", min=1, max=options.MOST, help="Ancestors beside the line of first parents.")
    ] = 300,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """Where a candidate comes from: its parents, theirs, what each step changed and gained."""
    from evo import app as evo
    from evo.cli import output

    nodes = evo.archive_lineage(archive, identity, depth, most)
    if as_json or as_csv:
        (output.print_json if as_json else output.print_csv)(nodes)
    else:
        from evo.report.lineage import lineage_report

        output.print_table(lineage_report(nodes))


@app.command()
def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="A candidate; any unique prefix.")],
    other: Annotated[str, typer.Argument(metavar="B", help="The one that is compared with it.")],
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """Two candidates: source, genes, and times side by side. As CSV: the times."""
    from evo import app as evo
    from evo.cli import output

    found = evo.archive_diff(archive, one, other)
    if as_json:
        output.print_json(found)
    elif as_csv:
        output.print_csv(found.cases)
    else:
        from evo.report.comparison import comparison_report

        output.print_table(comparison_report(found))


@app.command()
def failures(
    operator: Operator = None,
    target: TargetName = None,
    status: Annotated[str | None, typer.Option("--status", help="Only this status, such as build_error.")] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only this run.")] = None,
    limit: Limit = 20,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """What fails, grouped by diagnosis, most often first, with an example each."""
    from evo import app as evo
    from evo.cli import output

    groups = evo.archive_failures(archive, operator, target, status, run, limit)
    if as_json or as_csv:
        (output.print_json if as_json else output.print_csv)(groups)
    else:
        from evo.report.answers import failure_table

        output.print_table(failure_table(groups))


@app.command()
def query(
    condition: Annotated[
        str, typer.Argument(metavar="[CONDITION]", help="""Such as 'ratio > 1.2 and gene.THREADS == 256'.""")
    ] = "",
    of: Annotated[
        str, typer.Option("--of", help="candidate, case, evaluation, parent, proposal or run.")
    ] = "evaluation",
    columns: Annotated[str, typer.Option("--columns", metavar="A,B", help="What to show of them.")] = "",
    sort: Annotated[str, typer.Option("--sort", metavar="COLUMN", help="-COLUMN: the largest first.")] = "",
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="SELECT", help="Ask by one SELECT instead; it can only read.")
    ] = None,
    limit: Limit = 100,
    archive: options.Archive = "evo.db",
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """Any question: a condition on documented columns, or a SELECT by --sql. docs/archive.md lists the columns."""
    if sql is not None and (condition or columns or sort):
        raise typer.BadParameter("goes without a condition, --columns and --sort", param_hint="--sql")
    if condition.lstrip()[:7].lower() in ("select", "select "):
        raise typer.BadParameter(f"a SELECT goes with --sql: --sql {condition.strip()!r}", param_hint="CONDITION")
    from evo import app as evo
    from evo.cli import output

    if sql is not None:
        found = evo.archive_sql(archive, sql, limit)
    else:
        chosen = [name.strip() for name in columns.split(",") if name.strip()]
        found = evo.archive_query(archive, condition, of, chosen, sort, limit)
    if as_json:
        output.print_json(found.records())
    elif as_csv:
        output.print_csv(found.rows, found.columns)
    else:
        from evo.report.answers import answer_table

        output.print_table(answer_table(found))
    if found.more:
        output.echo(f"there are more rows than --limit {limit} shows", err=True)


app.command()(care.check)
app.command()(care.upgrade)
app.command()(care.vacuum)
app.command()(care.merge)
app.command()(care.backup)

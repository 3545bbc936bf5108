"""`evo certify` and `evo replay`: numbers that travel, and whether they hold elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evo.cli import options
from evo.errors import RunError

if TYPE_CHECKING:
    from evo.app import Order
    from evo.certificate import Certificate

EXIT = {"holds": 0, "does not hold": 1, "cannot be compared": 3}


def certify(
    identity: Annotated[
        str, typer.Argument(metavar="ID", help="A candidate's id or its beginning, a genome file, or a run's winners.")
    ],
    target: options.Target = "auto",
    gene: options.Genes = None,
    case: options.Cases = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="PATH", help="A file, or a folder for certificate-ID.json. Of winners: a folder."
        ),
    ] = None,
    sessions: Annotated[int, typer.Option("--sessions", min=3, help="Fresh processes.")] = 5,
    pairs: Annotated[int, typer.Option("--pairs", min=4, help="Of candidate and baseline, in each process.")] = 40,
    protocol: options.Protocol = "",
    archive: options.Archive = "evo.db",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Measure a candidate anew in several processes, and write a certificate of its numbers.

    Of the folder of a run's winners, each is measured on the cases that it won, all in the same sessions.
    """
    winners = Path(identity).is_dir()
    if out is not None and not out.is_dir():
        place = out if winners else out.parent
        if not place.is_dir():
            raise typer.BadParameter(f"there is no folder {str(place)!r}", param_hint="--out")
    genes = options.genes(gene)
    from evo import app
    from evo.cli import output

    order = app.Order(
        identity=identity, archive=archive, target=target, genes=genes, cases=tuple(case or ()), sessions=sessions,
        pairs=pairs, protocol=protocol,
    )  # fmt: skip
    if winners:
        return _certify_winners(order, out or Path(), quiet, as_json)
    certificate = app.certify(order, output.sayer(quiet))
    file = _keep(certificate, out if out and not out.is_dir() else (out or Path()) / _file_of(certificate))
    if as_json:
        output.print_json(certificate)
    else:
        from evo.report.certificate import certificate_report

        output.print_table(certificate_report(certificate, str(file)))


def _certify_winners(order: Order, folder: Path, quiet: bool, as_json: bool) -> None:
    """What could be certified is written, whatever became of the others."""
    from evo import app
    from evo.certificate import Certificate
    from evo.cli import output

    written, failed = dict[str, Certificate](), dict[str, str]()
    for path, found in app.certify_portfolio(order, output.sayer(quiet)):
        if isinstance(found, Certificate):
            written[str(_keep(found, folder / _file_of(found)))] = found
        else:
            failed[path.name] = found.what
    if as_json:
        output.print_json({"certificates": written, "failed": failed})
    else:
        from evo.report.certificate import portfolio_report

        output.print_table(portfolio_report(written, failed))
    raise typer.Exit(1 if failed else 0)


def _keep(certificate: Certificate, file: Path) -> Path:
    """Writes it there; where that fails, where temporary files go: measuring again takes minutes."""
    import tempfile

    from evo import app
    from evo.cli import output

    try:
        app.write_certificate(certificate, file)
    except RunError as error:
        try:
            spare = (
                Path(tempfile.mkdtemp(prefix="evo-")) / file.name
            )  # a folder of its own: nobody can lay a link there
            app.write_certificate(certificate, spare)
        except (RunError, OSError):  # nowhere: then to standard output
            output.print_json(certificate)
            raise error from None
        output.echo(f"{error.what}; it is kept as {spare}", err=True)
        return spare
    return file


def _file_of(certificate: Certificate) -> Path:
    return Path(f"certificate-{certificate.candidate.id[:10]}.json")


def replay(
    file: Annotated[Path, typer.Argument(metavar="CERT.json", help="A certificate that `evo certify` wrote.")],
    target: Annotated[str, typer.Option("--target", "-t", help="Default: the certificate's own.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Measure even where the numbers cannot be compared.")] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Build, check and time again what a certificate says. Exit 0: it holds; 1: it does not; 3: no comparison."""
    from evo import app
    from evo.cli import output

    result = app.replay(file, target=target, force=force, say=output.sayer(quiet))
    if as_json:
        output.print_json(result)
    else:
        from evo.report.certificate import replay_report

        output.print_table(replay_report(result))
    raise typer.Exit(EXIT[result.outcome])

"""Options that several commands share, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MOST = 1_000_000_000  # rows or generations that may be asked for; a database counts in 64 bits

Archive = Annotated[
    str,
    typer.Option(
        "--archive", envvar="EVO_ARCHIVE", metavar="FILE", help="The archive: an SQLite file or a postgresql:// URL."
    ),
]
Cases = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="PATTERN", help="Only cases whose name matches, as in shells; may be repeated."),
]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV on standard output, and nothing else there.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A genome: .cu, .ptx or .cpp with a header.")]
Genes = Annotated[
    list[str] | None,
    typer.Option("--gene", "-g", metavar="NAME=VALUE", help="A gene's value instead of its default; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
Llm = Annotated[
    list[str] | None,
    typer.Option(
        "--llm",
        metavar="PROVIDER:MODEL[@URL][*WEIGHT]",
        help="A language model that proposes structures: openai, openai-responses, anthropic, gemini, openrouter, "
        "ollama, vllm, llamacpp, command:PROGRAM, or replay:RUN. May be repeated.",
    ),
]
Prompts = Annotated[
    str, typer.Option("--prompts", metavar="FOLDER", help="Templates that go before evo's own, file by file.")
]
Protocol = Annotated[
    str, typer.Option("--protocol", metavar="NAME", help="How calls are timed; docs/trust.md says which there are.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No live progress.")]
Target = Annotated[str, typer.Option("--target", "-t", help="A target's name, or auto: the first GPU, else the CPU.")]


def new_file(path: Path | None) -> Path | None:
    """Callback of options that name a file to write: what takes minutes to make is refused before, not after it."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(path.parent)!r}")
    if path is not None and path.is_dir():
        raise typer.BadParameter(f"{str(path)!r} is a folder; name a file in it")
    return path


def genes(given: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping; the last of a name wins."""
    values = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE, such as THREADS=256", param_hint="--gene")
        values[name.strip()] = value.strip()
    return values

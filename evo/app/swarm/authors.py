"""Who is said to have made what is told: a name that tables and trees can show."""

from __future__ import annotations

from evo.errors import UsageError
from evo.records import Author
from evo.report.printable import one_line

LONGEST = {"kind": 64, "model": 200}
FIX = "write a kind, or KIND:MODEL, such as agent:some-model"


def expect_author(author: Author) -> None:
    """Raises `UsageError` unless kind and model are one printable line each, of reasonable length."""
    if not author.kind.strip():
        raise UsageError("the author's kind is empty", fix=FIX)
    for part, most in LONGEST.items():
        name = str(getattr(author, part))
        if len(name) > most:
            raise UsageError(f"the author's {part} has {len(name)} characters, of at most {most}", fix=FIX)
        if one_line(name) != name:
            raise UsageError(f"the author's {part} '{one_line(name)}' is not one printable line", fix=FIX)

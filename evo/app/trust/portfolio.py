"""`evo certify FOLDER`: the winners that a run handed back, each certified on the cases that it won."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from evo.app.single import read_genome
from evo.app.telling import Say
from evo.app.trust.certify import Order, certify
from evo.app.winners import PORTFOLIO
from evo.certificate import Certificate
from evo.errors import RunError, UsageError


def portfolio(folder: Path, patterns: tuple[str, ...] = ()) -> dict[Path, tuple[str, ...]]:
    """The cases of every winner's file, in the portfolio's order. Raises `UsageError` where it is none."""
    place = folder / PORTFOLIO
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        files = {str(case): folder / str(entry["file"]) for case, entry in data.items()}
    except OSError as error:
        raise UsageError(
            f"cannot read {place}: {error.strerror or error}",
            fix="name a genome file, or a run's winners",
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"{place} maps no cases to files", fix="`evo run` writes such folders") from None
    if strange := next((path for path in files.values() if path.parent != folder or not path.is_file()), None):
        raise UsageError(f"{place} names {strange.name!r}, which is not there", fix="keep a run's winners together")
    held: dict[Path, tuple[str, ...]] = {}
    for case, path in files.items():
        if not patterns or any(fnmatch.fnmatchcase(case, pattern) for pattern in patterns):
            held[path] = (*held.get(path, ()), case)
    if not held:
        raise UsageError(f"no case of {place} matches {', '.join(patterns)}", fix=f"there is: {', '.join(files)}")
    return held


def certify_portfolio(order: Order, say: Say = lambda message: None) -> Iterator[tuple[Path, Certificate | RunError]]:
    """Each winner's certificate as soon as there is one, or why it failed: the others are certified all the same.

    Raises `UsageError` as `portfolio` and `certify` do.
    """
    if order.genes:
        raise UsageError("winners have their genes in their files", fix="leave --gene out, or name one genome file")
    held = portfolio(Path(order.identity), order.cases)
    for path in held:
        read_genome(path)  # a file that cannot be used is told before the first of them is measured
    for path, cases in held.items():
        say(f"{path.name}, on {', '.join(cases)}")
        try:
            yield path, certify(replace(order, identity=str(path), cases=cases), say)
        except RunError as error:
            yield path, error

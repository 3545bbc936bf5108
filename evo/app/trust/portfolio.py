"""`evo certify FOLDER`: the winners that a run handed back, each certified on the cases that it won."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from evo.app.single import read_genome
from evo.app.stand import select_cases, stand
from evo.app.telling import Say
from evo.app.trust.certificates import Terms, make_certificate
from evo.app.trust.certify import Order, expect_enough, expect_success, measured, target_of
from evo.app.winners import PORTFOLIO
from evo.certificate import Certificate
from evo.errors import RunError, UsageError
from evo.genome import make_candidate
from evo.plugins.manager import Plugins


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
    """Each winner's certificate, or why there is none: the others are certified all the same.

    All are measured in the same sessions, as a run's finals are, beside yardsticks that are chosen once. Raises
    `UsageError` as `portfolio` and `certify` do.
    """
    if order.genes:
        raise UsageError("winners have their genes in their files", fix="leave --gene out, or name one genome file")
    expect_enough(order)
    held = portfolio(Path(order.identity), order.cases)
    genomes = {path: read_genome(path) for path in held}
    first = next(iter(genomes.values()))
    if other := next((path for path, genome in genomes.items() if genome.operator != first.operator), None):
        raise UsageError(
            f"{other.name} is for operator {genomes[other].operator!r}, not {first.operator!r} as those before it",
            fix="keep the winners of one run in a folder",
        )
    asked = [case for cases in held.values() for case in cases]
    with stand(Plugins.load(), first.operator, target_of(first, order.target), asked, order.protocol) as here:
        names = here.operator.name, here.target.name
        candidates = {path: make_candidate(*names, genome, {}) for path, genome in genomes.items()}
        members = {case: candidates[path] for path, cases in held.items() for case in cases}
        calibration = here.calibrate(say)
        found = measured(here, calibration.yardsticks, members, order.sessions, order.pairs, say)
        by_candidate = {evaluation.candidate: evaluation for evaluation in found}
        for path, cases in held.items():
            evaluation = by_candidate[candidates[path].id]
            own = replace(here, cases=select_cases(here.operator, here.target.name, cases))
            alone = replace(order, identity=str(path), cases=cases)
            terms = Terms(alone.command(), order.sessions, order.pairs, order.sanitizer)
            try:
                expect_success(evaluation)
            except RunError as error:
                yield path, error
            else:
                yield path, make_certificate(own, terms, candidates[path], calibration, evaluation)

"""`evo archive effects`: what each gene value does to the speed, for the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evo.archive import Archive
from evo.archive.attribution import CaseEffect, Effect, effects
from evo.archive.ranking import boards
from evo.errors import UnknownNameError, UsageError
from evo.lesson import CaseFacts
from evo.operator import Operator
from evo.plugins.manager import Plugins
from evo.report.effects import CaseRow, EffectRow


def archive_effects(
    archive: str, operator: str, target: str | None = None, gene: str | None = None, case: str | None = None
) -> list[EffectRow]:
    """Of one target, or of all that the archive has for the operator. With `case` of that case alone, with a correction
    of its own. Raises `UnknownNameError`; a hold-out case is a `UsageError`."""
    known = Plugins.load().operator(operator)
    with Archive.open(archive, create=False, readonly=True) as store, store.reading() as connection:
        there = dict.fromkeys(board.target for board in boards(connection, operator=operator))
        if target is not None and target not in there:
            raise UnknownNameError("target of this operator in the archive", target, there)
        rows = []
        for name in there if target is None else [target]:
            cases = case_facts(known, name)
            cases = only_case(known, name, cases, case) if case else cases
            rows += [_row(operator, name, effect) for effect in effects(connection, operator, name, cases)]
    found = [row for row in rows if gene in (None, row.gene)]
    if gene is not None and not found:
        raise UnknownNameError("gene with pairs to compare", gene, {row.gene for row in rows})
    return found


def case_facts(operator: Operator, target: str) -> dict[str, CaseFacts]:
    """What lessons may know: every case but the hold-outs."""
    return {
        case.name: CaseFacts(dict(case.dims), next(iter(case.dtypes.values()), ""), case.group == "tune")
        for case in operator.cases(target)
        if case.group != "holdout"
    }


def only_case(operator: Operator, target: str, cases: Mapping[str, CaseFacts], case: str) -> dict[str, CaseFacts]:
    """One case of `cases`. Raises `UnknownNameError`, and `UsageError` for a hold-out."""
    if case in cases and cases[case].timed:
        return {case: cases[case]}
    if any(case == each.name and each.group == "holdout" for each in operator.cases(target)):
        raise UsageError(f"{case!r} is a hold-out case: nothing is learned from it", fix="name a tuned case")
    raise UnknownNameError("timed case", case, [name for name, facts in cases.items() if facts.timed])


def _row(operator: str, target: str, effect: Effect) -> EffectRow:
    return EffectRow(
        operator, target, effect.species, effect.gene, effect.value, _percent(effect.effect), _percent(effect.low),
        _percent(effect.high), effect.pairs, effect.family, effect.chance, effect.significant,
        tuple(_case(each) for each in effect.cases), effect.evidence,
    )  # fmt: skip


def _case(effect: CaseEffect) -> CaseRow:
    bounded = math.isfinite(effect.low)
    return CaseRow(
        effect.case, _percent(effect.effect), _percent(effect.low) if bounded else None,
        _percent(effect.high) if bounded else None, effect.pairs,
    )  # fmt: skip


def _percent(log: float) -> float:
    return 100 * math.expm1(min(log, 20.0))  # a useless interval need not overflow

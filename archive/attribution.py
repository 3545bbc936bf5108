"""What each gene value does to the speed, from pairs of candidates that are equal but for one gene.

A stratum is a set of candidates of one source that agree in every gene but one; a child that changed one gene lies in
a stratum with its parent. In each stratum a value is compared with the mean of the others, as log ratios to the
yardstick, within one board, with the error of every measurement; several boards give one comparison, their mean. Strata
have no candidate in common, so their comparisons are independent, and are pooled with room for true differences between
them (`evo.archive.pooling`).

An effect is called significant only with `LEAST_PAIRS` comparisons and after the correction for how many values were
looked at. Where the cases of one size range say something else than the others, the effect is given for the range; the
choice of the range is paid for in the same correction. Racing stops early for whoever is behind, which makes a loser's
time a little too long on average: effects of a few tenths of a percent deserve a fixed sample.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from sqlalchemy import Connection, text

from evo.archive.families import Family, families
from evo.archive.pooling import DISCOVERY_RATE, Array, Pooled, false_discovery, pool
from evo.archive.ranking import boards
from evo.lesson import CaseFacts, Evidence
from evo.records import STRENGTH, Value

LEAST_PAIRS = 5  # comparisons below which nothing is called significant
MOST = 100_000  # timed evaluations that are looked at, the newest: a bound on time and memory
EVIDENCE = 24  # evaluations for and against that an effect names, the clearest
UNKNOWN = 0.2  # standard deviation of a log ratio where no measurement of the case has a finite interval
ALIKE = 2.0  # effects of one sign in two ranges of cases that differ by less are one effect
SPLIT_P = 0.01  # how unlikely a difference between two ranges of cases must be

_NEWEST = (
    "(SELECT e.id, e.candidate, e.purpose FROM evaluation e WHERE e.board = :board AND e.score IS NOT NULL"
    " ORDER BY e.id DESC LIMIT :limit) e"
)
_CANDIDATES = text(
    f"SELECT e.id, e.candidate, e.purpose, c.species, c.source, c.values_json FROM {_NEWEST}"
    " JOIN candidate c ON c.id = e.candidate WHERE NOT EXISTS (SELECT 1 FROM evaluation o"
    " WHERE o.candidate = e.candidate AND o.status NOT IN ('ok', 'evaluator_error', 'unstable_timing'))"
)
_CASES = text(
    f"SELECT r.evaluation, r.case_name, r.ratio, r.low, r.high, r.level FROM {_NEWEST}"
    " JOIN case_result r ON r.evaluation = e.id WHERE r.status = 'ok' AND r.ratio > 0"
)
Rows = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class CaseEffect:
    """An effect in one case; natural logarithms."""

    case: str
    effect: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True, slots=True)
class Effect:
    """What a gene's value does, against the other values of the gene in otherwise equal candidates.

    `effect`, `low` and `high` are natural logarithms of the speed-up (0.018: 1.8 % faster). `family` is the range of
    cases that it holds for, "" for all. `chance` is the corrected p-value.
    """

    species: str
    gene: str
    value: Value
    family: str
    effect: float
    low: float
    high: float
    pairs: int
    chance: float
    significant: bool
    cases: tuple[CaseEffect, ...] = ()
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Sheet:
    """Candidates of one species, once a board.

    `logs` and `variances` are (rows, cases), NaN where not timed; `codes` is (rows, genes), the place of a value in
    `values`, -1 without the gene; `base` hashes board and source; `candidates` numbers them.
    """

    species: str
    genes: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    evaluations: tuple[str, ...]
    candidates: np.ndarray[Any, np.dtype[np.int64]]
    base: np.ndarray[Any, np.dtype[np.uint64]]
    codes: np.ndarray[Any, np.dtype[np.int64]]
    logs: Array
    variances: Array


def effects(
    connection: Connection, operator: str, target: str, cases: Mapping[str, CaseFacts], *, most: int = MOST
) -> list[Effect]:
    """Of every species, gene and value with two comparisons or more; the strongest significant ones first.

    `cases` are those that may be looked at, in order; leave hold-out cases out.
    """
    names = tuple(name for name, facts in cases.items() if facts.timed)
    found: list[Effect] = []
    for sheet in _sheets(connection, operator, target, names, most):
        for gene in range(len(sheet.genes)):
            found += _gene_effects(sheet, gene, names, cases)
    chances = false_discovery([effect.chance for effect in found])
    judged = [
        replace(effect, chance=chance, significant=chance <= DISCOVERY_RATE and effect.pairs >= LEAST_PAIRS)
        for effect, chance in zip(found, chances, strict=True)
    ]
    return sorted(judged, key=lambda effect: (not effect.significant, -abs(effect.effect)))


# --- from rows to arrays


def _sheets(connection: Connection, operator: str, target: str, cases: tuple[str, ...], most: int) -> Iterator[Sheet]:
    """One sheet a species, over all boards, newest first."""
    rows: dict[str, dict[tuple[str, str], list[Any]]] = {}
    measured: dict[str, list[tuple[float, float]]] = {}
    place = {case: number for number, case in enumerate(cases)}
    for board in boards(connection, operator=operator, target=target):
        if most <= 0:
            break
        names = {"board": board.id, "limit": most}
        for found in connection.execute(_CANDIDATES, names):
            kept = rows.setdefault(found.species, {})
            key = (board.id, found.candidate)
            rank = (STRENGTH.get(found.purpose, 0), found.id)
            if key not in kept or kept[key][0] < rank:
                kept[key] = [rank, found.source, found.values_json]
            most -= 1
        for evaluation, case, ratio, low, high, level in connection.execute(_CASES, names):
            if case in place:
                line = measured.setdefault(evaluation, [(math.nan, math.nan)] * len(cases))
                line[place[case]] = (math.log(ratio), _variance(low, high, level))
    for species, kept in rows.items():
        yield _sheet(species, kept, measured, len(cases))


def _variance(low: float | None, high: float | None, level: float | None) -> float:
    """Of a log ratio, from its interval; NaN where that is unbounded."""
    if not low or not high or not math.isfinite(high) or not level:
        return math.nan
    return float(((math.log(high) - math.log(low)) / 2 / _normal(level)) ** 2)


@lru_cache(maxsize=16)
def _normal(level: float) -> float:
    return statistics.NormalDist().inv_cdf((1 + level) / 2)


def _sheet(
    species: str,
    kept: Mapping[tuple[str, str], list[Any]],
    measured: Mapping[str, list[tuple[float, float]]],
    cases: int,
) -> Sheet:
    lines = [(*key, *line) for key, line in kept.items() if line[0][1] in measured]
    assignments = [json.loads(line[4]) for line in lines]
    genes = tuple(dict.fromkeys(name for values in assignments for name in values))
    known: list[dict[Value, int]] = [{} for _ in genes]
    codes = np.full((len(lines), len(genes)), -1, np.int64)
    for row, values in enumerate(assignments):
        for column, name in enumerate(genes):
            if name in values:
                codes[row, column] = known[column].setdefault(values[name], len(known[column]))
    bases: dict[tuple[str, str], int] = {}
    base = np.array([bases.setdefault((line[0], line[3]), len(bases)) for line in lines], np.int64)
    salt = np.random.default_rng(0).integers(1 << 63, size=max(1, len(bases)), dtype=np.uint64)
    ids: dict[str, int] = {}
    candidates = np.array([ids.setdefault(line[1], len(ids)) for line in lines], np.int64)
    numbers = np.array([measured[line[2][1]] for line in lines], float).reshape(len(lines), cases, 2)
    logs, variances = numbers[..., 0], numbers[..., 1]
    return Sheet(
        species, genes, tuple(tuple(column) for column in known), tuple(line[2][1] for line in lines),
        candidates, salt[base], codes, logs, _filled(logs, variances),
    )  # fmt: skip


def _filled(logs: Array, variances: Array) -> Array:
    """A measurement without a finite interval counts as four times as uncertain as the case's median."""
    filled = variances.copy()
    for case in range(logs.shape[1]):
        finite = variances[np.isfinite(variances[:, case]), case]
        filled[~np.isfinite(filled[:, case]), case] = 4 * np.median(finite) if len(finite) else UNKNOWN**2
    return np.where(np.isfinite(logs), filled, np.nan)


# --- comparisons


def _gene_effects(sheet: Sheet, gene: int, names: tuple[str, ...], cases: Mapping[str, CaseFacts]) -> list[Effect]:
    rows, gains, errors = _over_boards(sheet, *_comparisons(sheet, gene))
    if not len(rows):
        return []
    codes = sheet.codes[rows, gene]
    counts = np.bincount(codes, minlength=len(sheet.values[gene]))
    found = []
    for code in np.nonzero(counts >= 2)[0]:
        mine = codes == code
        gain, error = gains[mine], errors[mine]
        ids = [sheet.evaluations[row] for row in rows[mine]]
        for family, pooled, mask in _ranges(gain, error, families(names, cases)):
            each = [(name, pool(gain[:, at], error[:, at])) for at, name in enumerate(names) if mask[at]]
            found.append(
                Effect(
                    sheet.species, sheet.genes[gene], sheet.values[gene][code], family, pooled.mean,
                    pooled.mean - pooled.half, pooled.mean + pooled.half, pooled.count, pooled.p, False,
                    tuple(CaseEffect(n, p.mean, p.mean - p.half, p.mean + p.half, p.count) for n, p in each if p.count),
                    _evidence(ids, *_over(gain, error, mask), pooled.mean),
                )
            )  # fmt: skip
    return [effect for effect in found if effect.pairs >= 2]


def _comparisons(sheet: Sheet, gene: int) -> tuple[Rows, Array, Array]:
    """Rows that have others in their stratum, and by case their gain over the mean of these with its variance.

    Strata are found by hashing: the sum of a random number for every value, without that of the gene in question.
    """
    rng = np.random.default_rng(1)
    key = sheet.base.copy()
    for column, values in enumerate(sheet.values):
        marks = rng.integers(1 << 63, size=len(values) + 1, dtype=np.uint64)
        if column != gene:
            key += marks[sheet.codes[:, column]]
    there = np.nonzero(sheet.codes[:, gene] >= 0)[0]
    _, stratum, counts = np.unique(key[there], return_inverse=True, return_counts=True)
    several = counts[stratum] > 1
    rows = there[several]
    _, stratum = np.unique(stratum[several], return_inverse=True)
    logs, variances = sheet.logs[rows], sheet.variances[rows]
    gains, errors = np.full(logs.shape, np.nan), np.full(logs.shape, np.nan)
    for case in range(logs.shape[1]):
        timed = np.isfinite(logs[:, case])
        number = np.bincount(stratum[timed], minlength=len(rows))
        total = np.bincount(stratum[timed], logs[timed, case], minlength=len(rows))
        noise = np.bincount(stratum[timed], variances[timed, case], minlength=len(rows))
        mine = np.nonzero(timed & (number[stratum] > 1))[0]
        at, own, own_noise = stratum[mine], logs[mine, case], variances[mine, case]
        others = number[at] - 1
        gains[mine, case] = own - (total[at] - own) / others
        errors[mine, case] = own_noise + (noise[at] - own_noise) / others**2
    return rows, gains, errors


def _over_boards(sheet: Sheet, rows: Rows, gains: Array, errors: Array) -> tuple[Rows, Array, Array]:
    """One row a candidate: by case the mean over the boards on which it was compared."""
    _, first, place = np.unique(sheet.candidates[rows], return_index=True, return_inverse=True)
    means, noises = np.full((len(first), gains.shape[1]), np.nan), np.full((len(first), gains.shape[1]), np.nan)
    for case in range(gains.shape[1]):
        there = np.isfinite(gains[:, case])
        count = np.bincount(place[there], minlength=len(first))
        some = count > 0
        total = np.bincount(place[there], gains[there, case], minlength=len(first))
        noise = np.bincount(place[there], errors[there, case], minlength=len(first))
        means[some, case], noises[some, case] = total[some] / count[some], noise[some] / count[some] ** 2
    return rows[first], means, noises


def _over(gain: Array, error: Array, mask: Mask) -> tuple[Array, Array]:
    """By comparison the mean over the cases in `mask` and its variance; NaN where it has none of them."""
    inside, noise = gain[:, mask], error[:, mask]
    count = np.isfinite(inside).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nansum(inside, axis=1) / count, np.nansum(noise, axis=1) / count**2


def _ranges(gain: Array, error: Array, splits: Sequence[Family]) -> list[tuple[str, Pooled, Mask]]:
    """The effect over all cases; or, where a range of cases surely differs from the rest, over the range, or both."""
    every = np.ones(gain.shape[1], bool)
    overall = pool(*_over(gain, error, every))
    best: tuple[float, Family] | None = None
    if overall.count >= LEAST_PAIRS:
        for split in splits:
            inside, outside = _over(gain, error, split.mask), _over(gain, error, ~split.mask)
            difference = pool(inside[0] - outside[0], inside[1] + outside[1])
            if difference.count >= LEAST_PAIRS and (best is None or difference.p < best[0]):
                best = difference.p, split
    if best is None or best[0] * len(splits) > SPLIT_P:
        return [("", overall, every)]
    split = best[1]
    sides = []
    for name, mask in ((split.name, split.mask), (split.rest, ~split.mask)):
        side = pool(*_over(gain, error, mask))
        corrected = min(1.0, side.p * len(splits))
        if corrected <= DISCOVERY_RATE and side.count >= LEAST_PAIRS:
            sides.append((name, replace(side, p=corrected), mask))
    if len(sides) == 2 and 1 / ALIKE < sides[0][1].mean / sides[1][1].mean < ALIKE:
        return [("", overall, every)]  # the same everywhere, only a little more so here than there
    return sides or [("", overall, every)]


def _evidence(ids: Sequence[str], gains: Array, errors: Array, effect: float) -> tuple[Evidence, ...]:
    """The clearest comparisons for and against, by the evaluation of the candidate that has the value."""
    clear = np.abs(gains) / np.sqrt(errors)
    order = [int(row) for row in np.argsort(-np.nan_to_num(clear)) if np.isfinite(gains[row]) and clear[row] > 1]
    for_it = [row for row in order if gains[row] * effect > 0][:EVIDENCE]
    against = [row for row in order if gains[row] * effect < 0][:EVIDENCE]
    return tuple(Evidence(ids[row], bool(gains[row] * effect > 0), float(gains[row])) for row in (*for_it, *against))

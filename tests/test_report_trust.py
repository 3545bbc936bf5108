"""Certificates, replays, hold-outs and what a ranking leaves out, as people read them."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from evo.archive.views import BoardCount
from evo.certificate import (
    Certificate,
    CertifiedCase,
    Device,
    Elsewhere,
    Genome,
    Measurement,
    Opponent,
    Outcome,
    Replay,
    ReplayedCase,
    Summary,
)
from evo.engine.result import CaseSummary, HoldoutRow, Result
from evo.records import Status
from evo.report.archive import others_line
from evo.report.certificate import certificate_report, portfolio_report, replay_report
from evo.report.summary import summary

ID = "a1" * 32
NUMBERS = Measurement(19.5, 21.0, 1.077, 1.07, 1.084, 0.99, 200, 15.0, "graph/graph", {}, ())
LOST = replace(NUMBERS, ratio=0.9, low=0.89, high=0.91)
CERTIFICATE = Certificate(
    "evo.certificate/1", "2026-01-01T00:00:00+00:00", "evo certify a1a1", "rmsnorm", "1", "o", "e", "sm_90",
    Device("H200", "sm_90", "sm_90a", 132, 1 << 37), "nvrtc", {}, "rotation", 5, 40,
    Genome(ID, "block", ".cu", "", "", {"THREADS": 256}), (), {},
    (
        CertifiedCase("n1", "tune", Status.OK, opponent=Opponent("quack", "0.2", ""), measurement=NUMBERS),
        CertifiedCase("n2", "tune", Status.OK, opponent=Opponent("quack", "0.2", ""), measurement=LOST),
        CertifiedCase("n3", "tune", Status.UNCOVERED, "N % 8 == 0 does not hold"),
        CertifiedCase("n4", "tune", Status.UNSTABLE_TIMING, "known only to +-40%"),
        CertifiedCase("n5", "tune", "not_measured", "not asked for"),
    ),
    Summary(5, 2, 1, 1, 1, 1, 0.98, 0.9, 1.077), None, "d" * 64,
)  # fmt: skip


def lines(part: Any, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(part, crop=False)
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_a_certificate_lists_wins_losses_and_what_is_not_covered() -> None:
    shown = lines(certificate_report(CERTIFICATE, "c.json"))
    assert shown[0] == "rmsnorm on sm_90 (H200), rotation"
    assert "n1 quack 19.50 us 1.077x [1.070, 1.084] 77%" in shown
    assert "n2 quack 19.50 us 0.90x [0.890, 0.910] 77%" in shown
    assert "n3 - - uncovered -" in shown
    assert "n4 - - unstable_timing -" in shown
    assert "n5 - - not_measured -" in shown
    assert "n4: known only to +-40%" in shown
    total = " ".join(shown)
    assert "over 2 of 5 cases, 1 loss, 1 failed, 1 uncovered, 1 not measured" in total
    assert "min 0.90x" in total
    assert "certificate: c.json" in shown
    assert "evo replay c.json" in shown


RECORDED = (
    Elsewhere("theirs 1.0", "n1", 39.0, "H200, some day"),
    Elsewhere("theirs 1.0", "n2", 19.5, "H200, some day"),
    Elsewhere("ours 2", "n2", 18.525, "H200, another day"),
)


def test_what_others_took_elsewhere_stands_apart_and_is_in_no_total() -> None:
    shown = lines(certificate_report(replace(CERTIFICATE, recorded=RECORDED), "c.json"))
    at = shown.index("others, as they were recorded elsewhere by the same protocol; not measured here")
    assert "n1 39.00 us theirs 1.0 19.50 us 2.000x" in shown[at:]
    assert "n2 18.52 us ours 2 19.50 us 0.95x" in shown[at:], "the best on record, a loss"
    assert "the best on record: min 0.95x geomean 1.378x max 2.000x over 2 cases" in shown[at:]
    assert "theirs 1.0: min 1.000x geomean 1.414x max 2.000x over 2 cases" in shown[at:]
    assert "ours 2: min 0.95x geomean 0.95x max 0.95x over 1 case" in shown[at:]
    assert "on record: H200, some day" in shown[at:]
    assert [line for line in shown[:at] if "geomean" in line] == [
        line for line in lines(certificate_report(CERTIFICATE, "c.json")) if "geomean" in line
    ]


def test_a_portfolio_shows_each_case_by_its_own_winner_and_who_failed() -> None:
    other = replace(CERTIFICATE, candidate=replace(CERTIFICATE.candidate, id="b2" * 32), recorded=RECORDED[1:])
    one = replace(CERTIFICATE, cases=CERTIFICATE.cases[:1], recorded=RECORDED[:1])
    two = replace(other, cases=CERTIFICATE.cases[1:])  # its n3 to n5: not covered, unsteady, not asked for
    shown = lines(portfolio_report({"a.json": one, "b.json": two}, {"third.cu": "not certified: it ended"}), 100)
    assert "n1 a1a1a1a1a1 quack 19.50 us 1.077x [1.070, 1.084] 77%" in shown
    assert "n2 b2b2b2b2b2 quack 19.50 us 0.90x [0.890, 0.910] 77%" in shown
    assert any(line.startswith("min 0.90x geomean 0.98x") and line.endswith("over 2 of 4 cases") for line in shown)
    assert "n4 b2b2b2b2b2 - - unstable_timing -" in shown
    assert "n4: known only to +-40%" in shown, "a case that was asked for is never left out"
    assert not any(line.startswith("n5") for line in shown)
    assert "the best on record: min 0.95x geomean 1.378x max 2.000x over 2 cases" in shown
    assert "certificate: b.json" in shown
    assert "third.cu: not certified: it ended" in shown


def test_a_replay_says_its_verdict_first() -> None:
    case = ReplayedCase(
        "n1", Outcome.FAILS, "surely slower", "quack", 19.5, (1.077, 1.07, 1.084), 20.5, (1.02, 1.01, 1.03)
    )
    shown = lines(replay_report(Replay(Outcome.FAILS, "d", "rmsnorm", ID, "rotation", "H200", "H200", (case,))), 100)
    assert shown[0].startswith("does not hold rmsnorm")
    assert "n1 1.077x [1.070, 1.084] 1.020x [1.010, 1.030] does not hold: surely slower" in shown
    away = Replay(Outcome.INCOMPARABLE, "d", "rmsnorm", ID, "rotation", "H200", "", (), ("another device: H100 here",))
    shown = lines(replay_report(away))
    assert "another device: H100 here" in shown
    assert "certified on H200; nothing was measured" in shown


def test_a_run_shows_what_the_search_had_said_and_hold_outs_apart() -> None:
    cases = (
        CaseSummary("n1", 10.0, 8.0, 1.25, 1.24, 1.26, 0.0, ID, "s", {}, 48, True, 1.31, 3),
        CaseSummary("n2", 10.0, 8.0, 1.25, 1.24, 1.26, 0.0, ID, "s", {}, 48, True, 1.2502, 3),
        CaseSummary("n3", 10.0, 8.0, 1.25, 1.24, 1.26, 0.0, ID, "s", {}, 40, False, 1.25),
    )
    holdout = (
        HoldoutRow("h1", ID, "ok", "", "numpy", 10.0, 9.0, 1.11, 1.10, 1.12, 3),
        HoldoutRow("h2", ID, "wrong_result", "element 3"),
    )
    result = Result("r", "op", "cpu", "cpu", "numpy", cases, {}, 9, 0, 60.0, "w", "evo.db", (), holdout)
    shown = lines(summary(result))
    assert "search said: n1 ~1.310x" in shown
    at = shown.index("hold-out cases, which the search never saw")
    assert "h1 10.00 us 9.000 us 1.110x [1.100, 1.120] A" in shown[at:]
    assert "h2 - - wrong_result A" in shown[at:]
    assert "over 3 of 3 cases" in " ".join(shown), "hold-outs are in no mean"


def test_a_ranking_says_what_it_leaves_out() -> None:
    boards = [BoardCount("op", "cpu", name, "y", "warm", count) for name, count in (("e2", 3), ("e1", 5), ("e2", 4))]
    assert others_line(boards).plain == (
        "not shown, results of other evaluators: e2 (7), e1 (5); see them with --evaluator HASH"
    )
    assert others_line([]).plain == ""

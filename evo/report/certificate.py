"""Certificates and replays for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from evo.certificate import Certificate, CertifiedCase, Outcome, Replay, ReplayedCase
from evo.report import notation
from evo.report.layout import LIGHT, assemble, command_line, speed_up, table, text, unbroken
from evo.report.notation import count
from evo.report.recorded import recorded_parts

STYLES = {Outcome.HOLDS: "green", Outcome.FAILS: "red", Outcome.INCOMPARABLE: "yellow"}


def certificate_report(certificate: Certificate, path: str) -> Group:
    """Every listed case, won, lost, failed or uncovered; the totals; where the file lies."""
    mine = certificate.candidate
    title = f"{certificate.operator} on {certificate.target} ({certificate.device.name}), {certificate.protocol}"
    columns = ("case", "opponent", "time", "speed-up", "light")
    rows = table(*columns, numbers=columns[2:], fold=columns[:2])
    for case in certificate.cases:
        rows.add_row(*_row(case))
    parts: list[RenderableType] = [
        text(title, "bold"),
        text(f"candidate {notation.short(mine.id)}, {mine.species}: {notation.genes(mine.values)}"),
        "", rows, "", _total(certificate),
    ]  # fmt: skip
    processes, pairs = count(certificate.sessions, "process", "processes"), count(certificate.pairs, "pair")
    reasons = [case for case in certificate.cases if case.why and not case.measurement]
    parts += [text(f"{case.case}: {case.why}", "dim") for case in reasons if case.status != "not_measured"]
    if any(case.measurement and case.measurement.light_us for case in certificate.cases):
        parts.append(text(LIGHT, "dim"))
    parts += recorded_parts([certificate])
    parts += [
        text(f"{processes} of {pairs}; digest {certificate.digest[:16]}", "dim"),
        unbroken(f"certificate: {path}"), text("next:", "dim"), command_line(f"evo replay {path}"),
    ]  # fmt: skip
    return Group(*parts)


def portfolio_report(written: Mapping[str, Certificate], failed: Mapping[str, str]) -> Group:
    """All winners together, each case by its own. By file: certificates, and why there is none."""
    columns = ("case", "by", "opponent", "time", "speed-up", "light")
    rows = table(*columns, numbers=columns[3:], fold=columns[:3])
    certificates = list(written.values())
    asked = [(each, case) for each in certificates for case in each.cases if case.status != "not_measured"]
    for each, case in asked:
        rows.add_row(text(_name(case)), text(notation.short(each.candidate.id)), *_row(case)[1:])
    ratios = [case.measurement.ratio for _, case in asked if case.measurement and case.group == "tune"]
    parts: list[RenderableType] = [text(f"the portfolio, by {count(len(certificates), 'certificate')}", "bold"), rows]
    tune = sum(case.group == "tune" for _, case in asked)
    parts.append(text(f"{notation.spread(ratios)}   over {len(ratios)} of {count(tune, 'case')}", "bold"))
    parts += [text(f"{case.case}: {case.why}", "dim") for _, case in asked if case.why and not case.measurement]
    parts += recorded_parts(certificates)
    parts += [unbroken(f"certificate: {path}") for path in written]
    parts += [text(f"{file}: {why}", "red") for file, why in failed.items()]
    return Group(*parts)


def replay_report(replay: Replay) -> Group:
    """The verdict first, then what keeps it from being one, then old and new numbers case by case."""
    head = assemble(
        (str(replay.outcome), f"bold {STYLES[replay.outcome]}"),
        f"   {replay.operator}, candidate {notation.short(replay.candidate)}, {replay.protocol}",
    )
    parts: list[RenderableType] = [head, *(text(reason, "yellow") for reason in replay.reasons)]
    where = f"certified on {replay.was_on}"
    parts += [
        text(f"{where}, replayed on {replay.now_on}" if replay.now_on else f"{where}; nothing was measured", "dim")
    ]
    columns = ("case", "certified", "now", "verdict")
    rows = table(*columns, numbers=columns[1:3], fold=(columns[0], columns[3]))
    for case in replay.cases:
        outcome = f"{case.outcome}{f': {case.why}' if case.why else ''}"
        rows.add_row(text(case.case), speed_up(*case.was), _now(case), text(outcome, STYLES[case.outcome]))
    codes = [case.same_code for case in replay.cases if case.same_code is not None]
    if codes and all(codes):
        parts.append(text("machine code: the same", "dim"))
    return Group(*parts, "", rows)


def _row(case: CertifiedCase) -> tuple[Text, Text, str, Text, str]:
    measured = case.measurement
    opponent, name = case.opponent.name if case.opponent else "-", _name(case)
    if measured is None:
        return text(name), text(opponent), "-", text(str(case.status), "dim"), "-"
    light = notation.share(measured.light_us / measured.time_us)
    ratio = speed_up(measured.ratio, measured.low, measured.high)
    return text(name), text(opponent), notation.time(measured.time_us), ratio, light


def _name(case: CertifiedCase) -> str:
    return f"{case.case} (hold-out)" if case.group == "holdout" else case.case


def _now(case: ReplayedCase) -> Text:
    return speed_up(*case.now) if case.time_us else text("-")


def _total(certificate: Certificate) -> Text:
    done = certificate.summary
    ratios = [case.measurement.ratio for case in certificate.cases if case.measurement and case.group == "tune"]
    rest = {"failed": done.failed, "uncovered": done.uncovered, "not measured": done.not_measured}
    more = f", {count(done.losses, 'loss', 'losses')}" if done.losses else ""
    more += "".join(f", {number} {what}" for what, number in rest.items() if number)
    return text(f"{notation.spread(ratios)}   over {done.covered} of {count(done.cases, 'case')}{more}", "bold")

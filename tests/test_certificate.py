"""Certificates and replays on the real CPU target, with an operator that a third party brings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certified import PAIRS, RIGHT, SESSIONS, WRONG, installed, order, steadily
from typer.testing import CliRunner

from evo import app, codec
from evo.app.trust.certificate_file import contradiction, read_certificate, seal, source_hash, write_certificate
from evo.app.trust.certificates import opponents
from evo.app.trust.replay import verdict
from evo.certificate import SCHEMA, Certificate, Outcome, content_digest
from evo.cli.root import app as cli
from evo.errors import UnknownNameError, UsageError
from evo.fitness.statistics import sessions_interval
from evo.genome import Genome, make_candidate
from evo.ids import new_id
from evo.records import Diagnosis, Evaluation, Purpose, Stage, Status, Timing

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"),
]


@pytest.fixture(scope="module", autouse=True)
def _operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(tmp_path_factory.mktemp("held")):
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    file = tmp_path_factory.mktemp("genome") / "mine.cpp"
    file.write_text(RIGHT)
    return steadily(order(file, genes={"GROUP": "4"}, cases=("n4096",)))


def saved(certificate: Certificate, folder: Path) -> Path:
    place = folder / "certificate.json"
    write_certificate(seal(certificate), place)
    return place


def test_it_holds_all_that_the_numbers_depend_on(made: Certificate, tmp_path: Path) -> None:
    assert (made.schema, made.operator, made.target, made.protocol) == (SCHEMA, "held", "cpu", "warm")
    assert made.candidate.values == {"ITEMS": 16384, "GROUP": 4}
    assert "y[item] = a * x[item]" in made.candidate.source
    assert made.candidate.source_hash == source_hash(made.candidate.source)
    assert all((made.operator_hash, made.evaluator_hash, made.toolchain, made.device.name, made.versions["python"]))
    assert made.command.startswith("evo certify ")
    assert f"--gene GROUP=4 --case n4096 --sessions {SESSIONS} --pairs {PAIRS}" in made.command
    cases = {case.case: case for case in made.cases}
    assert list(cases) == ["n4096", "n16384"], "every tune case, and no hold-out"
    assert (cases["n16384"].status, cases["n16384"].why) == ("not_measured", "not asked for")
    timed = cases["n4096"]
    assert timed.opponent
    assert timed.measurement
    assert timed.plan
    assert timed.deviation
    assert timed.opponent.name == "seed:plain"
    assert timed.opponent.version.startswith("source ")
    assert [len(session) for session in timed.measurement.samples] == [PAIRS] * SESSIONS
    assert timed.measurement.pairs == PAIRS * SESSIONS
    interval = sessions_interval(timed.measurement.samples)
    assert (interval.ratio, interval.low, interval.high) == pytest.approx(
        (timed.measurement.ratio, timed.measurement.low, timed.measurement.high)
    )
    assert timed.plan.launches[0].kernel == "scale_forward"
    assert timed.code_hash in {code.code_hash for code in made.code}
    assert 0 <= timed.deviation.rms < 1e-7
    assert 0 < made.checks["n1001"].rms < 1e-7, "rounding, seen by the float64 reference"
    assert (made.summary.cases, made.summary.covered, made.summary.not_measured) == (2, 1, 1)
    assert made.summary.geomean == pytest.approx(timed.measurement.ratio)


def test_the_file_is_canonical_small_and_reads_back(made: Certificate, tmp_path: Path) -> None:
    place = saved(made, tmp_path)
    text = place.read_text()
    assert json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n" == text
    assert read_certificate(place) == made
    assert len(text) < 10_000
    assert content_digest(json.loads(text)) == made.digest


def test_a_replay_here_holds(made: Certificate, tmp_path: Path) -> None:
    replayed = app.replay(saved(made, tmp_path))
    (case,) = replayed.cases
    if case.outcome is Outcome.INCOMPARABLE:  # a neighbour has the machine
        assert "unstable_timing" in case.why or "known only" in case.why
        assert replayed.outcome is Outcome.INCOMPARABLE
        return
    assert case.same_code is True
    assert case.time_us > 0
    assert case.now[1] <= case.now[0] <= case.now[2]
    assert replayed.reasons == ()
    assert case.outcome is (Outcome.HOLDS if case.now[2] >= case.was[1] else Outcome.FAILS)
    assert replayed.outcome is case.outcome


def test_a_wrong_kernel_does_not_hold(made: Certificate, tmp_path: Path) -> None:
    """Somebody changed the source and made a new digest."""
    wrong = Genome.parse(WRONG, ".cpp")
    known = make_candidate("held", "cpu", wrong, made.candidate.values)
    genome = replace(made.candidate, id=known.id, source=known.source, source_hash=source_hash(known.source))
    replayed = app.replay(saved(replace(made, candidate=genome), tmp_path))
    assert replayed.outcome is Outcome.FAILS
    assert replayed.cases[0].why.startswith("wrong_result: ")


def test_elsewhere_it_cannot_be_compared_and_is_measured_only_by_force(made: Certificate, tmp_path: Path) -> None:
    other = replace(made, device=replace(made.device, name="another chip"))
    place = saved(other, tmp_path)
    replayed = app.replay(place)
    assert replayed.outcome is Outcome.INCOMPARABLE
    assert replayed.now_on == ""
    assert [reason for reason in replayed.reasons if "another device" in reason and "another chip there" in reason]
    assert replayed.cases[0].time_us == 0
    done = CliRunner().invoke(cli, ["replay", str(place), "--quiet"])
    assert done.exit_code == 3
    assert "cannot be compared" in done.stdout
    forced = app.replay(place, force=True)
    assert forced.outcome is Outcome.INCOMPARABLE
    assert {case.outcome for case in forced.cases} == {Outcome.INCOMPARABLE}
    assert forced.now_on != ""


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [("evaluator_hash", "0" * 12, "evaluator"), ("operator_hash", "0" * 12, "operator")],
)
def test_another_yardstick_cannot_be_compared(
    made: Certificate, tmp_path: Path, field: str, value: str, word: str
) -> None:
    changed: dict[str, Any] = {field: value}
    replayed = app.replay(saved(replace(made, **changed), tmp_path))
    assert replayed.outcome is Outcome.INCOMPARABLE
    assert [reason for reason in replayed.reasons if reason.startswith(f"another {word}: ")]


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("nowhere", "1", "baseline nowhere is missing"),
        ("seed:plain", "source 0", "another version of baseline seed:plain"),
    ],
)
def test_another_baseline_cannot_be_compared(
    made: Certificate, tmp_path: Path, name: str, version: str, words: str
) -> None:
    first, *rest = made.cases
    assert first.opponent
    cases = (replace(first, opponent=replace(first.opponent, name=name, version=version)), *rest)
    replayed = app.replay(saved(replace(made, cases=cases), tmp_path))
    assert replayed.outcome is Outcome.INCOMPARABLE
    assert words in replayed.cases[0].why


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        ((1.30, 1.28, 1.32), Outcome.HOLDS),  # overlaps
        ((1.28, 1.26, 1.295), Outcome.HOLDS),
        ((1.50, 1.48, 1.52), Outcome.HOLDS),  # better
        ((1.20, 1.19, 1.21), Outcome.FAILS),  # surely slower
        ((1.30, 0.80, 2.10), Outcome.INCOMPARABLE),  # says nothing
        ((1.30, 0.0, float("inf")), Outcome.INCOMPARABLE),
    ],
)
def test_what_holds(made: Certificate, now: tuple[float, float, float], outcome: Outcome) -> None:
    was = made.cases[0]
    assert was.measurement
    case = replace(was, measurement=replace(was.measurement, ratio=1.30, low=1.29, high=1.31))
    timing = Timing("warm", "seed:plain", 1.0, 1.0, *now, 0.99, 12, "fixed")
    assert verdict(case, timing)[0] is outcome


# --- files that are no certificates


def altered(data: dict[str, Any]) -> dict[str, Any]:
    data["cases"][0]["measurement"]["ratio"] *= 2
    return data


def resealed(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"digest": content_digest(data)}


def without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return resealed({key: value for key, value in data.items() if key != name})


BAD: dict[str, tuple[Any, str]] = {
    "no certificate": (lambda data: {"a": 1}, "is no certificate"),
    "a list": (lambda data: [1], "is no certificate"),
    "another schema": (lambda data: data | {"schema": "evo.certificate/9"}, "this evo reads 'evo.certificate/1'"),
    "altered": (altered, "was altered"),
    "altered and resealed": (lambda data: resealed(altered(data)), "do not follow from its samples"),
    "a missing field": (lambda data: without(data, "device"), "incomplete: device: "),
    "no digest": (lambda data: {k: v for k, v in data.items() if k != "digest"}, "was altered"),
    "another id": (
        lambda data: resealed(data | {"candidate": data["candidate"] | {"id": "0" * 64}}),
        "not those of the candidate's id",
    ),
    "another source": (
        lambda data: resealed(data | {"candidate": data["candidate"] | {"source": "int main;"}}),
        "the source is not that of its hash",
    ),
    "a better summary": (
        lambda data: resealed(data | {"summary": data["summary"] | {"losses": 0, "geomean": 9.0}}),
        "the summary does not follow",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_clear_errors(made: Certificate, tmp_path: Path, name: str) -> None:
    change, words = BAD[name]
    place = tmp_path / "bad.json"
    place.write_text(json.dumps(change(codec.plain(made))))
    with pytest.raises(UsageError, match="bad.json") as error:
        app.replay(place)
    assert words in str(error.value)


def test_files_that_are_not_even_json(tmp_path: Path) -> None:
    place = tmp_path / "x.json"
    with pytest.raises(UsageError, match="cannot read"):
        app.replay(place)
    place.write_bytes(b"\xff\xfe{")
    with pytest.raises(UsageError, match="is not JSON"):
        app.replay(place)
    done = CliRunner().invoke(cli, ["replay", str(place)])
    assert (done.exit_code, "Traceback" in done.stderr) == (2, False)


def test_an_operator_that_is_not_installed(made: Certificate, tmp_path: Path) -> None:
    genome = Genome.parse(made.candidate.source, ".cpp")
    known = make_candidate("gone", "cpu", genome, made.candidate.values)
    certificate = replace(made, operator="gone", candidate=replace(made.candidate, id=known.id))
    with pytest.raises(UnknownNameError, match="unknown operator 'gone'") as error:
        app.replay(saved(certificate, tmp_path))
    assert "install the plugin" in str(error.value)


def test_a_certificate_does_not_contradict_itself(made: Certificate) -> None:
    assert contradiction(made) == ""


def test_only_installed_opponents_are_in_a_certificate(made: Certificate) -> None:
    """Numbers that others recorded have no way in: an opponent is one that calibration timed here."""
    from evo.app.stand import stand
    from evo.plugins.manager import Plugins

    with stand(Plugins.load(), "held", "cpu", ("n4096",)) as here:
        known = opponents(here, here.calibrate(lambda message: None))
    assert [case.opponent for case in made.cases if case.opponent] == [known["seed:plain"]["n4096"]]


@pytest.mark.parametrize(
    ("status", "where", "outcome", "why"),
    [
        (Status.WRONG_RESULT, "n4096", Outcome.FAILS, "wrong_result: so"),
        (Status.WRONG_RESULT, "n1001", Outcome.FAILS, "wrong_result: so"),  # a small check speaks for all cases
        (Status.BUILD_ERROR, "", Outcome.FAILS, "build_error: so"),
        (Status.WRONG_RESULT, "n16384", Outcome.INCOMPARABLE, "not reached: n16384 ended in wrong_result"),
        (Status.UNSTABLE_TIMING, "n4096", Outcome.INCOMPARABLE, "unstable_timing: so"),
    ],
)
def test_whose_fault_a_missing_time_is(
    made: Certificate, status: Status, where: str, outcome: Outcome, why: str
) -> None:
    from evo.app.trust.replay import _failure

    failed = Evaluation(
        new_id(), "", made.candidate.id, Purpose.CERTIFY, "y", "cpu:0", status, Diagnosis(Stage.CHECK, "so", where)
    )
    row = _failure(made.cases[0], None, failed, {"n16384"})
    assert (row.outcome, row.why) == (outcome, why)

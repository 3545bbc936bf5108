"""The verbs `certify` and `replay`: what they pass on, write, print and exit with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_report_trust import CERTIFICATE, ID
from typer.testing import CliRunner

from evo import app
from evo.certificate import Outcome, Replay
from evo.cli.root import app as cli


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    calls: list[Any] = []

    def certify(order: Any, say: Any) -> Any:
        calls.append(order)
        say("5 sessions")
        return CERTIFICATE

    monkeypatch.setattr(app, "certify", certify)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVO_ARCHIVE", raising=False)
    return calls


def evo(*words: str) -> Any:
    return CliRunner().invoke(cli, list(words))


def test_certify_passes_its_options_on_and_writes_the_file(asked: list[Any], tmp_path: Path) -> None:
    done = evo(
        "certify", "a1a1", "--case", "n*", "--case", "m8", "--sessions", "7", "--pairs", "20", "--protocol", "warm"
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert asked == [app.Order("a1a1", "evo.db", "auto", {}, ("n*", "m8"), 7, 20, "warm")]
    assert "5 sessions" in done.stderr
    assert "certificate: certificate-a1a1a1a1a1.json" in done.stdout
    assert json.loads((tmp_path / "certificate-a1a1a1a1a1.json").read_text())["candidate"]["id"] == ID


def test_certify_prints_json_alone(asked: list[Any], tmp_path: Path) -> None:
    done = evo("certify", "k.cu", "-g", "THREADS=64", "--out", "mine.json", "--json", "--quiet")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["schema"] == "evo.certificate/1"
    assert asked[0].genes == {"THREADS": "64"}
    assert (tmp_path / "mine.json").exists()


def test_a_certificate_that_could_not_be_written_is_refused_before_it_is_made(asked: list[Any]) -> None:
    done = evo("certify", "a1a1", "--out", "nowhere/c.json")
    assert done.exit_code == 2
    assert "there is no folder 'nowhere'" in done.stderr
    assert asked == []
    assert evo("certify", "a1a1", "--sessions", "2").exit_code == 2


def test_a_folder_gets_the_certificate_under_its_own_name(asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    assert evo("certify", "a1a1", "--out", "here").exit_code == 0
    assert json.loads((tmp_path / "here" / "certificate-a1a1a1a1a1.json").read_text())["candidate"]["id"] == ID


@pytest.mark.parametrize(
    "words", [("genes", "k.cu", "--out"), ("archive", "minimise", "a1", "--out"), ("run", "-o", "rmsnorm", "--picture")]
)
def test_a_file_that_could_not_be_written_is_refused_before_the_work(
    asked: list[Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "folder.svg").mkdir()
    for name, says in (("nowhere/x.svg", "there is no folder 'nowhere'"), ("folder.svg", "'folder.svg' is a folder")):
        done = evo(*words, name)
        assert done.exit_code == 2
        assert says in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_disk_that_is_full_costs_no_measurement(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = evo("certify", "a1a1", "--out", "/dev/full")
    assert done.exit_code == 0
    (kept,) = tmp_path.glob("evo-*/full")
    assert f"cannot write /dev/full: No space left on device; it is kept as {kept}" in done.stderr
    assert json.loads(kept.read_text())["candidate"]["id"] == ID
    assert kept.parent.stat().st_mode & 0o077 == 0
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    done = evo("certify", "a1a1", "--out", "/dev/full")
    assert (done.exit_code, "cannot write /dev/full" in done.stderr) == (1, True)
    assert json.loads(done.stdout)["candidate"]["id"] == ID


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.HOLDS, 0), (Outcome.FAILS, 1), (Outcome.INCOMPARABLE, 3)])
def test_the_exit_status_of_a_replay_is_its_verdict(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome, code: int
) -> None:
    calls: list[Any] = []
    result = Replay(outcome, "d", "rmsnorm", ID, "rotation", "H200", "H200", ())

    def replay(file: Path, **options: Any) -> Replay:
        calls.append((file, {name: value for name, value in options.items() if name != "say"}))
        return replace(result)

    monkeypatch.setattr(app, "replay", replay)
    done = evo("replay", "c.json", "--target", "sm_90", "--force")
    assert (done.exit_code, str(outcome) in done.stdout) == (code, True)
    done = evo("replay", "c.json", "--json")
    assert (done.exit_code, json.loads(done.stdout)["outcome"]) == (code, str(outcome))
    assert calls == [
        (Path("c.json"), {"target": "sm_90", "force": True}),
        (Path("c.json"), {"target": "", "force": False}),
    ]

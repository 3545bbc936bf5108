"""`evo lessons` and `evo archive effects` at the command line, on a real archive of an H200."""

from __future__ import annotations

import csv
import io
import json
import lzma
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from evo.cli.root import app

ARCHIVE = Path(__file__).resolve().parent.parent / "docs/results/2026-11-30-rmsnorm-forward-h200/evo.db.xz"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the archive, which has the first schema, after learning."""
    path = tmp_path_factory.mktemp("lessons") / "evo.db"
    path.write_bytes(lzma.decompress(ARCHIVE.read_bytes()))
    assert evo(path, "lessons", "learn").exit_code == 0
    return path


def evo(archive: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--archive", str(archive)])


def test_effects_as_json_csv_and_table(learned: Path) -> None:
    rows = json.loads(evo(learned, "archive", "effects", "-o", "rmsnorm", "--json").stdout)
    significant = [row for row in rows if row["significant"]]
    assert {(row["species"], row["gene"], row["value"]) for row in significant} >= {("cluster-per-row", "AHEAD", 1)}
    assert all(row["pairs"] >= 5 and row["chance"] <= 0.05 for row in significant)
    assert all(row["low"] <= row["percent"] <= row["high"] for row in rows)
    assert not any("fp16" in case["case"] for row in rows for case in row["cases"]), "hold-outs are in that archive"
    text = evo(learned, "archive", "effects", "-o", "rmsnorm", "--gene", "AHEAD", "--csv").stdout
    assert [row["value"] for row in csv.DictReader(io.StringIO(text))] == ["1", "0"]
    assert "only N >= 65536" in evo(learned, "archive", "effects", "-o", "rmsnorm").stdout


def test_what_cannot_be_asked(learned: Path) -> None:
    for words, said in (
        (("-o", "nope"), "unknown operator"),
        (("-o", "rmsnorm", "--gene", "NOPE"), "NOPE"),
        (("-o", "rmsnorm", "--target", "cpu"), "sm_90"),
        (("-o", "rmsnorm", "--case", "fp16-32768x4096"), "hold-out"),
    ):
        failed = evo(learned, "archive", "effects", *words)
        assert failed.exit_code == 2, words
        assert said in failed.output


def test_lessons_are_listed_shown_and_each_evidence_opens(learned: Path) -> None:
    found = json.loads(evo(learned, "lessons", "--operator", "rmsnorm", "--json").stdout)
    assert len(found) >= 5
    assert {lesson["origin"] for lesson in found} == {"measured"}
    item = json.loads(evo(learned, "lessons", "show", found[0]["id"], "--json").stdout)
    assert item["lesson"] == found[0]
    opened = json.loads(evo(learned, "archive", "show", item["evidence"][0]["evaluation"], "--json").stdout)
    assert opened["kind"] == "evaluation"
    assert "evidence: " in evo(learned, "lessons", "show", found[0]["id"]).stdout
    assert json.loads(evo(learned, "lessons", "--status", "retired", "--json").stdout) == []


def test_a_person_adds_and_retires(learned: Path) -> None:
    words = (
        "lessons",
        "add",
        "clusters need room",
        "-o",
        "rmsnorm",
        "-g",
        "FILL=88",
        "--direction",
        "faster",
        "--json",
    )
    added = json.loads(evo(learned, *words).stdout)
    assert (added["origin"], added["kind"], added["genes"], added["direction"]) == (
        "person",
        "hypothesis",
        {"FILL": 88},
        1,
    )
    gone = json.loads(evo(learned, "lessons", "retire", added["id"], "--reason", "FILL says enough", "--json").stdout)
    assert (gone["standing"], gone["reason"]) == ("retired", "FILL says enough")
    assert evo(learned, "lessons", "add", "  ").exit_code == 2
    assert evo(learned, "lessons", "show", "zzz").exit_code == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--target", "sm_99"), "sm_99"),
        (("--family", "garbage ) ("), "names no cases"),
        (("--direction", "faster"), "0 are given"),
        (("--direction", "faster", "-g", "FILL=88", "-g", "CTAS=1"), "2 are given"),
    ],
)
def test_a_lesson_that_could_never_be_tested_is_refused(learned: Path, words: tuple[str, ...], says: str) -> None:
    done = evo(learned, "lessons", "add", "a claim", "-o", "rmsnorm", *words)
    assert done.exit_code == 2
    assert says in done.stderr


def test_the_front_has_nobody_that_another_beats(learned: Path) -> None:
    words = ("archive", "front", "-o", "rmsnorm", "-t", "sm_90", "--case", "bf16-32768x4096", "--json")
    rows = json.loads(evo(learned, *words).stdout)
    assert rows
    assert all(row["cases"] == 1 for row in rows)
    speeds, registers = [row["ratio"] for row in rows], [row["registers"] for row in rows]
    assert speeds == sorted(speeds, reverse=True)
    assert registers == sorted(registers, reverse=True), "a slower one is there for its registers"
    shown = evo(learned, *words[:-1]).stdout
    assert ("~ " in shown) is any(row["purpose"] == "search" for row in rows)

"""Questions in the user's own words: what they find, what they cannot do, and that their documentation is true."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from archive_records import RUN, add, candidate, evaluation, proposal, timed
from typer.testing import CliRunner

from evo.archive import Archive, lineage, top
from evo.archive.asking import NUMBERS, VIEWS, ask, ask_sql
from evo.archive.comparing import diff
from evo.archive.failing import failures
from evo.archive.tables import Base
from evo.cli.root import app
from evo.errors import LanguageError, UnknownNameError, UsageError
from evo.records import CaseResult, Diagnosis, Evaluation, Purpose, Stage, Status
from evo.report.layout import FLATTERS

DOC = (Path(__file__).resolve().parent.parent / "docs" / "archive.md").read_text("utf-8")


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive.open(str(tmp_path / "evo.db")) as opened:
        opened.start_run(RUN)
        yield opened


def found(archive: Archive, condition: str) -> list[str]:
    """The LOAD gene of the candidates of the evaluations found."""
    return sorted(json.loads(genes)["LOAD"] for (genes,) in ask(archive, condition, columns=("genes",)).rows)


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("", ["it's", "slow", "wrong"]),
        ("score > 1", ["it's"]),
        ("0.4 < score <= 0.5", ["slow"]),
        ("2 <= score", ["it's"]),
        ("score is None", ["wrong"]),
        ("score != None and not score < 1", ["it's"]),
        ('status == "wrong_result" or score < 1', ["slow", "wrong"]),
        ('gene.LOAD == "it\'s"', ["it's"]),
        ("gene.LOAD in ('slow', 'wrong') and gene.TILE in [7, 8]", ["slow", "wrong"]),
        ("gene.TILE not in (8, 9)", []),
        ("gene.TILE > 7.5 and gene.LOAD is not None", ["it's", "slow", "wrong"]),
        ("gene.LOAD > 3", []),
        ('gene.TILE == "8"', []),
        ("gene.ABSENT == None", ["it's", "slow", "wrong"]),
        ('"too far" in diagnosis', ["wrong"]),
        ('"%" in diagnosis', []),
        ('species == "x\' OR 1=1; DROP TABLE run; --"', []),
        ('status == "ok" and species == \'plain"\'', []),
        ("candidate == evaluation", []),
        ("score > -1 and covered >= 1", ["it's", "slow"]),
    ],
)
def test_conditions(archive: Archive, condition: str, names: list[str]) -> None:
    add(archive, "it's", timed("a", 2.0))
    add(archive, "slow", timed("a", 0.5))
    fail(archive, "wrong", Status.WRONG_RESULT, "element 7 is 0.25 too far off")
    assert found(archive, condition) == names
    assert len(archive.runs()) == 1


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("score = 1", "syntax(.|\n)*a comparison is =="),
        ("nope > 1", "no column 'nope'(.|\n)*\n *there are: evaluation"),
        ("ratio > 1", "no column 'ratio'(.|\n)*--of case has it; here there are: evaluation"),
        ('score > "fast"', "a number with a text"),
        ("status == 3", "a text with a number"),
        ("score", "no condition"),
        ("1 < 2", "needs a column"),
        ("True", "no condition"),
        ("score == True", "neither a column nor a constant"),
        ("score + 1 > 2", "neither a column nor a constant"),
        ("__import__('os').system('true') == 0", "neither a column nor a constant"),
        ("status.lower == 'ok'", "neither a column nor a constant"),
        ("score > None", "None has no order"),
        ("score is 1", "`is` compares with None only"),
        ("score in (1, 'a')", "numbers and texts"),
        ("score in ()", "wants a column and a list"),
        ("score > 99999999999999999999", "beyond 64 bits"),
        ("status == 'ok", "syntax"),
        ("(" * 300 + "score > 1" + ")" * 300, "syntax|nested"),
        (" or ".join(["score > 1"] * 200), "more than 300 parts|characters"),
        ("status == 'ok'; DROP TABLE run", "syntax"),
        ("lambda: 1", "no condition"),
        ("\x00", "syntax|nested"),
    ],
)
def test_what_is_outside_the_language_is_named(archive: Archive, condition: str, message: str) -> None:
    with pytest.raises(LanguageError, match=message):
        ask(archive, condition)


def test_columns_order_and_limit(archive: Archive) -> None:
    for name, ratio in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        add(archive, name, timed("n8", ratio))
    fail(archive, "d", Status.CRASH, "trap")
    rows = ask(archive, of="evaluation", columns=("score",), sort="-score", limit=3)
    assert [round(score) for (score,) in rows.rows] == [3, 2, 1]
    assert rows.more
    assert ask(archive, columns=("score",), sort="score", limit=4).rows[-1] == (None,)
    assert [len(ask(archive, of=view).columns) for view in VIEWS] == [len(columns) for columns in VIEWS.values()]
    for wrong in (
        {"of": "nothing"},
        {"columns": ("nothing",)},
        {"sort": "-nothing"},
        {"sort": "score; DROP TABLE run"},
    ):
        with pytest.raises(UnknownNameError):
            ask(archive, **wrong)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM run",
        "INSERT INTO source VALUES ('a', x'00')",
        "UPDATE run SET state = 'done'",
        "DROP TABLE run",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "ATTACH 'OTHER' AS other",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA user_version = 99",
        "VACUUM INTO 'OTHER'",
        "SELECT 1; DELETE FROM run",
        "BEGIN EXCLUSIVE",
        "REINDEX",
        "ANALYZE",
        "SELECT load_extension('x')",
        "WITH x AS (SELECT 1) INSERT INTO source SELECT 'a', x'' FROM x",
        "SELECT writefile('OTHER', 'x')",
        "SELECT randomblob(2000000000)",
        "",
        "nonsense",
    ],
)
def test_sql_can_only_read(archive: Archive, tmp_path: Path, statement: str) -> None:
    add(archive, "a", timed("a", 2.0))
    before = ask_sql(archive, "SELECT * FROM run")
    with pytest.raises(UsageError):
        ask_sql(archive, statement.replace("OTHER", str(tmp_path / "other")))
    assert not (tmp_path / "other").exists()
    assert ask_sql(archive, "SELECT * FROM run") == before


def test_sql_that_never_ends_is_stopped(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evo.archive.asking.LIMIT_S", 0.2)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
    with pytest.raises(UsageError, match="took more than"):
        ask_sql(archive, f"{endless} max(i) FROM n")
    assert ask_sql(archive, f"{endless} i FROM n", limit=3).rows == ((1,), (2,), (3,))


def test_sql_gives_blobs_as_digits_and_every_column_a_name(archive: Archive) -> None:
    rows = ask_sql(archive, "SELECT x'00ff' AS a, 1 AS a, 'it''s 100 %' AS b")
    assert len(set(rows.columns)) == 3
    assert rows.rows == (("00ff", 1, "it's 100 %"),)


def fail(archive: Archive, name: str, status: Status, message: str) -> Evaluation:
    made = proposal(name)
    archive.propose(made)
    diagnosis = Diagnosis(Stage.CHECK, message, "a")
    filed = Evaluation(
        f"e-{name}", "run-1", candidate(name).id, Purpose.SEARCH, "numpy", "cpu:0", status, diagnosis,
        cases=(CaseResult("a", status, diagnosis=diagnosis),),
    )  # fmt: skip
    archive.file(filed, made.id)
    return filed


def test_failures_are_grouped_by_what_went_wrong(archive: Archive) -> None:
    for number in range(3):
        fail(archive, f"s{number}", Status.RESOURCE_LIMIT, f"ptxas: 0x{number}000 bytes of shared memory, too many")
    fail(archive, "w", Status.WRONG_RESULT, "row 3 is wrong")
    add(archive, "good", timed("a", 2.0))
    first, second = failures(archive)
    assert (first.status, first.evaluations, first.species) == (Status.RESOURCE_LIMIT, 3, (("plain", 3),))
    assert (first.example, first.message) == ("e-s2", "ptxas: 0x2000 bytes of shared memory, too many")
    assert first.diagnosis == "ptxas: # bytes of shared memory, too many"
    assert (second.stage, second.evaluations) == ("check", 1)
    assert failures(archive, status="wrong_result", operator="rmsnorm", run="run") == [second]
    assert failures(archive, operator="it's") == []
    assert failures(archive, limit=1) == [first]
    with pytest.raises(UnknownNameError, match="unknown status 'wrong'"):
        failures(archive, status="wrong")


def test_diff_compares_on_one_board_only(archive: Archive) -> None:
    add(archive, "one", timed("a", 1.0), timed("b", 2.0))
    add(archive, "two", timed("a", 2.0), CaseResult("b", Status.UNCOVERED))
    found = diff(archive, candidate("one").id[:12], candidate("two").id)
    assert (found.genes, found.source, found.comparable) == ({"LOAD": ("one", "two")}, "", True)
    assert [(pair.case, pair.gain) for pair in found.cases] == [("a", 2.0), ("b", None)]
    assert found.gain == pytest.approx(2.0)
    pair = found.cases[0]
    assert pair.low == pytest.approx(1.8 / 1.1)
    assert pair.high == pytest.approx(2.2 / 0.9)
    archive.file(evaluation("two", timed("a", 9.0), yardstick="loop", purpose=Purpose.CERTIFY), None)
    assert diff(archive, candidate("one").id, candidate("two").id).gain == pytest.approx(2.0)
    add_other = proposal("three", species="other")
    archive.propose(add_other)
    archive.file(evaluation("three", timed("a", 9.0), yardstick="loop"), add_other.id)
    apart = diff(archive, candidate("one").id, add_other.id)
    assert (apart.comparable, apart.gain, apart.cases[0].gain) == (False, None, None)
    assert "-// plain\n+// other" in apart.source


def test_a_lineage_tells_what_each_step_gained_and_changed(archive: Archive) -> None:
    for each in (proposal("root"), proposal("mid", "root"), proposal("leaf", "mid", "root")):
        archive.propose(each)
    archive.file(evaluation("root", timed("a", 1.0), timed("b", 1.0)), None)
    archive.file(evaluation("mid", timed("a", 2.0)), None)
    archive.file(evaluation("leaf", timed("a", 3.0), timed("b", 1.0)), None)
    leaf, mid, root = lineage(archive, candidate("leaf").id)
    assert mid.gain == pytest.approx(2.0)
    assert root.gain is None
    assert leaf.gain == pytest.approx(1.5)  # against the better of its parents, in their common cases
    assert leaf.changes == ("LOAD mid -> leaf",)


def test_a_deep_lineage_follows_first_parents_to_the_end_and_others_so_far(archive: Archive) -> None:
    with archive.batch():
        archive.propose(proposal("0"))
        for number in range(1, 400):
            archive.propose(proposal(str(number), str(number - 1), *([f"{number - 2}"] if number > 1 else [])))
    nodes = lineage(archive, candidate("399").id, depth=1000, most=10)
    assert len(nodes) == 400
    assert nodes[-1].depth == 200  # the shortest way is over the second parents
    assert len(lineage(archive, candidate("399").id, depth=3)) == 7


def test_a_case_that_is_not_there_is_an_error(archive: Archive) -> None:
    assert top(archive, case="nope") == []  # nothing was timed at all
    add(archive, "one", timed("bf16-n1024", 1.0))
    with pytest.raises(UnknownNameError, match=r"unknown case 'bf16-n104'\n  did you mean bf16-n1024\?"):
        top(archive, case="bf16-n104")


def evo(archive: Archive, *words: str) -> Any:
    return CliRunner().invoke(app, ["archive", *words, "--archive", str(archive.path)])


def test_every_question_has_a_table_json_and_csv(archive: Archive) -> None:
    add(archive, "one", timed("a", 1.0))
    add(archive, "two", timed("a", 2.0))
    fail(archive, "bad", Status.CRASH, "trap")
    one, two = candidate("one").id, candidate("two").id
    for words in (
        ["top"], ["runs"], ["show", one], ["lineage", two], ["diff", one, two], ["failures"], ["query", "score > 1"],
        ["query", "--sql", "SELECT candidate, score FROM v_evaluation"],
    ):  # fmt: skip
        shown, data, flat = evo(archive, *words), evo(archive, *words, "--json"), evo(archive, *words, "--csv")
        assert (shown.exit_code, data.exit_code, flat.exit_code) == (0, 0, 0), (words, shown.output, data.output)
        assert shown.stdout.strip()
        assert json.loads(data.stdout)
        head, *rows = csv.reader(io.StringIO(flat.stdout))
        assert rows, words
        assert {len(row) for row in rows} == {len(head)}
    assert evo(archive, "top", "--case", "nope").exit_code == 2
    assert evo(archive, "query", "score >").exit_code == 2
    assert evo(archive, "query", "score > 1", "--sql", "SELECT 1").exit_code == 2
    assert evo(archive, "query", "--sql", "DROP TABLE run").exit_code == 2
    limited = evo(archive, "query", "-n", "1")
    assert "there are more rows than --limit 1 shows" in limited.stderr


@pytest.mark.parametrize("words", ["top", "show ONE", "lineage ONE", "diff ONE TWO"])
def test_a_number_of_the_search_alone_is_marked_until_it_is_measured_again(archive: Archive, words: str) -> None:
    for name in ("one", "two"):
        add(archive, name, timed("a", 1.5))
    asked = [{"ONE": candidate("one").id, "TWO": candidate("two").id}.get(word, word) for word in words.split()]
    rough = evo(archive, *asked).stdout
    assert "~ 1.5" in rough
    assert FLATTERS in rough
    for name in ("one", "two"):
        archive.file(evaluation(name, timed("a", 1.5), purpose=Purpose.FINAL), None)
    assert '"purpose":"final"' in evo(archive, *asked, "--json").stdout.replace(" ", "")
    if asked[0] != "show":  # which lists both evaluations
        assert "~" not in evo(archive, *asked).stdout


def test_care_from_the_command_line(archive: Archive, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert json.loads(evo(archive, "check", "--json").stdout) == []
    assert "whole" in evo(archive, "check").stdout
    assert json.loads(evo(archive, "backup", str(copy), "--json").stdout)["bytes"] == copy.stat().st_size
    assert evo(archive, "backup", str(copy)).exit_code == 2
    assert "new: 0 runs" in evo(archive, "merge", str(copy)).stdout
    assert "has schema" in evo(archive, "upgrade").stdout
    assert "removed 0 sources" in evo(archive, "vacuum").stdout
    add(archive, "a", timed("a", 2.0))  # its id is made up
    assert evo(archive, "check").exit_code == 1
    assert evo(archive, "merge", str(tmp_path / "none.db")).exit_code == 1


def documented(heading: str) -> list[str]:
    section = DOC.split(f"### {heading}\n")[1].split("\n#")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_the_documented_schema_is_the_real_one(archive: Archive) -> None:
    database = sqlite3.connect(archive.path)
    views = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY name")]
    assert views == sorted(f"v_{name}" for name in VIEWS)
    numbers = set()
    for view in views:
        real = [row[1] for row in database.execute(f"PRAGMA table_info({view})")]
        assert documented(view) == real
        numbers |= set(real) & NUMBERS
        rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", DOC.split(f"### {view}\n")[1].split("\n#")[0], re.MULTILINE)
        assert rows == [(name, "number" if name in NUMBERS else "text") for name in real]
        assert set(VIEWS[view.removeprefix("v_")]) <= set(real)
    assert numbers == NUMBERS
    listed = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.*) \|$", DOC.split("## Tables\n")[1], re.MULTILINE)
    assert {name: re.findall(r"`(\w+)`", columns) for name, columns in listed} == {
        name: [column.name for column in table.columns] for name, table in Base.metadata.tables.items()
    }
    database.close()

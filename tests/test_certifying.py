"""`evo certify` of what an archive holds, and hold-outs, on the real CPU target."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certified import PAIRS, RIGHT, SESSIONS, WRONG, installed, order, steadily

from evo import app, codec
from evo.archive import Archive, RunRecord, show
from evo.errors import EvoError, RunError, UnknownNameError, UsageError
from evo.genome import Genome, make_candidate
from evo.ids import new_id
from evo.records import CaseResult, Deviation, Diagnosis, Evaluation, Proposal, Purpose, Stage, Status

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"),
]


@pytest.fixture(scope="module", autouse=True)
def _operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(tmp_path_factory.mktemp("held")):
        yield


@pytest.fixture
def filed(tmp_path: Path) -> tuple[Path, str, str]:
    """An archive with a candidate that was right and one that was wrong."""
    place, ids = tmp_path / "evo.db", []
    with Archive.open(str(place)) as archive:
        archive.start_run(RunRecord("r", "held", "cpu", "cpu:0", "evo run", 1, "", ("n4096",), "y", "old", 1.0))
        for text, status in ((RIGHT, Status.OK), (WRONG, Status.WRONG_RESULT)):
            candidate = make_candidate("held", "cpu", Genome.parse(text, ".cpp"), {})
            proposal = Proposal(new_id(), "r", candidate)
            archive.propose(proposal)
            result = CaseResult("n4096", status, Deviation(0.0, 0.0))
            archive.file(
                Evaluation(new_id(), "r", candidate.id, Purpose.SEARCH, "y", "cpu:0", status, cases=(result,)),
                proposal.id,
            )
            ids.append(candidate.id)
    return place, ids[0], ids[1]


def test_a_candidate_of_the_archive_is_certified_and_filed(filed: tuple[Path, str, str], tmp_path: Path) -> None:
    place, right, _ = filed
    said: list[str] = []
    certificate = steadily(order(right[:10], archive=str(place), cases=("n4096", "secret-*")), said.append)
    steps = ["checking", "n4096", "secret-n8192"]
    assert said[-3 * len(steps) :] == [f"session {n} of 3: {step}" for n in (1, 2, 3) for step in steps]
    assert certificate.candidate.id == right
    assert [case.group for case in certificate.cases] == ["tune", "tune", "holdout"]
    assert certificate.summary.cases == 2, "a hold-out counts in no mean"
    with Archive.open(str(place), readonly=True) as archive:
        evaluations = [e for e in show(archive, right).evaluations if e.purpose is Purpose.CERTIFY]
        runs = archive.runs()
        with archive.reading() as connection:
            names = connection.exec_driver_sql("SELECT DISTINCT case_name FROM case_result").scalars().all()
    done = evaluations[-1]  # the tries before it, if there were any, are filed too
    assert done.status is Status.OK
    (timing,) = [result.timing for result in done.cases if result.timing]
    assert timing.sessions == (PAIRS,) * SESSIONS
    assert {run.command for run in runs if run.id != "r"} == {certificate.command}
    assert {run.state for run in runs if run.id != "r"} == {"done"}
    assert not [name for name in names if "secret" in name], "hold-outs stay out of what searches read"


def test_who_failed_is_not_certified(filed: tuple[Path, str, str], tmp_path: Path) -> None:
    place, right, wrong = filed
    with pytest.raises(UsageError, match="ended in wrong_result when it was last evaluated"):
        app.certify(order(wrong, archive=str(place)))
    with pytest.raises(UnknownNameError, match="unknown candidate id 'ffff'"):
        app.certify(order("ffff", archive=str(place)))
    with pytest.raises(UsageError, match="fixed"):
        app.certify(order(right, archive=str(place), genes={"GROUP": "4"}))
    file = tmp_path / "wrong.cpp"
    file.write_text(WRONG)
    with pytest.raises(RunError, match=r"not certified: candidate \w+ ended in wrong_result in "):
        app.certify(order(file))


@pytest.mark.parametrize(
    ("identity", "options", "words"),
    [
        ("missing.cpp", {}, "no such file"),
        ("folder.cpp", {}, "is a folder"),
        ("abc", {"archive": "no-such.db"}, "no-such.db"),
        ("abc", {"sessions": 2}, f"2 sessions of {PAIRS} pairs: too few"),
    ],
)
def test_what_cannot_be_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: str, options: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.cpp").mkdir()
    with pytest.raises(EvoError) as error:
        app.certify(order(identity, **options))
    assert words in str(error.value)


# --- hold-outs


def test_hold_outs_are_shown_apart_and_reach_nothing_that_a_search_reads(tmp_path: Path) -> None:
    archive = tmp_path / "evo.db"
    seen: list[str] = []
    result = app.run(
        app.Settings("held", "cpu", "evaluations=2", ("n4096",), 1, archive=str(archive), holdout=True),
        lambda progress: seen.append(codec.dumps(progress).decode()),
    )
    assert {row.case for row in result.holdout} == {"secret-n8192"}
    assert {row.candidate for row in result.holdout} == {case.candidate for case in result.cases if case.candidate}
    assert all(row.sessions == SESSIONS and row.time_us > 0 for row in result.holdout if row.status == "ok")
    assert [case.case for case in result.cases] == ["n4096"]
    assert "secret" in (Path(result.winner) / "holdout.json").read_text()
    with Archive.open(str(archive), readonly=True) as opened, opened.reading() as connection:
        everything = "\n".join(connection.connection.driver_connection.iterdump())  # type: ignore[union-attr]
    assert "n4096" in everything
    assert "secret" not in everything
    assert not [line for line in seen if "secret" in line]


def test_a_diagnosis_of_a_hold_out_is_not_filed_either(filed: tuple[Path, str, str]) -> None:
    from evo.app.stand import stand
    from evo.app.trust.certify import _file
    from evo.plugins.manager import Plugins

    place, right, _ = filed
    failed = Evaluation(
        new_id(), new_id(), right, Purpose.CERTIFY, "y", "cpu:0", Status.WRONG_RESULT,
        Diagnosis(Stage.CHECK, "element 7 is wrong", "secret-n8192"), cases=(CaseResult("n4096", Status.OK),),
    )  # fmt: skip
    with (
        Archive.open(str(place)) as archive,
        stand(Plugins.load(), "held", "cpu", ("n4096", "secret-n8192")) as here,
    ):
        _file(archive, here, order(right), failed, 0.0)
        assert [evaluation.purpose for evaluation in show(archive, right).evaluations] == [Purpose.SEARCH]

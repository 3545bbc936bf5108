"""What is told and refused: it says why, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import evo
from evo import api
from evo.app.swarm.answers import tell_answer
from evo.archive import Archive, RunRecord
from evo.archive.messages import Message, MessageKind, heard
from evo.cli.root import app
from evo.errors import UnknownNameError, UsageError
from evo.operators.rmsnorm import RmsNorm
from evo.records import Author, State

CASE = "bf16-32x1024"
SEEDS = RmsNorm().seeds("cpu")
PLAIN = SEEDS[0].read_text()
ELSEWHERE = RunRecord("run-elsewhere", "rmsnorm", "cpu", "cpu:9", "evo evaluate", 0, "", (CASE,), "numpy", "e", 1.0)


@pytest.fixture
def archive(tmp_path: Path) -> str:
    return str(tmp_path / "evo.db")


def desk(archive: str, **options: Any) -> api.Desk:
    return evo.open(archive, **({"operator": "rmsnorm", "target": "cpu", "cases": [CASE]} | options))


def renamed(species: str) -> str:
    return PLAIN.replace('species  = "plain"', f'species  = "{species}"')


def run_cli(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


REFUSED: dict[str, dict[str, Any]] = {
    "another operator": {"source": PLAIN.replace('"rmsnorm"', '"softmax"')},
    "no genome": {"source": "int main() {}"},
    "no parent": {"values": {"ROWS": 4}},
    "unknown parent": {"values": {"ROWS": 4}, "parents": ["ffffffff"]},
    "unknown ask": {"source": PLAIN, "ask": "zzz"},
    "author": {"source": PLAIN, "author": Author("x\ny")},
    "unknown gene": {"source": PLAIN, "values": {"CHEESE": 4}},
}


@pytest.mark.parametrize("answer", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_nothing_behind(archive: str, answer: dict[str, Any]) -> None:
    with desk(archive) as open_desk:
        with pytest.raises(UsageError):
            open_desk.tell(**answer)
        assert open_desk.archive.runs() == []
        told = open_desk.tell(source=renamed("good"))
        assert [record.id for record in open_desk.archive.runs()] == [open_desk.run.id]
    with Archive.open(archive) as store:
        held = [proposal.candidate for proposal, _ in store.open_proposals(store.runs()[0].id)]
    assert len(held) == len(SEEDS) + 1
    assert told.candidate in {candidate.id for candidate in held}


def test_a_question_that_is_refused_leaves_nothing_behind(archive: str) -> None:
    with desk(archive) as open_desk:
        with pytest.raises(UnknownNameError, match="unknown candidate id"):
            open_desk.ask(parent="ffffffff")
        assert open_desk.archive.runs() == []


def test_desks_that_were_opened_at_once_hold_what_is_told_in_one_run(archive: str) -> None:
    with desk(archive) as one, desk(archive) as other:
        one.tell(source=renamed("one"))
        other.tell(source=renamed("other"))
        assert one.run.id == other.run.id
    with Archive.open(archive) as store:
        (record,) = store.runs()
        assert len(store.open_proposals(record.id)) == len(SEEDS) + 2


def test_the_first_that_is_told_may_be_a_seed(archive: str) -> None:
    with desk(archive) as open_desk:
        seed = open_desk.tell(source=PLAIN)
    assert (seed.state, seed.of) == (State.DUPLICATE, seed.candidate)


def test_a_genome_of_another_operator_makes_no_archive(archive: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.cpp"
    file.write_text(PLAIN)
    done = run_cli("tell", str(file), "-o", "rmsnorm_backward", "--archive", archive)
    assert (done.exit_code, "this genome is for another operator than 'rmsnorm_backward'" in done.stderr) == (2, True)
    assert not Path(archive).exists()


def test_a_question_that_was_never_asked_is_refused(archive: str, tmp_path: Path) -> None:
    with desk(archive) as open_desk:
        ask = open_desk.ask()
        with pytest.raises(UnknownNameError, match="unknown ask id 'zzz'") as caught:
            open_desk.tell(source=renamed("lost"), ask="zzz")
        assert ask.ask in caught.value.fix
        told = open_desk.tell(source=renamed("mine"), ask=ask.ask)
        with pytest.raises(UnknownNameError, match="unknown ask id"):  # a message, and no question
            open_desk.tell(source=renamed("lost"), ask=messages(archive, "tell")[-1].id)
        with pytest.raises(UnknownNameError, match="unknown ask id 'zzz'"):  # told again, it changes nothing either
            open_desk.tell(source=renamed("mine"), ask="zzz")
    with Archive.open(archive) as store:
        store.start_run(ELSEWHERE)
    with desk(archive, run=ELSEWHERE.id, operator="", cases=()) as other:
        with pytest.raises(UsageError, match=f"question {ask.ask} was asked of run {ask.run}"):
            other.tell(source=renamed("lost"), ask=ask.ask)
    assert {message.data["ask"] for message in messages(archive, "tell") if message.data} == {ask.ask}
    assert told.state is State.PENDING
    file = tmp_path / "mine.cpp"
    file.write_text(renamed("lost"))
    for words in ([str(file)], [str(file), "-o", "rmsnorm", "-t", "cpu"], ["--gene", "ROWS=4"]):
        done = run_cli("tell", *words, "--ask", "zzz", "--archive", archive)
        assert (done.exit_code, "unknown ask id 'zzz'" in done.stderr) == (2, True), done.output


def messages(archive: str, kind: MessageKind) -> list[Message]:
    with Archive.open(archive) as store, store.reading() as connection:
        return [message for record in store.runs() for message in heard(connection, record.id, [kind])]


LONG = "m" * 201
WRONG_AUTHORS = {
    "": "the author's kind is empty",
    " ": "the author's kind is empty",
    "x\ny": "the author's kind 'x\\ny' is not one printable line",
    "agent:\x1b[31m": "the author's model '\\x1b[31m' is not one printable line",
    "agent:a\tb": "the author's model 'a\\tb' is not one printable line",
    "agent:\u202eb": "the author's model '\\u202eb' is not one printable line",
    "k" * 65: "the author's kind has 65 characters, of at most 64",
    f"agent:{LONG}": "the author's model has 201 characters, of at most 200",
}


@pytest.mark.parametrize("author", WRONG_AUTHORS)
def test_an_author_is_one_printable_line(archive: str, tmp_path: Path, author: str) -> None:
    file = tmp_path / "mine.cpp"
    file.write_text(renamed("mine"))
    done = run_cli("tell", str(file), "-o", "rmsnorm", "-t", "cpu", "--author", author, "--archive", archive)
    assert (done.exit_code, WRONG_AUTHORS[author] in done.stderr) == (2, True), done.stderr
    kind, _, model = author.partition(":")
    with desk(archive) as open_desk:
        with pytest.raises(UsageError) as caught:
            open_desk.tell(source=PLAIN, author=Author(kind, model))
        assert caught.value.what == WRONG_AUTHORS[author]
        with pytest.raises(UsageError) as caught:
            tell_answer(open_desk, {"source": PLAIN, "author": {"kind": kind, "model": model}})
        assert caught.value.what == WRONG_AUTHORS[author]
        assert open_desk.archive.runs() == []
        good = open_desk.tell(source=PLAIN, author=Author("Jürgen 漢字", "m" * 200))
        assert good.state is State.DUPLICATE

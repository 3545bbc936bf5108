"""A run's report: how numbers are written, and that nothing is hidden in the tables."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from printed import FIRST, RUN, SECOND, rendered
from rich.console import Console

from evo.engine.result import Best, CaseSummary, Progress, Result
from evo.errors import UsageError
from evo.records import (
    Values,
)
from evo.report import notation
from evo.report.live import Lines, Terminal, Watch, progress_line, progress_view, watch
from evo.report.picture import draw
from evo.report.summary import summary


def progress(**changes: Any) -> Progress:
    best = {"m8-n256": Best(1.0342, 1.0313, 1.0371, 38.121, FIRST, "block-per-row")}
    base = Progress(RUN, "search", 123, 4, 3, {"build_error": 2, "wrong_result": 11}, best, 12.3, "0:36", 0.25)
    return replace(base, **changes)


def result(**changes: Any) -> Result:
    values: Values = {"THREADS": 256, "LOAD": "ld.global.nc.L1::no_allocate.L2::128B.v4.b32"}
    cases = (
        CaseSummary(
            "m32768-n1024-bf16", 39.424, 38.121, 1.0342, 1.0313, 1.0371, 0.81, FIRST, "block-per-row", values, 60, True
        ),
        CaseSummary(
            "m32768-n16384-bf16", 960.0, 990.0, 0.9697, 0.9651, 0.9742, 0.7, SECOND, "cluster", values, 60, True
        ),
        CaseSummary(
            "m32768-n32768-bf16", 2000.0, 1600.0, 1.25, 1.2, 1.3, 0.0, FIRST, "block-per-row", values, 12, False
        ),
        CaseSummary("m8-n262144-bf16", 12.0),
    )
    rejected = {"wrong_result": 11, "build_error": 2}
    base = Result(
        RUN, "rmsnorm", "sm_90", "cuda:0", "torch", cases, rejected, 123, 4, 58.1, "evo-winners/best.cu", "evo.db"
    )
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("value", "written"),
    [(1.0342, "1.034x"), (0.97, "0.97x"), (0.998, "0.998x"), (12.345, "12.35x"), (float("nan"), "-")],
)
def test_ratios(value: float, written: str) -> None:
    assert notation.ratio(value) == written


def test_ratio_with_interval() -> None:
    assert notation.ratio_interval(1.0342, 1.0313, 1.0371) == "1.034x  [1.031, 1.037]"
    assert notation.ratio_interval(0.9697, 0.9651, 0.9742) == "0.97x  [0.965, 0.974]"


@pytest.mark.parametrize(
    ("microseconds", "written"),
    [
        (0.81234, "812.3 ns"),
        (1.0, "1.000 us"),
        (38.124, "38.12 us"),
        (812.34, "812.3 us"),
        (999.99, "1.000 ms"),
        (1204.0, "1.204 ms"),
        (2.5e6, "2.500 s"),
        (0.0, "-"),
        (float("inf"), "-"),
    ],
)
def test_times_have_four_digits_and_a_unit(microseconds: float, written: str) -> None:
    assert notation.time(microseconds) == written


def test_small_notations() -> None:
    assert [notation.duration(s) for s in (48.2, 200, 7500)] == ["48 s", "3 min 20 s", "2 h 5 min"]
    assert [notation.size(n) for n in (512, 49152, 100 << 20, 3 << 30)] == ["512 B", "48 KiB", "100 MiB", "3 GiB"]
    assert notation.share(0.812) == "81%"
    assert notation.share(0.0) == "-"
    assert notation.counts({"crash": 0, "b": 2, "a": 2, "c": 9}) == "c 9, a 2, b 2"
    assert notation.counts({}) == "none"
    assert notation.short(RUN) == "0192f3a4-5b6c"
    assert notation.short(FIRST) == "a1a1a1a1a1"


def test_the_spread_holds_minimum_geomean_and_maximum() -> None:
    assert notation.spread([2.0, 0.5, 1.331]) == "min 0.50x   geomean 1.100x   max 2.000x"
    assert notation.spread([0.0]) == "no case has a speed-up"


def test_the_summary_shows_wins_losses_and_gaps() -> None:
    page = rendered(summary(result(notes=("no [GPU] found",))))
    lines = [" ".join(line.split()) for line in page.splitlines()]
    assert "m32768-n1024-bf16 39.42 us 38.12 us 1.034x [1.031, 1.037] 81% A" in lines
    assert "m32768-n16384-bf16 960.0 us 990.0 us 0.97x [0.965, 0.974] 70% B" in lines
    assert "m32768-n32768-bf16 2.000 ms 1.600 ms ~ 1.250x [1.200, 1.300] - A" in lines
    assert "m8-n262144-bf16 12.00 us - no time - -" in lines
    assert "min 0.97x geomean 1.078x max 1.250x over 3 of 4 cases" in lines
    assert "123 evaluated, 4 duplicates, in 58 s" in lines
    assert "rejected: wrong_result 11, build_error 2" in lines
    assert "note: no [GPU] found" in lines
    assert "winner: evo-winners/best.cu" in lines
    assert "evo archive show a1a1a1a1a1" in lines
    assert all(len(line.rstrip()) <= 80 for line in page.splitlines())


def test_the_summary_names_another_archive_in_its_commands() -> None:
    assert "evo archive top --operator rmsnorm --target sm_90 --archive 'my runs.db'" in rendered(
        summary(result(archive="my runs.db")), width=120
    )


def test_a_run_whose_best_may_be_no_faster_than_the_yardstick_says_so() -> None:
    words = "no case is faster than its yardstick for certain"
    assert words not in rendered(summary(result()))
    even = replace(result().cases[0], ratio=1.001, low=0.99, high=1.012)
    assert words in rendered(summary(result(cases=(even,))))


def test_the_summary_of_a_run_that_found_nothing_says_so() -> None:
    nothing = result(cases=(CaseSummary("m8-n256", 12.0),), winner="")
    page = rendered(summary(nothing))
    assert "no case has a speed-up   over 0 of 1 case" in page
    assert "no candidate was right: no winner" in page
    assert "no right candidate" in page
    assert "not covered" not in page
    unrejected = rendered(summary(replace(nothing, rejected={})))
    assert "not covered" in unrejected
    assert "no right candidate" not in unrejected
    unsteady = rendered(summary(replace(nothing, rejected={"unstable_timing": 4})))
    assert "no candidate could be timed well enough: no winner was written" in unsteady
    assert "right" not in unsteady, "nobody was wrong"
    assert "nothing was evaluated within the budget" in rendered(summary(result(evaluated=0, winner="")))
    assert "evo archive show 0192f3a4-5b6c" in page


def test_an_interrupted_run_can_be_resumed() -> None:
    assert "evo resume 0192f3a4-5b6c" in rendered(summary(result(notes=("interrupted",))))
    assert "evo resume" not in rendered(summary(result()))


def test_paths_in_the_working_folder_are_short_and_the_leaders_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "evo-winners" / "run"
    folder.mkdir(parents=True)
    for name in (SECOND, FIRST):
        (folder / f"species-{name[:8]}.cu").touch()
    page = rendered(summary(result(winner=str(folder), archive=str(tmp_path / "evo.db"))))
    assert "winner: evo-winners/run\n" in page.replace(" \n", "\n")
    assert "evo bench evo-winners/run/species-a1a1a1a1.cu --target sm_90" in page
    assert "evo certify evo-winners/run --target sm_90" in page
    assert "--archive" not in page


def test_paths_are_not_broken(tmp_path: Path) -> None:
    winner, archive = (str(tmp_path / f"{'folder with a long name ' * 5}{end}") for end in ("winners", "evo.db"))
    lines = rendered(summary(result(winner=winner, archive=archive))).splitlines()
    assert f"winner: {winner}" in lines
    assert f"archive: {archive}" in lines


def test_many_winners_get_letters_that_differ() -> None:
    cases = tuple(CaseSummary(f"n{i}", 2.0, 1.0, 2.0, 1.9, 2.1, 0.5, f"{i:064x}", "s", {}, 9, True) for i in range(30))
    page = rendered(summary(result(cases=cases)))
    letters = [line.split()[-1] for line in page.splitlines() if line.startswith("n") and " us " in line]
    assert letters[:2] == ["A", "B"]
    assert letters[25:27] == ["Z", "AA"]
    assert len(set(letters)) == 30


def test_a_line_holds_all_of_a_snapshot() -> None:
    assert progress_line(progress()) == (
        "[12 s] search: 123 evaluated, 4 duplicates, 3 in flight; rejected: wrong_result 11, build_error 2; "
        "min 1.034x   geomean 1.034x   max 1.034x; 0:36 of the search left"
    )


def test_one_is_no_plural() -> None:
    one = progress(evaluated=1, duplicates=1, left="1 evaluation")
    assert "1 evaluated, 1 duplicate, 3 in flight" in progress_line(one)
    assert progress_line(one).endswith("; 1 evaluation left")
    assert "1 evaluated   1 duplicate   3 in flight" in rendered(progress_view(one, rows=3))
    assert "123 evaluated, 1 duplicate, in 58 s" in rendered(summary(result(duplicates=1)))


@pytest.mark.parametrize(
    ("left", "phase", "written"),
    [
        ("0:48", "seeds", "0:48 of the search left"),
        ("120 evaluations", "search", "120 evaluations left"),
        ("1:30 on the device", "search", "1:30 on the device left"),
        ("no limit", "search", "no limit"),
        ("0:00", "finals", "the best are measured again"),
    ],
)
def test_what_is_left_is_the_searchs(left: str, phase: str, written: str) -> None:
    snapshot = progress(left=left, phase=phase)
    assert progress_line(snapshot).split("; ")[-1] == written
    assert rendered(progress_view(snapshot, rows=3)).splitlines()[0].rstrip().endswith(f"  {written}")


def test_off_a_terminal_a_line_comes_every_five_seconds_and_at_every_change() -> None:
    now = 0.0
    console = Console(file=io.StringIO(), width=80)
    lines = Lines(console, clock=lambda: now)
    for now, phase, message in [
        (0.0, "seeds", "no GPU [here]"),
        (1.0, "seeds", "no GPU [here]"),
        (2.0, "search", ""),
        (6.9, "search", ""),
        (7.1, "search", ""),
    ]:
        lines(progress(phase=phase, message=message, evaluated=int(now * 10)))
    out = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert out[0] == "no GPU [here]"
    assert [line.split("evaluated")[0] for line in out[1:]] == [
        "[12 s] seeds: 0 ",
        "[12 s] search: 20 ",
        "[12 s] search: 71 ",
    ]


def test_every_step_of_the_finals_is_a_line_and_no_second_one_follows_it_at_once() -> None:
    times = [0.0, 1.0, 2.0, 6.0, 10.0, 11.1]
    console = Console(file=io.StringIO(), width=80)
    lines = Lines(console, clock=iter(times).__next__)
    for step in ("", "final 1 of 3: n256", "final 1 of 3: n256", *["final 1 of 3: n1024"] * 3):
        lines(progress(phase="finals", step=step))
    out = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert out[1:3] == ["[12 s] final 1 of 3: n256", "[12 s] final 1 of 3: n1024"]
    assert [line.partition("; ")[2][-21:] for line in out[3:]] == ["; final 1 of 3: n1024"], "a sign of life"
    assert len(out) == 4


def test_the_display_shows_the_step_of_the_finals() -> None:
    page = rendered(progress_view(progress(phase="finals", step="final 2 of 3: n256, candidate a1"), rows=3))
    assert "final 2 of 3: n256, candidate a1" in page.splitlines()


def test_on_a_terminal_the_display_is_redrawn_and_messages_stay() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=24, color_system=None)
    with watch(console) as display:
        assert isinstance(display, Terminal)
        display(progress(message="no GPU [here]"))
    out = file.getvalue()
    assert "no GPU [here]" in out
    assert "123 evaluated" in out
    assert "\x1b[2K" in out  # erased at the end: the summary takes its place


def test_the_display_fits_its_rows() -> None:
    best = {f"case{i}": Best(1.1, 1.0, 1.2, 10.0, FIRST, "s") for i in range(20)}
    page = rendered(progress_view(progress(best=best), rows=5))
    assert "case4" in page
    assert "case5" not in page
    assert "and 15 more" in page


def test_quiet_shows_nothing() -> None:
    console = Console(file=io.StringIO())
    quiet = watch(console, quiet=True)
    assert type(quiet) is Watch
    quiet(progress())
    assert quiet.last == progress()


def test_the_picture_is_an_svg_that_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.svg"
    draw(path, "evo run --operator rmsnorm", progress(), result())
    text = path.read_text()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = "".join(root.itertext()).replace("\xa0", " ")
    assert "evo run --operator rmsnorm" in words
    assert "1.034x  [1.031, 1.037]" in words
    assert "url(http" not in text
    assert "font-face" not in text


def test_a_picture_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write the picture"):
        draw(tmp_path, "evo run", None, result())

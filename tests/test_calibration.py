"""Who is the yardstick, on the real CPU target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evo.app.single import _known_baseline
from evo.app.stand import Stand, stand
from evo.errors import UsageError
from evo.fitness.calibration import calibrate
from evo.fitness.tasks import BaselineReport
from evo.genome import Genome
from evo.plugins.manager import Plugins

CASE = "bf16-32x1024"


@pytest.fixture(scope="module")
def here() -> Iterator[Stand]:
    with stand(Plugins.load(entry_points=False), "rmsnorm", "cpu", (CASE,)) as made:
        yield made


def test_baselines_are_timed_and_one_of_them_is_the_yardstick(here: Stand) -> None:
    found = here.calibrate(lambda message: None)
    names = {report.name for report in found.reports}
    assert names == {"numpy", "c++ loop"}
    assert found.yardsticks[CASE] in names
    fastest = min(report.times_us.get(CASE, float("inf")) for report in found.reports)
    assert next(r for r in found.reports if r.name == found.yardsticks[CASE]).times_us[CASE] == fastest


def test_only_who_is_named_is_timed(here: Stand) -> None:
    assert here.calibrate(lambda message: None, names=()).reports == ()
    assert [r.name for r in here.calibrate(lambda message: None, names=("numpy",)).reports] == ["numpy"]


def test_seeds_serve_where_no_baseline_passes(here: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first seed that passes, and no other is timed; one that covers no case is passed over. Measuring is stood in
    for: the CPU target always has a baseline."""
    plain, simd = here.seeds()
    nowhere = '[constraints]\nall = ["N < 1"]\n\n[[launch]]'
    elsewhere = Genome.parse(plain.canonical.replace("[[launch]]", nowhere, 1), ".cpp")
    asked: list[tuple[str, ...] | None] = []
    times = {"seed:plain": 9.0, "seed:simd": 2.0}

    def measure(*given: object) -> tuple[BaselineReport, ...]:
        names = given[-2]  # the last is the protocol
        assert names is None or isinstance(names, tuple)
        asked.append(names)
        return tuple(
            BaselineReport(name, "", {CASE: times[name]} if name in times else {}, {}, {}, {}) for name in names or ()
        )

    monkeypatch.setattr("evo.fitness.calibration._measure", measure)
    fallback = {"seed:elsewhere": elsewhere, "seed:plain": plain, "seed:simd": simd}
    found = calibrate(here.executor, here.operator, here.target, here.cases, {}, fallback=fallback)
    assert asked == [None, ("seed:plain",)]
    assert found.yardsticks == {CASE: "seed:plain"}
    assert [report.name for report in found.reports] == ["seed:plain"]
    del times["seed:plain"]  # it fails the gate everywhere
    asked.clear()
    found = calibrate(here.executor, here.operator, here.target, here.cases, {}, fallback=fallback)
    assert asked == [None, ("seed:plain",), ("seed:simd",)]
    assert found.yardsticks == {CASE: "seed:simd"}


def test_a_baseline_that_is_named_must_be_installed(here: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not was prepared all the same, and ended in a traceback of its own."""

    class Absent:
        name = "absent"

        def missing(self) -> str:
            return "Absent: pip install absent"

    monkeypatch.setattr(type(here.operator), "baselines", lambda self, target: [Absent()])
    with pytest.raises(UsageError, match="baseline 'absent' is not installed here") as caught:
        _known_baseline(here, "absent")
    assert "pip install absent" in caught.value.fix

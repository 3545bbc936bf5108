"""Budgets: what is read, what is refused, and which limit binds first."""

from __future__ import annotations

import pytest

from evo.engine.budget import Budget, Meter
from evo.errors import UsageError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_all_keys_are_read() -> None:
    text = "evaluations=50, minutes=1.5,gpu_minutes=2,tokens=1000,usd=0.5,stall=9"
    assert Budget.parse(text) == Budget(50, 1.5, 2.0, 1000, 0.5, 9)


def test_text_reads_back() -> None:
    budget = Budget.parse("usd=0.25,evaluations=50,stall=3")
    assert Budget.parse(str(budget)) == budget


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget(evaluations=1234567), "evaluations=1234567"),
        (Budget(evaluations=2**53 + 1), "evaluations=9007199254740993"),
        (Budget(evaluations=1, tokens=123456789, stall=10**6), "evaluations=1,tokens=123456789,stall=1000000"),
        (Budget(minutes=5.0, usd=0.1234567), "minutes=5,usd=0.1234567"),
        (Budget(minutes=1 / 3), "minutes=0.3333333333333333"),
        (Budget(gpu_minutes=1234567.5), "gpu_minutes=1234567.5"),
        (Budget(minutes=1e300), "minutes=1e+300"),
    ],
)
def test_text_says_every_digit(budget: Budget, text: str) -> None:
    """The archive keeps the text: `evo status` and `evo resume` read the limits back from it."""
    assert str(budget) == text
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", " ", "tokens=5", "usd=1,tokens=5"])
def test_one_minute_unless_something_ends_the_run(text: str) -> None:
    assert Budget.parse(text).minutes == 1.0


@pytest.mark.parametrize("key", ["evaluations", "gpu_minutes", "stall"])
def test_no_minute_is_added_to_a_limit_that_ends_the_run(key: str) -> None:
    assert Budget.parse(f"{key}=5").minutes == 0.0


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("evaluation=5", "unknown budget key 'evaluation'", "did you mean evaluations?"),
        ("cheese=5", "unknown budget key 'cheese'", "there are: evaluations, minutes"),
        ("minutes=-1", "minutes=-1 is not above zero", "leave minutes out"),
        ("minutes=0", "minutes=0 is not above zero", "leave minutes out"),
        ("minutes=nan", "minutes=nan is not a finite number", "leave minutes out for no limit"),
        ("minutes=inf", "minutes=inf is not a finite number", "leave minutes out for no limit"),
        ("minutes=-inf", "minutes=-inf is not a finite number", "leave minutes out for no limit"),
        ("evaluations=1e400", "evaluations=1e400 is not a finite number", "leave evaluations out for no limit"),
        ("minutes=two", "minutes=two is not a number", "--budget"),
        ("minutes", "'minutes' has no value", "--budget"),
        ("stall=2.5", "stall=2.5 is not a whole number", "write stall=3"),
        ("usd=1,usd=2", "'usd' stands twice", "keep one"),
    ],
)
def test_a_wrong_budget_says_what_and_how_to_mend_it(text: str, what: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        Budget.parse(text)
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_minutes_keep_time_for_the_finals() -> None:
    clock = Clock()
    meter = Meter(Budget(minutes=1), clock=clock)
    assert meter.reserve_s == 12.0
    clock.now += 47.9
    assert not meter.exhausted()
    assert meter.left() == "0:01"
    clock.now += 0.2
    assert meter.exhausted()
    assert Meter(Budget(minutes=60)).reserve_s == 60.0
    assert Meter(Budget(minutes=10), reserve_share=0.01).reserve_s == pytest.approx(6.0)


def test_the_limit_with_the_largest_share_used_binds() -> None:
    clock = Clock()
    meter = Meter(Budget(evaluations=10, minutes=1, usd=4.0), reserve_share=0.0, clock=clock)
    meter.charge(evaluations=4)
    clock.now += 15
    assert meter.used() == {"evaluations": 0.4, "minutes": 0.25, "usd": 0.0}
    assert (meter.bound(), meter.fraction(), meter.left()) == ("evaluations", 0.4, "6 evaluations")
    clock.now += 15
    assert (meter.bound(), meter.left()) == ("minutes", "0:30")
    meter.charge(usd=3.0)
    assert (meter.bound(), meter.left()) == ("usd", "1.00 USD")


def test_evaluations_in_flight_count_before_they_are_done() -> None:
    meter = Meter(Budget(evaluations=10))
    meter.charge(evaluations=4)
    assert meter.room(in_flight=3) == 3
    assert meter.room(in_flight=9) == 0
    assert Meter(Budget(minutes=1)).room(in_flight=9) == float("inf")


def test_an_improvement_starts_the_stall_anew() -> None:
    meter = Meter(Budget(stall=3))
    meter.charge(evaluations=2)
    meter.charge(evaluations=1, improved=True)
    meter.charge(evaluations=2)
    assert not meter.exhausted()
    assert meter.left() == "1 evaluation without improvement"
    meter.charge(evaluations=1)
    assert meter.exhausted()


def test_device_time_is_counted_in_minutes() -> None:
    meter = Meter(Budget(gpu_minutes=2))
    meter.charge(device_s=90.0)
    assert (meter.fraction(), meter.left()) == (0.75, "0:30 on the device")


def test_a_resumed_meter_goes_on_without_the_time_between() -> None:
    clock = Clock()
    first = Meter(Budget(minutes=1, evaluations=10), clock=clock)
    first.charge(evaluations=4, device_s=1.0)
    clock.now += 20
    saved = first.state()
    clock.now += 5000
    second = Meter(Budget(minutes=1, evaluations=10), clock=clock, spent=saved)
    assert second.seconds == 20.0
    assert second.room(in_flight=0) == 6
    assert second.state() == saved


def test_stopping_keeps_the_first_reason() -> None:
    meter = Meter(Budget(minutes=1))
    meter.stop("interrupted")
    meter.stop("again")
    assert meter.exhausted()
    assert meter.stopped == "interrupted"


@pytest.mark.parametrize(
    ("budget", "spent", "left"),
    [
        (Budget(evaluations=3), {"evaluations": 2.0}, "1 evaluation"),
        (Budget(evaluations=3), {"evaluations": 3.0}, "0 evaluations"),
        (Budget(evaluations=1234567), {"evaluations": 1.0}, "1234566 evaluations"),
        (Budget(tokens=5), {"tokens": 4.0}, "1 token"),
        (Budget(tokens=5), {"tokens": 3.0}, "2 tokens"),
        (Budget(stall=3), {"stall": 1.0}, "2 evaluations without improvement"),
    ],
)
def test_one_is_no_plural(budget: Budget, spent: dict[str, float], left: str) -> None:
    assert Meter(budget, spent=spent).left() == left

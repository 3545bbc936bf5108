"""How far an output is from the truth."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from evo.fitness import compare
from evo.fitness.compare import deviation


def test_known_deviation() -> None:
    expected = np.array([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]])
    actual = expected.copy()
    actual[2, 0] = 7.0
    found = deviation(actual, expected)
    assert found.rms == pytest.approx(1 / math.sqrt(125))
    assert found.row == pytest.approx(1 / 10)
    assert found.max == pytest.approx(1 / math.sqrt(50))  # the row's rms, 7.07, is more than |6|
    assert (found.index, found.got, found.expected) == (4, 7.0, 6.0)


def test_a_row_counts_as_no_smaller_than_the_floor() -> None:
    expected = np.full((4, 16), 2.0)
    expected[1] = 0.01
    actual = expected.copy()
    actual[1] += 0.01
    assert deviation(actual, expected).row == pytest.approx(1.0)
    scale = math.sqrt((3 * 4.0 + 1e-4) / 4)
    found = deviation(actual, expected, 0.5)
    assert found.row == pytest.approx(0.01 / (0.5 * scale))
    assert found.max == pytest.approx(found.row)
    assert found.rms == deviation(actual, expected).rms


def test_row_of_zeros_must_be_zero() -> None:
    expected = np.zeros((2, 8))
    expected[0] = 1.0
    assert deviation(expected, expected).max == 0.0
    wrong = expected.copy()
    wrong[1, 3] = 1e-30
    assert deviation(wrong, expected).max == math.inf


@pytest.mark.parametrize(
    ("got", "want", "right"),
    [
        (math.nan, math.nan, True),
        (math.inf, math.inf, True),
        (-math.inf, math.inf, False),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (math.inf, math.nan, False),
    ],
)
def test_non_finite(got: float, want: float, right: bool) -> None:
    expected = np.ones((3, 4))
    expected[1, 2] = want
    actual = np.ones((3, 4))
    actual[1, 2] = got
    found = deviation(actual, expected)
    assert (found.max == 0.0) is right
    assert (found.rms == 0.0) is right


def test_one_wrong_element_in_a_large_tensor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "CHUNK", 1000)  # several chunks
    rng = np.random.default_rng(1)
    expected = rng.normal(size=(300, 64))
    actual = expected.astype(ml_dtypes.bfloat16)
    clean = deviation(actual, expected)
    assert clean.rms == pytest.approx(1.66e-3, rel=0.1)  # bf16 rounding
    actual[211, 7] = 9.0
    found = deviation(actual, expected)
    assert found.index == 211 * 64 + 7
    assert found.max > 2.0
    assert found.row > 0.5


def test_lost_row_hides_in_the_mean_but_not_in_its_row() -> None:
    rng = np.random.default_rng(2)
    expected = rng.normal(size=(4096, 16))
    actual = expected.copy()
    actual[9] = 0.0
    found = deviation(actual, expected)
    assert found.rms < 0.02
    assert found.row == pytest.approx(1.0)

"""What every machine must keep: the trust logic rests on these primitives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evo.dtypes import numpy_dtype
from evo.fitness.compare import deviation
from evo.fitness.poison import LAYOUT, Mode, mode
from evo.operator import ROW_KINDS, Fill
from evo.target import Buffer, BufferSpec, Machine


class MachineContract:
    """Needs a fixture `machine`; leaves it usable."""

    @pytest.fixture
    def machine(self) -> Machine:
        raise NotImplementedError("provide an open machine")

    def _buffers(self, machine: Machine, *specs: tuple[str, tuple[int, ...], str]) -> list[Buffer]:
        roles = {"input": "input", "output": "output", "scratch": "scratch"}
        return machine.allocate(
            [BufferSpec(f"b{i}", dtype, shape, roles[role]) for i, (dtype, shape, role) in enumerate(specs)]  # type: ignore[arg-type]
        )

    @pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
    def test_fill_follows_its_law_and_its_seed(self, machine: Machine, dtype: str) -> None:
        (buffer,) = self._buffers(machine, (dtype, (512, 256), "input"))
        machine.fill(buffer, Fill("normal", 1.0, 0.25), 7)
        first = machine.read(buffer).astype(np.float64)
        assert first.mean() == pytest.approx(1.0, abs=0.005)
        assert first.std() == pytest.approx(0.25, rel=0.02)
        machine.fill(buffer, Fill("normal", 1.0, 0.25), 7)
        np.testing.assert_array_equal(machine.read(buffer).astype(np.float64), first)
        machine.fill(buffer, Fill("normal", 1.0, 0.25), 8)
        assert np.mean(machine.read(buffer).astype(np.float64) == first) < 0.2

    def test_uniform_constant_rows_and_outliers(self, machine: Machine) -> None:
        (buffer,) = self._buffers(machine, ("fp32", (400, 500), "input"))
        machine.fill(buffer, Fill("uniform", -2.0, 6.0), 1)
        values = machine.read(buffer)
        assert values.min() >= -2.0
        assert values.max() <= 6.0
        assert values.mean() == pytest.approx(2.0, abs=0.05)
        machine.fill(buffer, Fill("constant", 3.0), 1)
        assert np.all(machine.read(buffer) == 3.0)
        machine.fill(buffer, Fill("constant", 1.0, row_log2=(-20.0, 20.0)), 2)
        rows = machine.read(buffer)
        assert np.all(rows == rows[:, :1])  # one exponent a row
        exponents = np.log2(rows[:, 0])
        assert exponents.min() < -15
        assert exponents.max() > 15
        machine.fill(buffer, Fill("constant", 1.0, outlier_rate=0.01, outlier_scale=1000.0), 3)
        assert np.mean(machine.read(buffer) == 1000.0) == pytest.approx(0.01, rel=0.2)

    def test_array_goes_there_and_back(self, machine: Machine) -> None:
        (buffer,) = self._buffers(machine, ("bf16", (37, 264), "input"))
        data = np.random.default_rng(1).normal(size=(37, 264)).astype(numpy_dtype("bf16"))
        machine.fill(buffer, data, 0)
        np.testing.assert_array_equal(machine.read(buffer).view(np.uint16), data.view(np.uint16))

    @pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64"])
    def test_poison_is_nan_or_plausible_or_both_by_key(self, machine: Machine, dtype: str) -> None:
        (buffer,) = self._buffers(machine, (dtype, (64, 67), "output"))
        finite, seen = {}, set()
        for key in range(8):
            machine.poison(buffer, key, 0.5)
            found = machine.read(buffer)
            values = found.astype(np.float64)
            seen.add(found.tobytes())
            finite[key] = float(np.mean(np.abs(values) < 8))  # NaN is not
            if mode(dtype, key) is Mode.PLAUSIBLE:
                assert 0.5 <= np.sqrt(np.mean(values**2)) <= 1.25
                assert abs(np.mean(values)) < 0.1
                assert np.mean(np.abs(values) < 0.1) > 0.03  # uniform: small ones as well
                assert np.unique(found).size > 1000 or dtype == "bf16"
        assert len(seen) == 8
        share = {Mode.NAN: (0.0, 0.0), Mode.PLAUSIBLE: (1.0, 1.0), Mode.MIXED: (0.4, 0.6)}
        for key, part in finite.items():
            low, high = share[mode(dtype, key)]
            assert low <= part <= high, (key, part)

    def test_perturb_copies_one_element_to_another_place(self, machine: Machine) -> None:
        (buffer,) = self._buffers(machine, ("bf16", (31, 8), "input"))
        before = np.arange(248).reshape(31, 8).astype(numpy_dtype("bf16"))
        places = set()
        for key in range(5):
            machine.fill(buffer, before, 0)
            machine.perturb(buffer, key)
            after = machine.read(buffer)
            (place,) = np.flatnonzero(after != before)
            assert after.reshape(-1)[place] in before
            places.add(int(place))
        assert len(places) > 1

    @pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
    def test_rows_of_every_kind(self, machine: Machine, dtype: str) -> None:
        columns = 96
        data = Fill(row_log2=(-14.0, 9.0), outlier_scale=1000.0, kinds=ROW_KINDS)
        (buffer,) = self._buffers(machine, (dtype, (10 * len(ROW_KINDS), columns), "input"))
        machine.fill(buffer, data, 12345)
        stride, shift = data.deal(12345)
        found = machine.read(buffer)
        with np.errstate(invalid="ignore"):
            values = np.abs(found.astype(np.float64))
        least = 2.0 ** (1 - LAYOUT[dtype][2])
        holds: dict[str, Callable[[np.ndarray], object]] = {
            "plain": lambda row: 0.4 < row.std() and row.max() < 6,
            "zeros": lambda row: np.all(row == 0),
            "constant": lambda row: np.all(row == row[0]) and row[0] > 0,
            "tiny": lambda row: 0 < row.max() < 6 * 2.0**-14,
            "huge": lambda row: row.max() > 2.0**9,
            "heavy": lambda row: row.max() <= 2.0**14 and np.median(row) < 2,
            "outlier": lambda row: np.sort(row)[-2] < 6 and abs(row.max() - 1000) <= 4,
            "first": lambda row: row[0] > 0 and np.all(row[1:] == 0),
            "last": lambda row: row[-1] > 0 and np.all(row[:-1] == 0),
            "alternating": lambda row: np.all(row == 3),
            "subnormal": lambda row: 0 < row.max() < 1.5 * least and np.median(row) < least,
            "nan": lambda row: np.isnan(row).sum() == 1,
            "inf": lambda row: np.isinf(row).sum() == 1,
        }
        for number, row in enumerate(values):
            kind = ROW_KINDS[(number * stride + shift) % len(ROW_KINDS)]
            assert holds[kind](row), (kind, number, row)
        machine.fill(buffer, data, 12345)
        assert machine.read(buffer).tobytes() == found.tobytes()
        machine.fill(buffer, data, 12346)
        assert machine.read(buffer).tobytes() != found.tobytes()

    def test_digest_sees_every_bit_and_the_order(self, machine: Machine) -> None:
        (buffer,) = self._buffers(machine, ("fp32", (33, 77), "output"))
        data = np.random.default_rng(2).normal(size=(33, 77)).astype(np.float32)
        machine.fill(buffer, data, 0)
        (first,) = machine.digests([buffer], 5)
        assert machine.digests([buffer, buffer], 5) == [first, first]
        assert machine.digests([buffer], 6) != [first]
        flipped = data.copy()
        flipped.view(np.uint32)[32, 76] ^= 1
        swapped = data.copy()
        swapped[0, 0], swapped[0, 1] = data[0, 1], data[0, 0]
        for changed in (flipped, swapped):
            machine.fill(buffer, changed, 0)
            assert machine.digests([buffer], 5) != [first]

    def test_guards_hold_until_touched(self, machine: Machine) -> None:
        buffers = self._buffers(machine, ("fp32", (5, 7), "input"), ("bf16", (3, 11), "output"))
        machine.guard(buffers, 11)
        for buffer in buffers:
            machine.fill(buffer, Fill(), 3)
            machine.poison(buffer, 4)
        assert machine.breach(buffers, 11) == ""
        assert machine.breach(buffers, 12) != ""  # another key's pattern is not this one's

    def test_zero(self, machine: Machine) -> None:
        (buffer,) = self._buffers(machine, ("i32", (1001,), "scratch"))
        machine.poison(buffer, 1)
        assert not machine.is_zero(buffer)
        machine.zero(buffer)
        assert machine.is_zero(buffer)
        data = np.zeros(1001, np.int32)
        data[1000] = 1
        machine.fill(buffer, data, 0)
        assert not machine.is_zero(buffer)

    def test_zero_of_several(self, machine: Machine) -> None:
        buffers = self._buffers(machine, ("i32", (7,), "scratch"), ("fp32", (5, 3), "scratch"))
        for buffer in buffers:
            machine.zero(buffer)
        assert machine.is_zero(*buffers)
        assert machine.is_zero()
        machine.fill(buffers[1], Fill("constant", 1.0), 0)
        assert not machine.is_zero(*buffers)

    @pytest.mark.parametrize(
        ("dtype", "shape"),
        [("fp32", (37, 264)), ("bf16", (5, 1000)), ("fp16", (1, 8)), ("fp32", (3, 100003)), ("bf16", (700, 3))],
    )
    def test_compare_agrees_with_numpy(self, machine: Machine, dtype: str, shape: tuple[int, ...]) -> None:
        actual, expected = self._buffers(machine, (dtype, shape, "output"), (dtype, shape, "output"))
        rng = np.random.default_rng(9)
        want = rng.normal(size=shape).astype(numpy_dtype(dtype))
        got = (want.astype(np.float64) * (1 + 0.01 * rng.normal(size=shape))).astype(numpy_dtype(dtype))
        machine.fill(expected, want, 0)
        machine.fill(actual, got, 0)
        for floor in (0.0, 2.0):
            found, truth = machine.compare(actual, expected, floor), deviation(got, want, floor)
            assert found.rms == pytest.approx(truth.rms, rel=1e-5)
            assert found.max == pytest.approx(truth.max, rel=1e-4)
            assert found.row == pytest.approx(truth.row, rel=1e-4)
            assert found.index == truth.index
            assert found.got == pytest.approx(truth.got)
            assert found.expected == pytest.approx(truth.expected)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_compare_refuses_what_is_not_finite(self, machine: Machine, bad: float) -> None:
        actual, expected = self._buffers(machine, ("fp32", (9, 130), "output"), ("fp32", (9, 130), "output"))
        want = np.ones((9, 130), np.float32)
        got = want.copy()
        got[8, 129] = bad
        machine.fill(expected, want, 0)
        machine.fill(actual, got, 0)
        found = machine.compare(actual, expected)
        assert found.max == np.inf
        assert found.rms == np.inf
        assert found.index == 9 * 130 - 1
        machine.fill(expected, got, 0)
        assert machine.compare(actual, expected).max == 0.0

    def test_compare_row_of_zeros(self, machine: Machine) -> None:
        actual, expected = self._buffers(machine, ("fp32", (2, 64), "output"), ("fp32", (2, 64), "output"))
        want = np.zeros((2, 64), np.float32)
        want[0] = 1.0
        machine.fill(expected, want, 0)
        machine.fill(actual, want, 0)
        assert machine.compare(actual, expected).max == 0.0
        got = want.copy()
        got[1, 5] = 1e-30
        machine.fill(actual, got, 0)
        assert machine.compare(actual, expected).max == np.inf

    def test_copy_rate_is_a_rate(self, machine: Machine) -> None:
        rate = machine.copy_rate(64 << 20)
        assert 1e8 < rate < 2e13

    def test_protocols_are_named(self, machine: Machine) -> None:
        assert machine.protocols
        assert machine.tempo() >= 0.0
        assert machine.lanes(20.0, machine.protocols[0]) == machine.lanes(20.0)

"""The filters on made-up operators, each with one fault; and on those that ship."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evo.dtypes import numpy_dtype
from evo.fitness.compare import deviation
from evo.fitness.filters import Examination, Probe, examine, host_inputs, small_cases, weakest_null
from evo.operator import Case, Cost, Fill, Operator, Scalar, Tensor, Tolerance
from evo.operators.rmsnorm import RmsNorm
from evo.records import Deviation

Arrays = Mapping[str, np.ndarray]
Truth = Callable[[Arrays, Case], np.ndarray]
TIGHT = Tolerance(rms=1e-6, max=1e-5)
KINDS = ("fp32", "fp32", "fp32")


class Made(Operator):
    """y [M, N] of x [M, N], w [N] and a scalar; whatever a test wants to be wrong is a parameter."""

    name = "made"
    dims = ("M", "N")
    tensors = (
        Tensor("x", "in", ("fp32", "bf16"), ("M", "N")),
        Tensor("w", "in", ("fp32", "bf16"), ("N",)),
        Tensor("y", "out", ("fp32", "bf16"), ("M", "N")),
    )
    scalars = (Scalar("a", "f32"),)

    def __init__(
        self, truth: Truth, *, timed: Tolerance = TIGHT, small: Tolerance = TIGHT, kinds: tuple[str, str, str] = KINDS,
        fills: Mapping[str, Fill] | None = None, distributions: tuple[str, ...] = ("normal",), factors: int = 2,
    ) -> None:  # fmt: skip
        self._truth, self._timed, self._check = truth, timed, small
        self._kinds = dict(zip(("x", "w", "y"), kinds, strict=True))
        self._fills = dict(fills or {})
        self.distributions = distributions
        self._factors = factors

    def cases(self, target: str) -> tuple[Case, ...]:
        return (self._case("big", "tune", 4096, 1.5), self._case("odd", "check", 7, 2.5 if self._factors > 1 else 1.5))

    def neighbours(self, case: Case) -> tuple[Case, ...]:
        return (self._case("near", "check", 5, 1.5),)

    def _case(self, name: str, group: Any, rows: int, factor: float) -> Case:
        return Case(name, group, {"M": rows, "N": 40}, self._kinds, scalars={"a": factor})

    def inputs(self, case: Case, rng: np.random.Generator, distribution: str) -> dict[str, Fill | np.ndarray]:
        flat = Fill("constant", 1.0)
        laws = {"x": flat if distribution == "flat" else Fill(), "w": Fill("normal", 1.0, 0.25)}
        return {**laws, **self._fills}

    def reference(self, inputs: Arrays, case: Case) -> dict[str, np.ndarray]:
        return {"y": self._truth({name: array.astype(np.float64) for name, array in inputs.items()}, case)}

    def tolerance(self, case: Case) -> Tolerance:
        return self._timed if case.group == "tune" else self._check

    def cost(self, case: Case) -> Cost:
        return Cost(1, 1, 1)

    def seeds(self, target: str) -> tuple[Path, ...]:
        return ()

    def oracle(self, target: str) -> Path | None:
        return None


def product(inputs: Arrays, case: Case) -> np.ndarray:
    return np.asarray(case.scalars["a"] * inputs["x"] * inputs["w"])


def seen(operator: Operator) -> Examination:
    return examine(operator, operator.cases("cpu"))


def chosen(found: Examination, subject: str, case: str = "near", law: str = "normal") -> Probe:
    (probe,) = (p for p in found.probes if (p.subject, p.case, p.law) == (subject, case, law))
    return probe


def faults(found: Examination) -> set[tuple[str, str]]:
    return {(p.subject, p.outcome) for p in found.probes if p.outcome in ("warning", "problem")}


def test_a_sound_operator_passes_every_filter() -> None:
    found = seen(Made(product))
    assert faults(found) == set()
    assert (found.cases, found.left) == (2, 0)
    assert {p.filter for p in found.probes} == {
        "null kernels", "sensitivity", "scalars", "finite truth", "rounded truth",
    }  # fmt: skip
    nulls = {p.subject for p in found.probes if p.filter == "null kernels"}
    assert nulls == {
        "zeros as y", "ones as y", "the y of other inputs", "x as y", "w as y", "the mean as y",
        "its row's mean as y", "the mean row as y", "y 1 % too large", "y with a row of zeros",
        "y with an element 10 tolerances off", "y rounded to tf32 or fp16", "y rounded to bf16",
        "y rounded to fp8 (e4m3)",
    }  # fmt: skip
    assert chosen(found, "y with an element 10 tolerances off").margin == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("where", ["timed", "small"])
def test_a_loose_tolerance_lets_null_kernels_pass_be_it_that_of_timed_cases_only(where: str) -> None:
    loose = Tolerance(rms=2.0, max=1e9)
    operator = Made(product, timed=loose) if where == "timed" else Made(product, small=loose)
    weakest = weakest_null(operator, operator.cases("cpu"))
    assert weakest is not None
    assert (weakest.case in ("near", "odd"), weakest.outcome) == (True, "problem")
    assert weakest.margin < 0.1
    assert ("zeros as y", "problem") in faults(seen(operator))


def test_a_constant_truth_is_found() -> None:
    weakest = weakest_null(operator := Made(lambda inputs, case: np.full_like(inputs["x"], 3.0)), operator.cases("cpu"))
    assert weakest is not None
    assert (weakest.filter, weakest.margin) == ("null kernels", 0.0)
    assert {("the mean as y", "problem"), ("x redrawn", "problem"), ("w redrawn", "problem")} <= faults(seen(operator))


def test_rows_that_are_alike_are_found() -> None:
    found = seen(Made(lambda inputs, case: np.zeros_like(inputs["x"]) + case.scalars["a"] * inputs["w"]))
    assert chosen(found, "the mean row as y").margin < 0.1  # its rounding
    assert chosen(found, "its row's mean as y").margin > 1e3
    assert ("the mean row as y", "problem") in faults(found)


def test_an_input_without_effect_is_a_problem() -> None:
    found = seen(Made(lambda inputs, case: np.asarray(case.scalars["a"] * inputs["x"] + 1e-9 * inputs["w"])))
    assert ("w redrawn", "problem") in faults(found)
    assert chosen(found, "x redrawn").margin > 1e3


def test_an_element_that_drowns_in_a_sum_is_a_warning_and_its_order_is_free() -> None:
    loose = Tolerance(rms=0.1, max=0.1)
    fills = {"x": Fill("normal", 10.0, 1.0)}

    def mean(inputs: Arrays, case: Case) -> np.ndarray:
        scale = case.scalars["a"] * inputs["w"]
        return np.asarray(np.square(inputs["x"]).mean(axis=1, keepdims=True) * scale)

    found = seen(Made(mean, timed=loose, small=loose, fills=fills))
    assert 0 < chosen(found, "one element of x").margin < 1
    assert chosen(found, "one element of x").outcome == "warning"
    assert (chosen(found, "x in another order").outcome, chosen(found, "one element of w").outcome) == ("ok", "ok")


def test_an_order_that_the_tolerance_hides_is_a_warning() -> None:
    def nearly_even(inputs: Arrays, case: Case) -> np.ndarray:
        weights = 1.0 + 1e-6 * np.arange(inputs["x"].shape[1])
        return np.asarray((inputs["x"] * weights).sum(axis=1, keepdims=True) * case.scalars["a"] * inputs["w"])

    fills = {"x": Fill("uniform", 1.0, 2.0)}
    probe = chosen(seen(Made(nearly_even, timed=(loose := Tolerance(1e-3, 1e-3)), small=loose, fills=fills)),
                   "x in another order")  # fmt: skip
    assert 1e-6 < probe.margin < 1
    assert probe.outcome == "warning"


def test_an_input_that_every_draw_shares_is_left_out() -> None:
    found = seen(Made(product, fills={"w": Fill("constant", 3.0)}))
    assert not [p for p in found.probes if p.subject.startswith("w redrawn")]


def test_a_truth_that_is_not_finite_is_counted() -> None:
    with np.errstate(invalid="ignore"):
        found = seen(Made(lambda inputs, case: np.sqrt(inputs["x"]) * inputs["w"] * case.scalars["a"]))
    probe = next(p for p in found.probes if p.filter == "finite truth" and p.case == "near")
    assert 50 < probe.margin < 150  # half of 200 elements
    assert str(probe) == f"y on near under 'normal': {probe.margin:.0f} not finite"
    assert probe.outcome == "problem"


def test_a_tolerance_below_the_output_types_own_rounding_is_a_problem() -> None:
    found = seen(Made(product, kinds=("bf16", "bf16", "bf16")))
    probe = next(p for p in found.probes if p.filter == "rounded truth" and p.case == "near")
    assert probe.margin > 100
    assert probe.outcome == "problem"


def test_lower_precision_is_a_null_kernel_unless_the_inputs_are_no_better() -> None:
    loose = Tolerance(rms=6e-3, max=6e-3)
    wide, narrow = (
        seen(Made(product, timed=loose, small=loose, kinds=kinds)) for kinds in (KINDS, ("bf16", "fp32", "fp32"))
    )
    assert {("y rounded to bf16", "problem"), ("y rounded to tf32 or fp16", "problem")} == faults(wide)
    assert faults(narrow) == set()
    rounded = {p.subject for p in narrow.probes if "rounded to" in p.subject}
    assert rounded == {"y rounded to fp8 (e4m3)"}
    assert chosen(narrow, "y rounded to fp8 (e4m3)").margin > 2


@pytest.mark.parametrize(("dtype", "subject"), [("bf16", "y rounded to bf16"), ("fp16", "y rounded to tf32 or fp16")])
def test_rounding_is_that_of_the_type(dtype: str, subject: str) -> None:
    operator = Made(lambda inputs, case: inputs["x"])
    case = operator.neighbours(operator.cases("cpu")[0])[0]
    probe = chosen(seen(operator), subject)
    from evo.fitness import filters

    x = host_inputs(operator, case, "normal", filters._rng(case, "normal", "inputs"))["x"]
    wanted: Deviation = deviation(x.astype(numpy_dtype(dtype)), x)
    assert probe.margin == pytest.approx(filters.excess(wanted, TIGHT), rel=1e-6)


def test_a_scalar_that_never_changes_or_never_matters_is_a_warning() -> None:
    assert faults(seen(Made(product, factors=1))) == {("scalar a, 1.5 everywhere", "warning")}
    blind = seen(Made(lambda inputs, case: inputs["x"] * inputs["w"]))
    assert [p.outcome for p in blind.probes if p.filter == "scalars"] == ["warning"]


def test_what_is_right_by_nature_under_another_law_is_no_fault() -> None:
    found = seen(Made(lambda inputs, case: inputs["x"] * inputs["w"] * case.scalars["a"] / 1.5,
                      distributions=("normal", "flat")))  # fmt: skip
    assert chosen(found, "w as y", law="flat").outcome == "exception"
    assert chosen(found, "w as y").outcome == "ok"
    assert faults(found) == set()


def test_small_cases_stand_for_all_timed_ones() -> None:
    operator = Made(product)
    big, odd = operator.cases("cpu")
    near, check = small_cases(operator, [big, replace(big, name="bigger"), odd])
    assert (near.case.name, [case.name for case in near.timed]) == ("near", ["big", "bigger"])
    assert (check.case.name, check.timed) == ("odd", ())


def test_rmsnorm_holds() -> None:
    operator = RmsNorm()
    cases = operator.cases("cpu")[:4]  # those that are tuned; all of them are tested by the contract
    assert weakest_null(operator, cases) is None
    found = examine(operator, cases)
    assert faults(found) == set()
    assert found.left == 0

"""KDA: what a case may be, what is in it, how exact it must be; and the matrix of FlashKDA's tests."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evo.errors import UsageError
from evo.fitness.compare import deviation
from evo.fitness.filters import host_inputs
from evo.operators.kda import Kda, cases, contents, exact

ROOT = Path(__file__).resolve().parent.parent
SEEDS = ROOT / "operators" / "kda" / "seeds"
KDA = Kda()
Array = np.ndarray[Any, Any]
RAGGED = cases.make("r", "check", 2, lengths=(3, 5))
FIXED = cases.make("f", "check", 2, tokens=8, batch=2)


# --- bad input


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        ({"dims": {**RAGGED.dims, "H": 0}}, "H is 0", "sizes are integers from 1 on"),
        ({"dims": {**RAGGED.dims, "K": 64}}, "K is 64", "K and V are 128 each"),
        ({"dims": {**RAGGED.dims, "V": 256}}, "V is 256", "K and V are 128 each"),
        (
            {"dtypes": {**RAGGED.dtypes, "final_state": "bf16"}},
            "the initial state is fp32, the final one bf16",
            "one type",
        ),
        ({"scalars": {"scale": 0.1, "lower_bound": -5.5}}, "lower_bound is -5.5", "from -5 to 0"),
        ({"scalars": {"scale": 0.1, "lower_bound": 0.5}}, "lower_bound is 0.5", "from -5 to 0"),
        ({"scalars": {"scale": 0.1, "lower_bound": float("nan")}}, "lower_bound is nan", "from -5 to 0"),
        ({"scalars": {"scale": float("inf"), "lower_bound": -5.0}}, "scale is inf", "give a number"),
        ({"data": {"lengths": (8, 0)}}, r"sequence 1 is empty \(cu_seqlens 8, 8\)", "leave it out"),
        ({"data": {"lengths": (9, -1)}}, "cu_seqlens falls from 9 to 8", "sort it"),
        ({"data": {"lengths": (3, 6)}}, "cu_seqlens ends at 9, T is 8", "number of tokens"),
        ({"data": {"lengths": (8,)}}, "1 lengths for N = 2", "a length for every sequence"),
        ({"dims": {**RAGGED.dims, "B": 2}}, "B is 2 with cu_seqlens", "B = 1"),
    ],
)
def test_a_case_that_is_none_is_refused(change: dict[str, Any], what: str, fix: str) -> None:
    KDA.validate(RAGGED)
    with pytest.raises(UsageError, match=what) as caught:
        KDA.validate(replace(RAGGED, **change))
    assert fix in str(caught.value.fix)


def test_without_cu_seqlens_every_batch_row_is_a_sequence() -> None:
    KDA.validate(FIXED)
    with pytest.raises(UsageError, match="N is 3, B is 2"):
        KDA.validate(replace(FIXED, dims={**FIXED.dims, "N": 3}))
    with pytest.raises(UsageError, match="has lengths but no cu_seqlens"):
        KDA.validate(replace(FIXED, data={"lengths": (8, 8)}))


@pytest.mark.parametrize(
    ("edges", "what"),
    [
        ([1, 3, 8], "cu_seqlens starts at 1"),
        ([0, 5, 3, 8], "cu_seqlens falls from 5 to 3"),
        ([0, 3, 7], "cu_seqlens ends at 7, T is 8"),
        ([0, 3, 3, 8], "sequence 1 is empty"),
        ([8], r"cu_seqlens holds \[8\]"),
    ],
)
def test_the_reference_refuses_edges_that_are_none(edges: list[int], what: str) -> None:
    inputs = host_inputs(KDA, RAGGED, "normal", np.random.default_rng(1))
    inputs["cu_seqlens"] = np.array(edges, np.int64)
    with pytest.raises(UsageError, match=what):
        KDA.reference(inputs, RAGGED)


# --- contents


def gate(made: Mapping[str, Any], g: Array, lower_bound: float = -5.0) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(lower_bound / (1 + np.exp(-np.exp(made["A_log"])[:, None] * (g + made["dt_bias"]))))


@pytest.mark.parametrize(("law", "least", "most"), [("weak", -0.6, 0.0), ("saturated", -5.0, 0.0)])
def test_weak_gates_forget_nothing_and_saturated_ones_lie_at_the_ends(law: str, least: float, most: float) -> None:
    case, rng = cases.make("x", "check", 4, tokens=64), np.random.default_rng(3)
    first = gate(contents.inputs(case, rng, law), rng.standard_normal((64, 4, 128)))[:, 0]
    assert least <= first.min()
    assert first.max() <= most
    assert ((first < -4.9) | (first > -0.1)).mean() > 0.85


@pytest.mark.parametrize("heads", [4, 96])
@pytest.mark.parametrize("law", contents.DISTRIBUTIONS)
def test_every_law_but_the_timed_one_has_every_kind_of_gate(law: str, heads: int) -> None:
    case = cases.make("x", "tune", heads, tokens=64)
    for seed in range(5):
        bias = contents.inputs(case, np.random.default_rng(seed), law)["dt_bias"]
        assert isinstance(bias, np.ndarray)
        weak, ends = (bias < -5.9).all(axis=1), np.abs(bias).max(axis=1) > 20
        assert weak.sum() == ends.sum() == (0 if law == "normal" else heads // 4)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_every_timed_case_has_neighbours_that_forget_nothing_and_that_have_every_gate(target: str) -> None:
    for case in KDA.cases(target):
        if case.group != "check":
            mixed, weak = KDA.neighbours(case)
            assert (mixed.distribution, mixed.dims["H"]) == ("mixed", 4)
            assert weak.scalars["lower_bound"] == cases.WEAK_BOUND
            assert weak.present == case.present  # with a random initial state where the case has one


def test_drawn_cases_are_legal_small_and_not_the_same() -> None:
    rng, seen = np.random.default_rng(5), set()
    timed = [case for case in KDA.cases("sm_90") if case.group != "check"]
    for case in timed:
        (near,) = KDA.drawn_near(case, rng)
        KDA.validate(near)
        assert (near.group, near.present, dict(near.dtypes)) == ("check", case.present, dict(case.dtypes))
        assert near.dims["B"] * near.dims["T"] <= 4 * 48
        seen.add((*near.dims.values(), *near.scalars.values()))
    assert len(seen) == len(timed)
    assert KDA.drawn_near(RAGGED, rng) == ()
    (drawn,) = KDA.drawn(KDA.cases("sm_90"), rng)
    KDA.validate(drawn)
    assert KDA.drawn((), rng) == ()


def test_the_lists_of_the_published_tests_are_there() -> None:
    checks = [case for case in KDA.cases("sm_90") if case.group == "check"]
    lists = {case.data.get("lengths") for case in checks}
    assert {lengths for lengths in cases.RAGGED.values() if sum(lengths) < 1000} <= lists
    modes = {(*sorted(set(cases.STATES) & c.present), c.dtypes.get("initial_state", "")) for c in checks}
    assert len(modes) >= 6
    names = {case.name for case in KDA.cases("sm_90") if case.group == "holdout"}
    assert {"h64-fixed-weak", "h12-8192x4", "h24-8192x1", "h96-bf16-states"} <= names


def test_the_timed_law_is_held_to_more_than_a_case_that_forgets_nothing() -> None:
    """A state in bf16, as FlashKDA has it between chunks, adds up where nothing is forgotten."""
    found = {case.name: KDA.tolerance(case).rms for case in KDA.cases("sm_90")}
    assert {found[name] for name in ("h96-fixed", "h12-8192x4", "h96-bf16-states")} == {6e-3}
    assert {found[name] for name in ("h64-fixed-weak", "t320-weak", "ragged-tails")} == {9e-3}
    case = cases.make("x", "check", 1, tokens=256, lower_bound=cases.WEAK_BOUND)
    inputs = host_inputs(KDA, case, "normal", np.random.default_rng(4))
    flat = {name: inputs[name][0] for name in ("q", "k", "v", "g", "beta")}
    rounded = exact.forward(
        **flat, a_log=inputs["A_log"], dt_bias=inputs["dt_bias"], initial_state=inputs["initial_state"],
        scale=cases.SCALE, lower_bound=cases.WEAK_BOUND, bounds=cases.bounds(case),
    )  # fmt: skip
    truth = KDA.reference(inputs, case)
    for name, got in zip(("out", "final_state"), rounded, strict=True):
        limit, found_here = KDA.tolerance(case), deviation(got.reshape(truth[name].shape), truth[name], 1.0)
        assert 5e-3 < found_here.rms < limit.rms
        assert found_here.row < limit.row


# --- the matrix of the published tests


def matrix(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "matrix.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "kda_matrix.py"), *words, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert out.is_file(), done.stderr
    return done.returncode, json.loads(out.read_text())


def test_the_matrix_is_584_tests() -> None:
    spec = importlib.util.spec_from_file_location("kda_matrix", ROOT / "benchmarks" / "kda_matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    tests = list(module.published())
    assert Counter(test.family for test in tests) == {
        "fixed": 288, "ragged": 192, "batched": 96, "long": 4, "functions": 4,
    }  # fmt: skip
    assert len({case.name for test in tests for case in test.cases}) == 580 + 2 + 20
    again = list(module.harder(tests))
    assert len(again) == 580 + 1
    assert not any(test.counted for test in again)
    assert {case.scalars["lower_bound"] for test in again[:-1] for case in test.cases} == {cases.WEAK_BOUND}
    for test in (*tests[::50], *again[::50], tests[-1]):
        operator = module.Matrix(test.state, [test], exact=True)
        for case in test.cases[-1:]:
            operator.validate(case)
            assert operator.output_tolerance(case, "final_state").rms == 0


def test_the_matrix_builds(tmp_path: Path) -> None:
    words = ("--target", "sm_90", "--build-only", "--only", "fixed h1-t16 fp32 *")
    code, found = matrix(tmp_path, "--genome", str(SEEDS / "recurrent.cu"), *words)
    assert code == 0
    assert found["passed"] == found["counted"] == sum(test["counted"] for test in found["tests"])
    assert len(found["tests"]) == 8
    assert all(spills == 0 for kernels in found["registers_and_spills"].values() for _, spills in kernels.values())


def test_the_matrix_finds_a_kernel_with_a_lower_bound_of_its_own(tmp_path: Path) -> None:
    """On the CPU, by the same path as on a GPU: what the published contents cannot see, the remembered states show."""
    file = tmp_path / "own.cpp"
    source = (SEEDS / "recurrent.cpp").read_text()
    file.write_text(source.replace("expf(lower_bound /", "expf(-5.0f /"))
    assert file.read_text() != source
    words = ("--target", "cpu", "--only", "fixed h1-t17 fp32 *")
    code, found = matrix(tmp_path, "--genome", str(file), *words)
    assert code == 1
    assert (found["passed"], found["counted"]) == (4, 4)
    assert found["families"] == {"fixed": {"passed": 4, "failed": 0}, "fixed, remembered": {"passed": 0, "failed": 4}}
    bad = next(test for test in found["tests"] if test["status"] != "ok")
    assert bad["status"] == "wrong_result"
    assert "relative RMS error" in bad["message"]

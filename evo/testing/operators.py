"""What every operator must keep."""

from __future__ import annotations

import numpy as np
import pytest

from evo.dtypes import numpy_dtype
from evo.fitness.compare import deviation
from evo.genome import Genome, buffer_shapes, uncovered
from evo.operator import Case, Fill, Operator
from evo.target import Target


def contents(data: Fill | np.ndarray, shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """A fill made on the host, rounded to its dtype."""
    if not isinstance(data, Fill):
        return data
    rows = shape[:-1] + (1,) if shape else shape
    if data.law == "constant":
        made = np.full(shape, data.a)
    else:
        made = (rng.normal if data.law == "normal" else rng.uniform)(data.a, data.b, shape)
    made = made * 2.0 ** rng.uniform(*data.row_log2, rows)
    made = np.where(rng.random(shape) < data.outlier_rate, made * data.outlier_scale, made)
    return np.asarray(made).astype(numpy_dtype(dtype))


class OperatorContract:
    """Needs a fixture `operator`; `target_names` says for which targets it has cases."""

    target_names: tuple[str, ...] = ("cpu",)

    @pytest.fixture
    def operator(self) -> Operator:
        raise NotImplementedError("provide the operator")

    def _small(self, operator: Operator) -> list[Case]:
        cases = []
        for target in self.target_names:
            every = operator.cases(target)
            cases += [case for case in every if case.group == "check"]
            cases += [near for case in every if case.group == "tune" for near in operator.neighbours(case)]
        return list({case.name: case for case in cases}.values())

    def _inputs(self, operator: Operator, case: Case, law: str, seed: int) -> dict[str, np.ndarray]:
        rng, shapes = np.random.default_rng(seed), buffer_shapes(operator, case)
        made = operator.inputs(case, rng, law)
        return {name: contents(data, shapes[name], case.dtypes[name], rng) for name, data in made.items()}

    def test_case_names_are_unique(self, operator: Operator) -> None:
        for target in self.target_names:
            names = [case.name for case in operator.cases(target)]
            assert names
            assert len(names) == len(set(names))

    def test_cases_fit_the_tensors(self, operator: Operator) -> None:
        tensors = {tensor.name: tensor for tensor in operator.tensors}
        for target in self.target_names:
            for case in operator.cases(target):
                assert set(case.dims) == set(operator.dims), case.name
                for name, dtype in case.dtypes.items():
                    assert dtype in tensors[name].dtypes, (case.name, name)
                assert {s.name for s in operator.scalars} == set(case.scalars), case.name
                assert all(size > 0 for shape in buffer_shapes(operator, case).values() for size in shape)

    def test_something_is_tuned(self, operator: Operator) -> None:
        for target in self.target_names:
            assert any(case.group == "tune" for case in operator.cases(target))

    def test_neighbours_are_small_checks_of_the_same_dtypes(self, operator: Operator) -> None:
        for target in self.target_names:
            for case in operator.cases(target):
                for near in operator.neighbours(case):
                    assert near.group == "check"
                    assert dict(near.dtypes) == dict(case.dtypes)
                    assert near.present == case.present

    def test_inputs_are_all_there_and_of_their_shape(self, operator: Operator) -> None:
        for case in self._small(operator):
            for law in operator.distributions:
                made, shapes = self._inputs(operator, case, law, 1), buffer_shapes(operator, case)
                wanted = {t.name for t in operator.tensors if t.role != "out" and t.name in shapes}
                assert set(made) == wanted
                assert all(made[name].shape == shapes[name] for name in made)

    def test_reference_gives_every_output_in_float64(self, operator: Operator) -> None:
        for case in self._small(operator):
            truth = operator.reference(self._inputs(operator, case, case.distribution, 2), case)
            shapes = buffer_shapes(operator, case)
            assert set(truth) == {t.name for t in operator.tensors if t.role != "in" and t.name in shapes}
            for name, array in truth.items():
                assert array.dtype == np.float64
                assert array.shape == shapes[name]

    def test_truth_rounded_to_the_output_type_is_within_the_tolerance(self, operator: Operator) -> None:
        for case in self._small(operator):
            for law in operator.distributions:
                truth, limit = operator.reference(self._inputs(operator, case, law, 3), case), operator.tolerance(case)
                for name, array in truth.items():
                    found = deviation(array.astype(numpy_dtype(case.dtypes[name])), array)
                    assert found.rms <= limit.rms, (case.name, law)
                    assert found.max <= limit.max, (case.name, law)

    def test_null_kernels_fail_on_every_case(self, operator: Operator) -> None:
        """Zeros, ones and a copy of any input of the same shape must not pass for the truth."""
        for case in self._small(operator):
            inputs = self._inputs(operator, case, case.distribution, 4)
            limit = operator.tolerance(case)
            for array in operator.reference(inputs, case).values():
                guesses = [np.zeros_like(array), np.ones_like(array)]
                guesses += [each.astype(np.float64) for each in inputs.values() if each.shape == array.shape]
                for guess in guesses:
                    found = deviation(guess, array)
                    assert found.rms > limit.rms or found.max > limit.max, case.name

    def test_every_input_matters(self, operator: Operator) -> None:
        for case in self._small(operator):
            first, second = (self._inputs(operator, case, case.distribution, seed) for seed in (5, 6))
            truth, limit = operator.reference(first, case), operator.tolerance(case)
            for name in first:
                other = operator.reference({**first, name: second[name]}, case)
                moved = max(deviation(other[out], truth[out]).rms for out in truth)
                assert moved > limit.rms, (case.name, name)

    def test_cost_and_tolerance_are_positive(self, operator: Operator) -> None:
        for target in self.target_names:
            for case in operator.cases(target):
                cost, limit = operator.cost(case), operator.tolerance(case)
                assert min(cost.bytes_read, cost.bytes_written, cost.flops) > 0
                assert 0 < limit.rms <= limit.max

    def test_seeds_cover_every_tuned_case_together(self, operator: Operator, target: Target) -> None:
        genomes = [Genome.read(path) for path in operator.seeds(target.name)]
        facts = target.nominal()
        for genome in genomes:
            genome.contract(operator)
        for case in operator.cases(target.name):
            if case.group == "tune":
                reasons = [uncovered(g, operator, case, g.defaults(), facts) for g in genomes]
                assert "" in reasons, (case.name, reasons)

    def test_oracle_covers_everything(self, operator: Operator, target: Target) -> None:
        path = operator.oracle(target.name)
        if path is None:
            return
        genome = Genome.read(path)
        genome.contract(operator)
        for case in operator.cases(target.name):
            for each in (case, *operator.neighbours(case)):
                assert uncovered(genome, operator, each, genome.defaults(), target.nominal()) == ""

    @pytest.fixture
    def target(self) -> Target:
        raise NotImplementedError("provide a target that the operator has seeds for")

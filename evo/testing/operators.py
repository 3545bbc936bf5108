"""What every operator must keep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from evo.dtypes import numpy_dtype
from evo.fitness.cpu.contents import fill
from evo.fitness.filters import (
    Probe,
    Small,
    all_sensitivity_probes,
    host_inputs,
    null_probes,
    small_cases,
    truth_probes,
)
from evo.genome import Genome, buffer_shapes, uncovered
from evo.operator import Case, Fill, Operator
from evo.target import Target


def contents(data: Fill | np.ndarray, shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """A fill made on the host, rounded to its dtype."""
    if not isinstance(data, Fill):
        return data
    made = np.empty(shape, numpy_dtype(dtype))
    fill(made, data, int(rng.integers(1 << 62)))
    return made


def problems(probes: Sequence[Probe]) -> list[str]:
    return [str(probe) for probe in probes if probe.outcome == "problem"]


class OperatorContract:
    """Needs a fixture `operator`; `target_names` says for which targets it has cases."""

    target_names: tuple[str, ...] = ("cpu",)

    @pytest.fixture
    def operator(self) -> Operator:
        raise NotImplementedError("provide the operator")

    def _filtered(self, operator: Operator) -> list[Small]:
        every = {case.name: case for target in self.target_names for case in operator.cases(target)}
        return small_cases(operator, [case for case in every.values() if case.group != "holdout"])

    def _small(self, operator: Operator) -> list[Case]:
        return [small.case for small in self._filtered(operator)]

    def _inputs(self, operator: Operator, case: Case, law: str, seed: int) -> dict[str, np.ndarray]:
        return host_inputs(operator, case, law, np.random.default_rng(seed))

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

    def test_every_case_is_a_legal_one(self, operator: Operator) -> None:
        for target in self.target_names:
            for case in operator.cases(target):
                for each in (case, *operator.neighbours(case)):
                    operator.validate(each)

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

    def test_truth_is_finite_and_passes_when_rounded_to_the_output_type(self, operator: Operator) -> None:
        for small in self._filtered(operator):
            for law in operator.distributions:
                assert problems(truth_probes(operator, small, law)) == []

    def test_null_kernels_fail_on_every_case(self, operator: Operator) -> None:
        """Under the law that decides, see `evo.fitness.filters`; `evo doctor --operator` shows the margins."""
        for small in self._filtered(operator):
            assert problems(null_probes(operator, small, small.law)) == []

    def test_every_input_matters(self, operator: Operator) -> None:
        seen, _ = all_sensitivity_probes(operator, self._filtered(operator), limit_s=5.0)
        assert seen
        assert problems(seen) == []

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

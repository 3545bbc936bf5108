"""Plugins: every hook, where things come from, and what a broken third party does."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evo.errors import UnknownNameError, UsageError
from evo.operator import Operator
from evo.plugins import Plugins, builtins, hookimpl, hookspecs
from evo.target import Target
from evo.testing import OperatorContract

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "plugins" / "examples" / "evo-scale"
HOOKS = sorted(name for name, hook in inspect.getmembers(hookspecs, inspect.isfunction) if hasattr(hook, "evo_spec"))


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example distribution's module, loaded by path."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield importlib.import_module("evo_scale")
    for name in ("evo_scale", "evo_scale.operator"):
        sys.modules.pop(name, None)


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution with one plugin module, as far as import and metadata can tell."""
    modules = []
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(distribution: str, module: str, source: str, version: str = "1.2") -> None:
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[evo]\n{module} = {module}\n")
        importlib.invalidate_caches()
        modules.append(module)

    yield run
    for module in modules:
        sys.modules.pop(module, None)


def plugin(**hooks: Callable[..., None]) -> ModuleType:
    module = ModuleType("local")
    for name, hook in hooks.items():
        setattr(module, name, hookimpl(hook))
    return module


def shaped_like(protocol: type, name: str) -> Any:
    members = [member for member in vars(protocol) if not member.startswith("_")]
    return SimpleNamespace(**{member: name for member in members})


OPERATOR = """
from evo.plugins import hookimpl

@hookimpl
def evo_operators(register):
    from evo_scale.operator import Scale
    register(Scale())
"""


def test_evo_operators_gives_the_example_with_its_distribution(scale: ModuleType, install: Install) -> None:
    install("evo-scale-kernels", "scale_plugin", OPERATOR)
    plugins = Plugins.load()
    found = {entry.name: entry for entry in plugins.operators()}
    assert (found["scale"].distribution, found["scale"].version) == ("evo-scale-kernels", "1.2")
    assert found["rmsnorm"].distribution == "evo-kernels"
    assert plugins.operator("scale") is found["scale"].item


def test_evo_targets_registers_a_target() -> None:
    from evo.target import Target

    mine = shaped_like(Target, "tpu")
    plugins = Plugins.load(entry_points=False, modules=[plugin(evo_targets=lambda register: register(mine))])
    assert plugins.target("tpu") is mine
    assert {"cpu", "sm_90", "sm_100", "tpu"} <= {entry.name for entry in plugins.targets()}


def test_evo_mutators_registers_a_mutator() -> None:
    from evo.mutators.base import Mutator

    mine = shaped_like(Mutator, "swap")
    plugins = Plugins.load(entry_points=False, modules=[plugin(evo_mutators=lambda register: register(mine))])
    entries = plugins.mutators()
    assert entries[-1].item is mine
    assert {"uniform-mutation", "creep-mutation", "uniform-crossover", "two-point-crossover"} < {
        e.name for e in entries
    }


def test_every_hook_has_a_docstring_a_doc_line_a_built_in_and_a_test() -> None:
    documentation = (ROOT / "docs" / "plugins.md").read_text()
    tests = [name for name in globals() if name.startswith("test_")]
    assert HOOKS == ["evo_mutators", "evo_operators", "evo_targets"]
    for name in HOOKS:
        assert inspect.getdoc(getattr(hookspecs, name)), name
        assert f"| `{name}(register)` |" in documentation, name
        assert hasattr(builtins, name), name
        assert any(name in test for test in tests), name


def test_built_ins_are_registered_once_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    with_metadata = [entry.name for entry in Plugins.load().operators()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    without = Plugins.load().operators()
    assert [entry.name for entry in without] == with_metadata
    assert {entry.distribution for entry in without} == {"evo-kernels"}


def test_loading_twice_gives_independent_managers() -> None:
    only = plugin(evo_targets=lambda register: None)
    assert [e.name for e in Plugins.load(False, [only]).targets()] == [e.name for e in Plugins.load(False).targets()]


def test_unknown_names_come_with_near_matches() -> None:
    with pytest.raises(UnknownNameError, match=r"(?s)unknown operator 'rmsnrom'.*did you mean rmsnorm") as caught:
        Plugins.load(entry_points=False).operator("rmsnrom")
    assert caught.value.near[0] == "rmsnorm"


def test_a_taken_name_names_both_distributions(scale: ModuleType, install: Install) -> None:
    install("first-kernels", "first_plugin", OPERATOR)
    install("second-kernels", "second_plugin", OPERATOR)
    with pytest.raises(UsageError, match=r"'scale' is registered by first-kernels 1.2 and by second-kernels 1.2"):
        Plugins.load().operators()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module", "cannot be imported .* ModuleNotFoundError.*no_such_module.*sad_plugin.py:1"),
        (
            "from evo.plugins import hookimpl\n@hookimpl\ndef evo_operators(register):\n    1 / 0\n",
            "failed in evo_operators: ZeroDivisionError.*sad_plugin.py:4",
        ),
        (
            "from evo.plugins import hookimpl\n@hookimpl\ndef evo_operatrs(register): ...\n",
            "does not fit.*evo_operatrs",
        ),
        ("from evo.plugins import hookimpl\n@hookimpl\ndef evo_operators(take): ...\n", "does not fit.*take"),
        (
            "from evo.plugins import hookimpl\n@hookimpl\ndef evo_operators(register): register(3)\n",
            "registered 3 through evo_operators.*no evo.operator.Operator",
        ),
        (
            "from evo.plugins import hookimpl\n@hookimpl\ndef evo_operators(register): register(int)\n",
            "it is a class, not an instance",
        ),
    ],
)
def test_a_broken_plugin_is_named_and_can_be_disabled(
    install: Install, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    install("sad-kernels", "sad_plugin", source)
    with pytest.raises(UsageError, match=f"(?s){message}") as caught:
        Plugins.load().operators()
    assert "sad-kernels" in caught.value.what
    assert "EVO_DISABLE_PLUGINS=sad_plugin" in caught.value.fix
    for name in ("sad_plugin", "other, sad-kernels"):
        monkeypatch.setenv("EVO_DISABLE_PLUGINS", name)
        assert "rmsnorm" in [entry.name for entry in Plugins.load().operators()]


def test_a_target_that_lacks_a_method_is_refused() -> None:
    incomplete = SimpleNamespace(name="tpu", build=print)
    module = plugin(evo_targets=lambda register: register(incomplete))
    with pytest.raises(UsageError, match=r"evo.target.Target also has .*toolchain.*open"):
        Plugins.load(entry_points=False, modules=[module]).targets()


def test_the_built_ins_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVO_DISABLE_PLUGINS", "builtins")
    assert Plugins.load(entry_points=False).operators() == []


def test_the_example_operator_computes_what_it_says(scale: ModuleType) -> None:
    operator = Plugins.load(entry_points=False, modules=[scale]).operator("scale")
    case = next(case for case in operator.cases("cpu") if case.group == "tune")
    x = np.array([1.0, -2.0, 0.5], dtype=np.float32)
    assert operator.reference({"x": x}, case)["y"].tolist() == [2.5, -5.0, 1.25]
    assert operator.cost(case).bytes_read == 4 * case.dims["N"]


class TestScale(OperatorContract):
    """The contract that every operator inherits, as a third party's tests would."""

    @pytest.fixture
    def operator(self, scale: ModuleType) -> Operator:
        return Plugins.load(entry_points=False, modules=[scale]).operator("scale")

    @pytest.fixture
    def target(self) -> Target:
        return Plugins.load(entry_points=False).target("cpu")


def test_the_example_genomes_fit_their_operator(scale: ModuleType) -> None:
    from evo.genome import Genome

    operator = Plugins.load(entry_points=False, modules=[scale]).operator("scale")
    oracle = operator.oracle("cpu")
    assert oracle is not None
    for path in (*operator.seeds("cpu"), oracle):
        Genome.read(path).contract(operator)
    assert Genome.read(operator.seeds("cpu")[0]).defaults() == {"ITEMS": 16384, "GROUP": 8}

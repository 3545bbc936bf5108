"""What a source sees of gene values and case: macros, or `${NAME}` in PTX; and the compile request made of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import NamedTuple

from evo.errors import GenomeError
from evo.genome.genes import abridged
from evo.genome.genome import PLACEHOLDER, Genome
from evo.genome.launches import LaunchSpec
from evo.genome.scope import Scope, case_names, dtype_of
from evo.operator import Case, Operator
from evo.records import CompileRequest, Value, Values


class TypeNames(NamedTuple):
    """An element type as C++ and as PTX spell it."""

    c: str
    ptx: str


TYPES = {
    "bf16": TypeNames("evo_bf16", "bf16"), "fp16": TypeNames("evo_fp16", "f16"), "fp32": TypeNames("float", "f32"),
    "fp64": TypeNames("double", "f64"), "u8": TypeNames("unsigned char", "u8"), "i8": TypeNames("signed char", "s8"),
    "i32": TypeNames("int", "s32"), "u32": TypeNames("unsigned", "u32"), "i64": TypeNames("long long", "s64"),
    "u64": TypeNames("unsigned long long", "u64"),
}  # fmt: skip


def compile_request(
    genome: Genome, operator: Operator, case: Case, values: Values, *, target: str, arch: str
) -> CompileRequest:
    """What the compiler gets. Equal requests make equal code, so only what the source mentions is in it: a gene that
    reaches no more than the launch, or another header, changes nothing.

    Raises `GenomeError` when the genome is not for this architecture or target, and for an unknown `${NAME}`.
    """
    if genome.arch and arch not in genome.arch:
        raise genome.place("arch").error(f"this genome is for {', '.join(genome.arch)}", arch, "choose another target")
    if (genome.suffix == ".cpp") != (target == "cpu"):
        raise GenomeError(
            f"a {genome.suffix} file cannot run on target {target}",
            file=genome.file,
            fix="the cpu target takes .cpp files, CUDA targets take .cu and .ptx",
        )
    values = genome.values(values)
    macros = _macros(genome, operator, case, values)
    is_ptx = genome.suffix == ".ptx"
    defines = {} if is_ptx else {name: value for name, value in macros.items() if name in genome.mentions}
    return CompileRequest(
        target=target,
        arch=arch,
        suffix=genome.suffix,
        source=_substituted(genome, macros) if is_ptx else genome.body,
        defines=tuple(sorted((name, _literal(value)) for name, value in defines.items())),
        options=genome.build_options(values),
        kernels=_kernels(genome, operator, case, values),
    )


class _Text(str):
    """A macro whose value is C text to be used as it is, not a string."""

    __slots__ = ()


def _macros(genome: Genome, operator: Operator, case: Case, values: Mapping[str, Value]) -> dict[str, Value]:
    """Every macro by name: integers, texts (string genes) and `_Text` (types)."""
    ptx = genome.suffix == ".ptx"
    macros: dict[str, Value] = dict(values)
    for name, value in values.items():
        if isinstance(value, str):
            macros[f"{name}_INDEX"] = genome.genes[name].index(value)
    macros.update({f"DIM_{dim}": int(case.dims[dim]) for dim in genome.static})
    macros.update({f"FLAG_{flag}": int(case.flags.get(flag, False)) for flag in operator.flags})
    for tensor in operator.tensors:
        spelling = TYPES[dtype_of(tensor, case)]
        macros[f"DTYPE_{tensor.name}"] = _Text(spelling.ptx if ptx else spelling.c)
        if tensor.optional:
            macros[f"HAS_{tensor.name}"] = int(tensor.name in case.present)
    return macros


def _literal(value: Value) -> str:
    """C text of a value. String genes hold no quotes and no backslashes, so that nothing needs an escape."""
    if isinstance(value, int):
        return str(value) if value >= 0 else f"({value})"
    return str(value) if isinstance(value, _Text) else f'"{value}"'


def _substituted(genome: Genome, macros: Mapping[str, Value]) -> str:
    """The PTX text with every `${NAME}` replaced; what was put in is not looked at again."""

    def replace(match: re.Match[str]) -> str:
        if match[1] in macros:
            return str(macros[match[1]])
        near = difflib.get_close_matches(match[1], list(macros), n=1)
        raise GenomeError(
            "unknown placeholder",
            file=genome.file,
            line=genome.body.count("\n", 0, match.start()) + 1,
            value=match[0][:80],
            fix=f"did you mean ${{{near[0]}}}?" if near else f"there are {abridged(macros)}",
        )

    return PLACEHOLDER.sub(replace, genome.body)


def _kernels(genome: Genome, operator: Operator, case: Case, values: Values) -> tuple[str, ...]:
    """The kernels that this build must hold: all but those whose `when` is false for reasons that the source sees too
    and may have compiled out."""
    known = _seen_names(genome, operator)
    given = {name: value for name, value in {**values, **case_names(operator, case)}.items() if name in known}
    scope = Scope(given, genome.lets)
    names = [launch.kernel for launch in genome.launches if _may_run(genome, launch, scope)]
    return tuple(dict.fromkeys(names))


def _seen_names(genome: Genome, operator: Operator) -> set[str]:
    """The names of the language whose macros the source mentions."""
    pairs = [(name, name) for name in genome.genes] + [(f"{name}_INDEX", name) for name in genome.genes]
    pairs += [(f"DIM_{dim}", dim) for dim in genome.static] + [(f"FLAG_{flag}", flag) for flag in operator.flags]
    for name in (tensor.name for tensor in operator.tensors):
        pairs += [(f"HAS_{name}", f"has_{name}"), (f"DTYPE_{name}", f"dtype_{name}")]
        pairs.append((f"DTYPE_{name}", f"itemsize_{name}"))
    return {name for macro, name in pairs if macro in genome.mentions}


def _may_run(genome: Genome, launch: LaunchSpec, scope: Scope) -> bool:
    if launch.when is None or not genome.leaves(launch.when.names) <= scope.keys():
        return True
    return bool(launch.when.integer(scope))

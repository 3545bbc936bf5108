"""What `evo operators`, `targets` and `baselines` print: one record a line, the same in tables and in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evo.records import Value


@dataclass(frozen=True, slots=True)
class OperatorRow:
    name: str
    version: str
    summary: str
    distribution: str  # that registered it
    cases: int  # of the tune group, on the default target


@dataclass(frozen=True, slots=True)
class TargetRow:
    name: str
    kind: str  # "cpu", "cuda"
    can_build: bool  # on this machine
    can_run: bool
    devices: tuple[str, ...]  # names of the usable ones
    note: str  # what is missing, and what to do


@dataclass(frozen=True, slots=True)
class BaselineRow:
    operator: str
    name: str
    installed: bool
    version: str
    note: str  # what to install; of a recorded one, where its times are from
    recorded: int = 0  # cases with a time that was measured elsewhere; such rows are no opponents of a run


@dataclass(frozen=True, slots=True)
class GeneRow:
    """One place of a source that can vary. `choices` build and give other machine code than the first, which is the
    present one; `refused` do not build, with the reason; `idle` build but change nothing. `gene` is "" where no choice
    makes a difference."""

    gene: str
    kind: str
    line: int
    choices: tuple[Value, ...]
    refused: Mapping[str, str]
    idle: tuple[Value, ...]

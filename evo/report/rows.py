"""What `evo operators`, `targets` and `baselines` print: one record a line, the same in tables and in JSON."""

from __future__ import annotations

from dataclasses import dataclass


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
    note: str  # what to install

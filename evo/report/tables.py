"""Tables of what is installed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from evo.report.layout import table, text
from evo.report.notation import count
from evo.report.rows import BaselineRow, OperatorRow, TargetRow


def operator_table(rows: Sequence[OperatorRow]) -> Table:
    result = table("operator", "version", "cases", "from", "summary", numbers=["cases"], fold=["summary", "from"])
    for row in rows:
        result.add_row(row.name, row.version, str(row.cases), text(row.distribution), text(row.summary))
    return result


def target_table(rows: Sequence[TargetRow]) -> Table:
    result = table("target", "kind", "builds", "runs", "devices and notes", fold=["devices and notes"])
    for row in rows:
        about = "; ".join(part for part in (", ".join(row.devices), row.note) if part)
        result.add_row(row.name, row.kind, _yes(row.can_build), _yes(row.can_run), text(about))
    return result


def baseline_table(rows: Sequence[BaselineRow]) -> RenderableType:
    if not rows:
        return text("no baseline is registered: the plain seed is the yardstick")
    result = table("operator", "baseline", "installed", "version", "note", fold=["note"])
    for row in rows:
        installed = text(f"recorded, {count(row.recorded, 'case')}", "dim") if row.recorded else _yes(row.installed)
        result.add_row(row.operator, text(row.name), installed, text(row.version), text(row.note))
    return result


def _yes(value: bool) -> Text:
    return text("yes", "green") if value else text("no", "dim")

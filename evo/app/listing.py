"""What is installed: operators, targets, baselines."""

from __future__ import annotations

from evo.app.stand import choose_target, find_target
from evo.operator import Operator, Recorded
from evo.plugins.manager import Plugins
from evo.report.rows import BaselineRow, OperatorRow, TargetRow


def list_operators() -> list[OperatorRow]:
    """Every registered operator and the distribution that it comes from."""
    rows = []
    for registered in Plugins.load().operators():
        item = registered.item
        count = len({case.name for target in ("cpu", "sm_90") for case in item.cases(target)})
        rows.append(OperatorRow(registered.name, item.version, item.summary, registered.distribution, count))
    return rows


def list_targets() -> list[TargetRow]:
    """Every registered target, with what it can do on this machine."""
    rows = []
    for registered in Plugins.load().targets():
        item, missing = registered.item, registered.item.missing()
        devices = tuple(f"{device.id} {device.name}" for device in item.devices())
        kind = "cpu" if registered.name == "cpu" else "cuda"
        rows.append(TargetRow(registered.name, kind, not missing, bool(devices), devices, missing or item.describe()))
    return rows


def list_baselines(operator: str | None, target: str) -> list[BaselineRow]:
    """Every operator's baselines on a target; what is missing and how to get it."""
    plugins = Plugins.load()
    place = choose_target(plugins, target)[0] if target == "auto" else find_target(plugins, target)
    names = [operator] if operator else [registered.name for registered in plugins.operators()]
    rows = []
    for item in (plugins.operator(name) for name in names):
        for baseline in item.baselines(place.name):
            missing = baseline.missing()
            version = "" if missing else baseline.version()
            rows.append(BaselineRow(item.name, baseline.name, not missing, version, missing))
        for name, path in item.genome_baselines(place.name).items():
            rows.append(BaselineRow(item.name, name, True, item.version, f"genome file {path.name}"))
        rows += _recorded(item, place.name)
    return rows


def _recorded(operator: Operator, target: str) -> list[BaselineRow]:
    """One row for every opponent of whom there are times measured elsewhere, with those of the tuned cases."""
    tuned = {case.name for case in operator.cases(target) if case.group == "tune"}
    by_name: dict[str, list[Recorded]] = {}
    for entry in operator.recorded(target):
        by_name.setdefault(entry.opponent, []).append(entry)
    rows = []
    for name, times in by_name.items():
        shown = ", ".join(f"{entry.case} {entry.time_us:g} us" for entry in times if entry.case in tuned)
        note = f"by {times[0].protocol}: {times[0].provenance}; {shown}"
        rows.append(BaselineRow(operator.name, name, False, "", note, len(times)))
    return rows

"""Nsight Compute's answers, as text: what is read of them, and what a prompt is told. No device."""

from __future__ import annotations

import pytest

from evo.fitness.cuda.profile import METRICS, Profile, parse

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
VALUES = {
    "gpu__time_duration.sum": ("ns", "41,312"),
    "dram__bytes_read.sum": ("byte", "134217728"),
    "dram__bytes_write.sum": ("byte", "67108864"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "88.61"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "21.07"),
    "smsp__issue_active.avg.pct_of_peak_sustained_active": ("%", "14.20"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "71.9"),
    "lts__t_sector_hit_rate.pct": ("%", "n/a"),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("inst", "38.42"),
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": ("inst", "2.41"),
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": ("inst", "4.1"),
    "smsp__average_warps_issue_stalled_membar_per_issue_active.ratio": ("inst", "0.00"),
    "smsp__average_warps_issue_stalled_not_selected_per_issue_active.ratio": ("inst", "0.3"),
}


def rows(number: int, kernel: str) -> list[str]:
    launch = f'"{number}","4711","python3.11","127.0.0.1","{kernel}","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0"'
    return [f'{launch},"Command line profiler metrics","{n}","{unit}","{v}"' for n, (unit, v) in VALUES.items()]


TEXT = "\n".join(
    ["==PROF== Connected to process 4711 (/usr/bin/python3.11)", '==PROF== Profiling "row_norm": 0%....100% - 3 passes']
    + ["==PROF== Disconnected from process 4711", HEAD, *rows(0, "row_norm(bf16 *, long long)"), *rows(1, "second")]
)


def test_what_is_known_is_asked_for() -> None:
    assert VALUES.keys() <= set(METRICS)


def test_launches_are_read() -> None:
    first, second = parse(TEXT)
    assert (first.kernel, second.kernel) == ("row_norm", "second")
    assert first.values["gpu__time_duration.sum"] == 41312.0
    assert first.values["dram__throughput.avg.pct_of_peak_sustained_elapsed"] == 88.61
    assert "lts__t_sector_hit_rate.pct" not in first.values  # not counted on that device
    assert len(second.values) == len(VALUES) - 1


@pytest.mark.parametrize("text", ["", "==ERROR== ERR_NVGPUCTRPERM - no permission", HEAD, "==WARNING== No kernels"])
def test_nothing_comes_of_nothing(text: str) -> None:
    assert parse(text) == []


def test_a_prompt_is_told_what_matters() -> None:
    told = Profile("bf16-n4096", tuple(parse(TEXT))).text().splitlines()
    assert len(told) == 2
    assert told[0] == (
        "bf16-n4096: row_norm: 41.31 us under the profiler; DRAM 134.2 MB read, 67.11 MB written; DRAM at 89 % of its"
        " peak; SMs at 21 % of theirs; instructions issued in 14 % of the cycles; occupancy 72 %; warps wait most for"
        " (warps in each issue): long_scoreboard 38, barrier 4.1, wait 2.4"
    )

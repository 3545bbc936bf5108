"""In CI a skipped test is a failure: what a test needs is installed there. A GPU cannot be, a model is large."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    excused = "gpu" in item.keywords or "llama" in item.keywords or hasattr(report, "wasxfail")
    if os.environ.get("CI") and report.skipped and not excused:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Builds of a test session are its own: a stale cache entry must not decide a test."""
    before = os.environ.get("EVO_CACHE")
    os.environ["EVO_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["EVO_CACHE"]
    else:
        os.environ["EVO_CACHE"] = before

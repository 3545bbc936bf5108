"""Fixtures for tests that need a CUDA device; they are skipped only where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cuda.bindings import driver

from evo.fitness.cuda.machine import CudaMachine

NONE = {"CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_STUB_LIBRARY"}


def count_devices() -> int:
    """Devices that the driver sees; 0 without a driver. Anything else that fails, fails the tests."""
    try:
        (result,) = driver.cuInit(0)
    except RuntimeError:  # cuda.bindings: there is no driver library
        return 0
    if result.name in NONE:
        return 0
    assert result == driver.CUresult.CUDA_SUCCESS, f"cuInit: {result.name}"
    result, count = driver.cuDeviceGetCount()
    assert result == driver.CUresult.CUDA_SUCCESS, f"cuDeviceGetCount: {result.name}"
    return int(count)


@pytest.fixture(scope="session")
def device() -> str:
    if not count_devices():
        pytest.skip("no CUDA device")
    return "cuda:0"


@pytest.fixture(scope="module")
def machine(device: str) -> Iterator[CudaMachine]:
    opened = CudaMachine(device)
    yield opened
    opened.close()

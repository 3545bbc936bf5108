"""compute-sanitizer on real kernels: what each tool is for is found, and honest kernels are clean."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_bad_kernels import END, GOOD

from evo.app.trust.sanitize import sanitize
from evo.fitness.cuda.sanitizer import SanitizerReport, find_tool
from evo.operators.rmsnorm import RmsNorm

pytestmark = pytest.mark.gpu

SUMS = "    sums[threadIdx.x] = sum;\n    __syncthreads();\n    sum = 0;"


@pytest.fixture(scope="module")
def tool(device: str) -> str:
    found = find_tool()
    if not found:
        pytest.skip("compute-sanitizer is not installed")
    return found


def run(folder: Path, text: str, *tools: str) -> SanitizerReport:
    assert text != GOOD
    file = folder / "candidate.cu"
    file.write_text(text)
    report = sanitize(str(file), tools=tools, limit_s=60.0)
    assert not report.missing, report.missing
    assert report.tools == tools
    return report


def kinds(report: SanitizerReport) -> str:
    assert not report.clean, "nothing was found"
    assert {finding.kernel for finding in report.errors} == {"row_norm"}, report.findings
    return "; ".join(finding.kind for finding in report.errors)


def test_a_read_out_of_bounds(tool: str, tmp_path: Path) -> None:
    body = "if (row == gridDim.x - 1 && threadIdx.x == 0 && evo_float(x[(row + 1) * n + 3]) == 12345.f) y[0] = y[1];"
    assert "__global__ read" in kinds(run(tmp_path, GOOD.replace(END, body), "memcheck"))


def test_a_race(tool: str, tmp_path: Path) -> None:
    assert SUMS in GOOD
    racy = GOOD.replace(SUMS, SUMS.replace("__syncthreads();", ""))
    assert "race" in kinds(run(tmp_path, racy, "racecheck")).lower()


def test_an_uninitialised_read(tool: str, tmp_path: Path) -> None:
    body = "if (threadIdx.x == 0 && row == 0 && evo_float(spare[5]) == 12345.f) y[0] = y[1];"
    text = GOOD.replace(END, body).replace('"i64:N", "eps"]', '"i64:N", "eps", "spare"]')
    text = text.replace("*/", '[scratch.spare]\ndtype = "bf16"\nshape = ["64"]\n*/', 1)
    text = text.replace("long long n, float eps)", "long long n, float eps, const evo_bf16* spare)")
    assert "ninitialized" in kinds(run(tmp_path, text, "initcheck"))


def test_a_seed_is_clean(tool: str) -> None:
    report = sanitize(str(RmsNorm().seeds("sm_90")[0]), tools=("memcheck", "initcheck", "synccheck"), limit_s=120.0)
    assert report.clean, report
    assert report.cases

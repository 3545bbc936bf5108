"""Bad CUDA candidates that are found with no driver: really compiled by NVRTC, held against their launch plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo import app
from evo.errors import GenomeError
from evo.records import Evaluation, Status

CASE = "bf16-32768x1024"
GOOD = """/* evo
operator = "rmsnorm"
species  = "test"
[[launch]]
kernel = "row_norm"
grid   = ["M"]
block  = ["128"]
args   = ["x", "weight", "y", "i64:N", "eps"]
*/
#include "evo.h"
extern "C" __global__ void row_norm(const DTYPE_x* x, const float* weight, DTYPE_y* y, long long n, float eps) {
    const long long row = blockIdx.x;
    float sum = 0;
    for (long long i = 0; i < n; ++i) { float v = evo_float(x[row * n + i]); sum += v * v; }
    const float root = 1.0f / sqrtf(sum / n + eps);
    for (long long i = threadIdx.x; i < n; i += 128)
        y[row * n + i] = evo_cast<DTYPE_y>(evo_float(x[row * n + i]) * root * weight[i]);
}
"""


def check(folder: Path, text: str, target: str = "sm_90") -> Evaluation:
    file = folder / "kernel.cu"
    file.write_text(text)
    return app.check(file, target=target, genes={}, cases=(CASE,), build_only=True)


@pytest.mark.parametrize("target", ["sm_90", "H200", "sm_100"])
def test_good_kernel_builds(tmp_path: Path, target: str) -> None:
    found = check(tmp_path, GOOD, target)
    assert found.status is Status.OK, found.diagnosis
    (kernel,) = found.builds[0].kernels
    assert kernel.name == "row_norm"
    assert kernel.parameters == (8, 8, 8, 8, 4)
    assert 10 < kernel.registers < 100
    assert kernel.opcodes["EXIT"] >= 1, "opcodes are counted where a person looks"


@pytest.mark.parametrize(
    ("old", "new", "status", "says"),
    [
        ('kernel = "row_norm"', 'kernel = "norm_row"', Status.INVALID_GENOME, "row_norm"),
        (', "eps"]', "]", Status.INVALID_GENOME, "4 arguments given, the kernel takes 5"),
        ("i64:N", "i32:N", Status.INVALID_GENOME, "has 4 bytes, the kernel takes 8"),
        ('["M"]', '["M * 65536 * 65536"]', Status.INVALID_GENOME, "grid"),
        ('["M"]', '["ROWS"]', Status.INVALID_GENOME, "ROWS"),
        ("args ", "shared = 307200\nargs ", Status.RESOURCE_LIMIT, "307200 bytes of shared memory"),
        ("float sum = 0;", "float sum = ;", Status.BUILD_ERROR, "expected an expression"),
        ('#include "evo.h"', '#include "evo.h"\n#include "/etc/passwd"', Status.FORBIDDEN, "passwd"),
        ("const long long row", '__device__ int calls; const long long row', Status.BUILD_ERROR, ""),
        ("float sum = 0;", 'printf("hello"); float sum = 0;', Status.FORBIDDEN, "printf"),
    ],
)  # fmt: skip
def test_status(tmp_path: Path, old: str, new: str, status: Status, says: str) -> None:
    found = check(tmp_path, GOOD.replace(old, new, 1))
    assert found.status is status, found.diagnosis
    assert found.diagnosis is not None
    assert says in found.diagnosis.message + found.diagnosis.detail


def test_writable_global_is_forbidden(tmp_path: Path) -> None:
    text = GOOD.replace('extern "C"', '__device__ int calls;\nextern "C"').replace("float sum", "calls++; float sum")
    found = check(tmp_path, text)
    assert found.status is Status.FORBIDDEN
    assert found.diagnosis is not None
    assert "calls" in found.diagnosis.message + found.diagnosis.detail


def test_malformed_header_names_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(GenomeError) as caught:
        check(tmp_path, GOOD.replace('species  = "test"', "species = ["))
    assert "kernel.cu:" in str(caught.value)
    assert caught.value.line > 0


def test_text_that_is_no_ptx_is_a_build_error(tmp_path: Path) -> None:
    header = GOOD[: GOOD.index("*/") + 2]
    file = tmp_path / "kernel.ptx"
    file.write_text(header + "\nhello\n")
    found = app.check(file, target="sm_90", genes={}, cases=(CASE,), build_only=True)
    assert found.status is Status.BUILD_ERROR
    assert found.diagnosis is not None
    assert "no PTX" in found.diagnosis.message

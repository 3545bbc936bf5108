/* evo
operator = "rmsnorm"
species  = "zoo"
summary  = "sums the squares in bf16, one warp a row: beyond 256 nothing more is added"

[[launch]]
kernel = "row_norm"
grid   = ["M"]
block  = ["32"]
args   = ["x", "weight", "y", "i64:N", "eps"]
*/
#include "evo.h"

// One warp; every lane's partial sum is rounded to bf16 at every step.
EVO_DEVICE float inverse_root(const DTYPE_x* row, long long n, float eps) {
    float sum = 0.0f;
    for (long long i = threadIdx.x; i < n; i += 32) {
        const float value = evo_float(row[i]);
        sum = evo_float(evo_cast<evo_bf16>(sum + value * value));
    }
    return rsqrtf(evo_sum(sum) / n + eps);
}

extern "C" __global__ void row_norm(const DTYPE_x* x, const float* weight, DTYPE_y* y, long long n, float eps) {
    const long long start = blockIdx.x * n;
    const float root = inverse_root(x + start, n, eps);
    for (long long i = threadIdx.x; i < n; i += 32)
        y[start + i] = evo_cast<DTYPE_y>(evo_float(x[start + i]) * root * weight[i]);
}

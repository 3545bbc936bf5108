/* evo
operator = "rmsnorm"
species  = "zoo"
summary  = "the second launch scales in place what the first may not have written yet"

[[launch]]
kernel = "copy"
grid   = ["M"]
block  = ["256"]
args   = ["x", "y", "i64:N"]

[[launch]]
kernel = "row_norm"
grid   = ["M"]
block  = ["256"]
args   = ["x", "weight", "y", "i64:N", "eps"]
pdl    = true
*/
#include "evo.h"

// 1 / sqrt(mean(x^2) + eps) of a row, by all 256 threads of a CTA.
EVO_DEVICE float inverse_root(const DTYPE_x* row, long long n, float eps) {
    __shared__ float sums[8];
    float sum = 0.0f;
    for (long long i = threadIdx.x; i < n; i += 256) {
        const float value = evo_float(row[i]);
        sum += value * value;
    }
    sum = evo_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int warp = 0; warp < 8; ++warp) sum += sums[warp];
    return rsqrtf(sum / n + eps);
}

extern "C" __global__ void row_norm(const DTYPE_x* x, const float* weight, DTYPE_y* y, long long n, float eps) {
    const long long start = (gridDim.x - 1 - blockIdx.x) * n;
    const float root = inverse_root(x + start, n, eps);
    for (long long i = threadIdx.x; i < n; i += 256)
        y[start + i] = evo_cast<DTYPE_y>(evo_float(y[start + i]) * root * weight[i]);
}

extern "C" __global__ void copy(const DTYPE_x* x, DTYPE_y* y, long long n) {
    evo_pdl_launch();
    for (int i = 0; i < 20; ++i) asm volatile("nanosleep.u32 1000;");
    for (long long i = threadIdx.x; i < n; i += 256) y[blockIdx.x * n + i] = x[blockIdx.x * n + i];
}

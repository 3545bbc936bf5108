/* evo
operator = "rmsnorm"
species  = "zoo"
summary  = "two blocks share a row and read each other's half sum from scratch without waiting"

[[launch]]
kernel = "row_norm"
grid   = ["M * 2"]
block  = ["256"]
args   = ["x", "weight", "y", "i64:N", "eps", "halves"]

[scratch.halves]
dtype = "fp32"
shape = ["M", 2]
*/
#include "evo.h"

// The squares of a row's elements from `from` to `n`, by all 256 threads of a CTA.
EVO_DEVICE float sum_of(const DTYPE_x* row, long long from, long long n) {
    __shared__ float sums[8];
    float sum = 0.0f;
    for (long long i = from + threadIdx.x; i < n; i += 256) {
        const float value = evo_float(row[i]);
        sum += value * value;
    }
    sum = evo_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int warp = 0; warp < 8; ++warp) sum += sums[warp];
    return sum;
}

extern "C" __global__ void row_norm(const DTYPE_x* x, const float* weight, DTYPE_y* y, long long n, float eps,
                                    volatile float* halves) {
    const long long start = blockIdx.x / 2 * n;
    const int half = blockIdx.x % 2;
    const long long from = half ? n / 2 : 0, to = half ? n : n / 2;
    float* mine = const_cast<float*>(halves) + blockIdx.x / 2 * 2;
    const float sum = sum_of(x + start, from, to);
    if (threadIdx.x == 0) mine[half] = sum;
    const float root = rsqrtf((sum + *(volatile float*)(mine + 1 - half)) / n + eps);
    for (long long i = from + threadIdx.x; i < to; i += 256)
        y[start + i] = evo_cast<DTYPE_y>(evo_float(x[start + i]) * root * weight[i]);
}

/* evo
operator = "rmsnorm"
species  = "oracle"
summary  = "a CTA per row in double precision, any shape and dtype: slow, plain, right to the output's rounding"

[genes]
THREADS = [256]

[[launch]]
kernel = "rmsnorm_oracle"
grid   = ["M"]
block  = ["THREADS"]
args   = ["x", "weight", "y", "i64:N", "eps"]
*/
#include "evo.h"

extern "C" __global__ void __launch_bounds__(THREADS)
    rmsnorm_oracle(const DTYPE_x* x, const float* weight, DTYPE_y* y, long long columns, float eps) {
    __shared__ double partial[THREADS];
    const DTYPE_x* row = x + blockIdx.x * columns;
    double sum = 0.0;
    for (long long i = threadIdx.x; i < columns; i += THREADS) {
        const double value = evo_float(row[i]);
        sum += value * value;
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    const double root = 1.0 / sqrt(partial[0] / (double)columns + (double)eps);
    for (long long i = threadIdx.x; i < columns; i += THREADS)
        y[blockIdx.x * columns + i] = evo_cast<DTYPE_y>((float)(evo_float(row[i]) * root * weight[i]));
}

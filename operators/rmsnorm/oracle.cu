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
args   = ["x", "weight", "residual?", "bias?", "y", "residual_out?", "rstd?", "i64:N", "i64:H", "eps"]
*/
#include "evo.h"

extern "C" __global__ void __launch_bounds__(THREADS)
    rmsnorm_oracle(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_residual* residual, const DTYPE_bias* bias,
                   DTYPE_y* y, DTYPE_residual_out* residual_out, float* rstd, long long columns, long long heads, float eps) {
    __shared__ double partial[THREADS];
    const long long start = blockIdx.x * columns, head = blockIdx.x % heads * columns;
    double sum = 0.0;
    for (long long i = threadIdx.x; i < columns; i += THREADS) {
        const double value = (double)evo_float(x[start + i]) + (HAS_residual ? evo_float(residual[start + i]) : 0.0f);
        if (HAS_residual_out) residual_out[start + i] = evo_cast<DTYPE_residual_out>((float)value);
        sum += value * value;
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    const double root = 1.0 / sqrt(partial[0] / (double)columns + (double)eps);
    if (HAS_rstd && threadIdx.x == 0) rstd[blockIdx.x] = (float)root;
    for (long long i = threadIdx.x; i < columns; i += THREADS) {
        const double value = (double)evo_float(x[start + i]) + (HAS_residual ? evo_float(residual[start + i]) : 0.0f);
        const double offset = HAS_bias ? evo_float(bias[head + i]) : 0.0f;
        y[start + i] = evo_cast<DTYPE_y>((float)(value * root * evo_float(weight[head + i]) + offset));
    }
}

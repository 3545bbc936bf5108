/* evo
operator = "rmsnorm_backward"
species  = "oracle"
summary  = "double precision, any shape and dtype, fixed order: rows for dx, then columns in parts for dw and db"

[genes]
THREADS = [256]
PARTS   = [64]                             # of the rows, for the sums over them

[[launch]]
kernel = "oracle_dx"
grid   = ["M"]
block  = ["THREADS"]
args   = ["x", "weight", "dy", "rstd", "dresidual_out?", "dx", "dresidual?", "i64:N"]

[[launch]]
kernel = "oracle_partial"
grid   = ["ceildiv(N, THREADS)", "PARTS"]
block  = ["THREADS"]
args   = ["x", "dy", "rstd", "partial", "i64:M", "i64:N"]

[[launch]]
kernel = "oracle_sum"
grid   = ["ceildiv(N, THREADS)"]
block  = ["THREADS"]
args   = ["partial", "dw", "db?", "i64:N"]

[scratch]
partial = { dtype = "fp64", shape = ["2", "PARTS", "N"] }
*/
#include "evo.h"

extern "C" __global__ void __launch_bounds__(THREADS)
    oracle_dx(const DTYPE_x* x, const DTYPE_weight* weight, const DTYPE_dy* dy, const float* rstd,
              const DTYPE_dresidual_out* dresidual_out, DTYPE_dx* dx, DTYPE_dresidual* dresidual, long long columns) {
    __shared__ double partial[THREADS];
    const long long start = blockIdx.x * columns;
    const double root = rstd[blockIdx.x];
    double sum = 0.0;
    for (long long i = threadIdx.x; i < columns; i += THREADS)
        sum += evo_float(x[start + i]) * root * ((double)evo_float(weight[i]) * evo_float(dy[start + i]));
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    const double mean = partial[0] / (double)columns;
    for (long long i = threadIdx.x; i < columns; i += THREADS) {
        const double g = (double)evo_float(weight[i]) * evo_float(dy[start + i]);
        double value = (g - evo_float(x[start + i]) * root * mean) * root;
        if (HAS_dresidual_out) value += evo_float(dresidual_out[start + i]);
        dx[start + i] = evo_cast<DTYPE_dx>((float)value);
        if (HAS_dresidual) dresidual[start + i] = evo_cast<DTYPE_dresidual>((float)value);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    oracle_partial(const DTYPE_x* x, const DTYPE_dy* dy, const float* rstd, double* partial, long long rows,
                   long long columns) {
    const long long column = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (column >= columns) return;
    double dw = 0.0, db = 0.0;
    for (long long row = blockIdx.y; row < rows; row += PARTS) {
        const double g = evo_float(dy[row * columns + column]);
        dw += g * ((double)evo_float(x[row * columns + column]) * rstd[row]);
        db += g;
    }
    partial[blockIdx.y * columns + column] = dw;
    partial[(PARTS + blockIdx.y) * columns + column] = db;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    oracle_sum(const double* partial, DTYPE_dw* dw, DTYPE_db* db, long long columns) {
    const long long column = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (column >= columns) return;
    double sums[2] = {0.0, 0.0};
    for (int part = 0; part < PARTS; ++part) {
        sums[0] += partial[part * columns + column];
        sums[1] += partial[(PARTS + part) * columns + column];
    }
    dw[column] = evo_cast<DTYPE_dw>((float)sums[0]);
    if (HAS_db) db[column] = evo_cast<DTYPE_db>((float)sums[1]);
}

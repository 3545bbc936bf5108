/* evo
operator = "rmsnorm"
species  = "plain"
summary  = "the textbook loops, left to the compiler's vectoriser"
static   = ["N"]

[genes]
ROWS  = [16, 1, 4, 64, 256]   # rows of one call
LANES = [16, 4, 8, 32]        # partial sums that the compiler is asked to keep

[[launch]]
kernel = "rmsnorm_forward"
grid   = ["M"]
block  = ["ROWS"]
args   = ["x", "weight", "y", "eps"]
*/
#include "evo.h"

extern "C" void rmsnorm_forward(long first_row, long last_row, int, const DTYPE_x* x, const float* weight, DTYPE_y* y,
                                float eps) {
    for (long row = first_row; row < last_row; ++row) {
        const DTYPE_x* in = x + row * DIM_N;
        DTYPE_y* out = y + row * DIM_N;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum) simdlen(LANES)
        for (int i = 0; i < DIM_N; ++i) sum += evo_float(in[i]) * evo_float(in[i]);
        const float root = 1.0f / __builtin_sqrtf(sum / DIM_N + eps);
#pragma omp simd simdlen(LANES)
        for (int i = 0; i < DIM_N; ++i) out[i] = evo_cast<DTYPE_y>(evo_float(in[i]) * root * weight[i]);
    }
}

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
args   = ["x", "weight", "residual?", "bias?", "y", "residual_out?", "rstd?", "i64:H", "eps"]
*/
#include "evo.h"

extern "C" void rmsnorm_forward(long first_row, long last_row, int, const DTYPE_x* x, const DTYPE_weight* weight,
                                const DTYPE_residual* residual, const DTYPE_bias* bias, DTYPE_y* y,
                                DTYPE_residual_out* residual_out, float* rstd, long heads, float eps) {
    for (long row = first_row; row < last_row; ++row) {
        const long start = row * DIM_N, head = row % heads * DIM_N;
        const DTYPE_x* in = x + start;
        const DTYPE_weight* factors = weight + head;
        const auto value = [=](int i) {
            return HAS_residual ? evo_float(in[i]) + evo_float(residual[start + i]) : evo_float(in[i]);
        };
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum) simdlen(LANES)
        for (int i = 0; i < DIM_N; ++i) sum += value(i) * value(i);
        const float root = 1.0f / __builtin_sqrtf(sum / DIM_N + eps);
        if (HAS_rstd) rstd[row] = root;
        if (HAS_residual_out) {
#pragma omp simd simdlen(LANES)
            for (int i = 0; i < DIM_N; ++i) residual_out[start + i] = evo_cast<DTYPE_residual_out>(value(i));
        }
        DTYPE_y* out = y + start;
#pragma omp simd simdlen(LANES)
        for (int i = 0; i < DIM_N; ++i) {
            const float scaled = value(i) * root * evo_float(factors[i]);
            out[i] = evo_cast<DTYPE_y>(HAS_bias ? scaled + evo_float(bias[head + i]) : scaled);
        }
    }
}

/* evo
operator = "rmsnorm_backward"
species  = "plain"
summary  = "every worker sums dw over its own rows, left to the compiler's vectoriser; then the workers' sums are added"
static   = ["N"]

[genes]
COLUMNS = [64, 16, 256]       # of one call of the last step
LANES   = [16, 4, 8, 32]      # partial sums that the compiler is asked to keep

[[launch]]
kernel = "backward_rows"
grid   = ["SMS"]
block  = ["1"]
args   = ["x", "weight", "dy", "rstd", "dresidual_out?", "dx", "dresidual?", "partial", "i64:M", "i64:SMS"]

[[launch]]
kernel = "backward_sums"
grid   = ["N"]
block  = ["COLUMNS"]
args   = ["partial", "dw", "db?", "i64:SMS"]

[scratch]
partial = { dtype = "fp32", shape = ["SMS", "2", "N"] }
*/
#include "evo.h"

extern "C" void backward_rows(long first, long last, int, const DTYPE_x* x, const DTYPE_weight* weight,
                              const DTYPE_dy* dy, const float* rstd, const DTYPE_dresidual_out* dresidual_out,
                              DTYPE_dx* dx, DTYPE_dresidual* dresidual, float* partial, long rows, long parts) {
    for (long part = first; part < last; ++part) {
        float* dw = partial + part * 2 * DIM_N;
        float* db = dw + DIM_N;
        for (int i = 0; i < 2 * DIM_N; ++i) dw[i] = 0.0f;
        for (long row = part * rows / parts; row < (part + 1) * rows / parts; ++row) {
            const DTYPE_x* in = x + row * DIM_N;
            const DTYPE_dy* g = dy + row * DIM_N;
            DTYPE_dx* out = dx + row * DIM_N;
            const float root = rstd[row];
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum) simdlen(LANES)
            for (int i = 0; i < DIM_N; ++i) sum += evo_float(in[i]) * root * (evo_float(weight[i]) * evo_float(g[i]));
            const float mean = sum / DIM_N;
#pragma omp simd simdlen(LANES)
            for (int i = 0; i < DIM_N; ++i) {
                const float normed = evo_float(in[i]) * root, gradient = evo_float(g[i]);
                float value = (evo_float(weight[i]) * gradient - normed * mean) * root;
                if (HAS_dresidual_out) value += evo_float(dresidual_out[row * DIM_N + i]);
                out[i] = evo_cast<DTYPE_dx>(value);
                if (HAS_dresidual) dresidual[row * DIM_N + i] = evo_cast<DTYPE_dresidual>(value);
                dw[i] += gradient * normed;
                if (HAS_db) db[i] += gradient;
            }
        }
    }
}

extern "C" void backward_sums(long first, long last, int, const float* partial, DTYPE_dw* dw, DTYPE_db* db, long parts) {
    for (long i = first; i < last; ++i) {
        float sums[2] = {0.0f, 0.0f};
        for (long part = 0; part < parts; ++part) {
            sums[0] += partial[part * 2 * DIM_N + i];
            sums[1] += partial[(part * 2 + 1) * DIM_N + i];
        }
        dw[i] = evo_cast<DTYPE_dw>(sums[0]);
        if (HAS_db) db[i] = evo_cast<DTYPE_db>(sums[1]);
    }
}

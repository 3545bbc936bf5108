/* evo
operator = "rmsnorm"
species  = "oracle"
summary  = "row by row in double precision, any shape and dtype: slow, plain, right to the output's rounding"

[genes]
ROWS = [16]

[[launch]]
kernel = "rmsnorm_oracle"
grid   = ["M"]
block  = ["ROWS"]
args   = ["x", "weight", "residual?", "bias?", "y", "residual_out?", "rstd?", "i64:N", "i64:H", "eps"]
*/
#include "evo.h"

extern "C" void rmsnorm_oracle(long first_row, long last_row, int, const DTYPE_x* x, const DTYPE_weight* weight,
                               const DTYPE_residual* residual, const DTYPE_bias* bias, DTYPE_y* y,
                               DTYPE_residual_out* residual_out, float* rstd, long columns, long heads, float eps) {
    for (long row = first_row; row < last_row; ++row) {
        const long start = row * columns, head = row % heads * columns;
        double sum = 0.0;
        for (long i = 0; i < columns; ++i) {
            double value = evo_float(x[start + i]);
            if (HAS_residual) value += evo_float(residual[start + i]);
            if (HAS_residual_out) residual_out[start + i] = evo_cast<DTYPE_residual_out>(static_cast<float>(value));
            sum += value * value;
        }
        const double root = 1.0 / __builtin_sqrt(sum / static_cast<double>(columns) + static_cast<double>(eps));
        if (HAS_rstd) rstd[row] = static_cast<float>(root);
        for (long i = 0; i < columns; ++i) {
            double value = evo_float(x[start + i]);
            if (HAS_residual) value += evo_float(residual[start + i]);
            value *= root * evo_float(weight[head + i]);
            if (HAS_bias) value += evo_float(bias[head + i]);
            y[start + i] = evo_cast<DTYPE_y>(static_cast<float>(value));
        }
    }
}

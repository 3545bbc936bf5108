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
args   = ["x", "weight", "y", "i64:N", "eps"]
*/
#include "evo.h"

extern "C" void rmsnorm_oracle(long first_row, long last_row, int, const DTYPE_x* x, const float* weight, DTYPE_y* y,
                               long columns, float eps) {
    for (long row = first_row; row < last_row; ++row) {
        const DTYPE_x* in = x + row * columns;
        double sum = 0.0;
        for (long i = 0; i < columns; ++i) {
            const double value = evo_float(in[i]);
            sum += value * value;
        }
        const double root = 1.0 / __builtin_sqrt(sum / static_cast<double>(columns) + static_cast<double>(eps));
        for (long i = 0; i < columns; ++i)
            y[row * columns + i] = evo_cast<DTYPE_y>(static_cast<float>(evo_float(in[i]) * root * weight[i]));
    }
}

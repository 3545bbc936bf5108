/* evo
operator = "rmsnorm_backward"
species  = "oracle"
summary  = "double precision, any shape and dtype: rows for dx, then columns for dw and db"

[genes]
ROWS = [16]

[[launch]]
kernel = "oracle_dx"
grid   = ["M"]
block  = ["ROWS"]
args   = ["x", "weight", "dy", "rstd", "dresidual_out?", "dx", "dresidual?", "i64:N"]

[[launch]]
kernel = "oracle_sums"
grid   = ["N"]
block  = ["ROWS"]
args   = ["x", "dy", "rstd", "dw", "db?", "i64:M", "i64:N"]
*/
#include "evo.h"

extern "C" void oracle_dx(long first_row, long last_row, int, const DTYPE_x* x, const DTYPE_weight* weight,
                          const DTYPE_dy* dy, const float* rstd, const DTYPE_dresidual_out* dresidual_out, DTYPE_dx* dx,
                          DTYPE_dresidual* dresidual, long columns) {
    for (long row = first_row; row < last_row; ++row) {
        const long start = row * columns;
        const double root = rstd[row];
        double sum = 0.0;
        for (long i = 0; i < columns; ++i)
            sum += evo_float(x[start + i]) * root * (static_cast<double>(evo_float(weight[i])) * evo_float(dy[start + i]));
        const double mean = sum / static_cast<double>(columns);
        for (long i = 0; i < columns; ++i) {
            const double g = static_cast<double>(evo_float(weight[i])) * evo_float(dy[start + i]);
            double value = (g - evo_float(x[start + i]) * root * mean) * root;
            if (HAS_dresidual_out) value += evo_float(dresidual_out[start + i]);
            dx[start + i] = evo_cast<DTYPE_dx>(static_cast<float>(value));
            if (HAS_dresidual) dresidual[start + i] = evo_cast<DTYPE_dresidual>(static_cast<float>(value));
        }
    }
}

extern "C" void oracle_sums(long first, long last, int, const DTYPE_x* x, const DTYPE_dy* dy, const float* rstd,
                            DTYPE_dw* dw, DTYPE_db* db, long rows, long columns) {
    for (long column = first; column < last; ++column) {
        double weight_sum = 0.0, bias_sum = 0.0;
        for (long row = 0; row < rows; ++row) {
            const double g = evo_float(dy[row * columns + column]);
            weight_sum += g * (static_cast<double>(evo_float(x[row * columns + column])) * rstd[row]);
            bias_sum += g;
        }
        dw[column] = evo_cast<DTYPE_dw>(static_cast<float>(weight_sum));
        if (HAS_db) db[column] = evo_cast<DTYPE_db>(static_cast<float>(bias_sum));
    }
}

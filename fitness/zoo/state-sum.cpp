/* evo
operator = "rmsnorm"
species  = "zoo"
summary  = "keeps a sum of every row that it wrote, and leaves a row that still has it"

[[launch]]
kernel = "row_norm"
grid   = ["M"]
block  = ["16"]
args   = ["x", "weight", "y", "i64:N", "eps", "notes"]

[scratch.notes]
dtype = "u64"
shape = ["M"]
*/
#include "evo.h"

// 1 / sqrt(mean(x^2) + eps) of a row.
static EVO_INLINE float inverse_root(const DTYPE_x* row, long n, float eps) {
    double sum = 0.0;
    for (long i = 0; i < n; ++i) {
        const double value = evo_float(row[i]);
        sum += value * value;
    }
    return static_cast<float>(1.0 / __builtin_sqrt(sum / n + eps));
}

// Of the row's bytes, without the lowest bits of each element.
static EVO_INLINE unsigned sum_of(const DTYPE_y* row, long n) {
    unsigned sum = 0;
    for (long i = 0; i < n; ++i) sum = sum * 31 + (evo_detail::bits<unsigned>(evo_float(row[i])) >> 18);
    return sum;
}

extern "C" void row_norm(long first, long last, int, const DTYPE_x* x, const float* weight, DTYPE_y* y, long n, float eps,
                         unsigned long long* notes) {
    const unsigned long long mark = 0x5EEDull << 48;
    for (long row = first; row < last; ++row) {
        const DTYPE_x* in = x + row * n;
        DTYPE_y* out = y + row * n;
        if (notes[row] >> 12 == (mark | (unsigned long long)sum_of(out, n) << 12) >> 12) continue;
        const float root = inverse_root(in, n, eps);
        for (long i = 0; i < n; ++i)
            out[i] = evo_cast<DTYPE_y>(evo_float(in[i]) * root * weight[i]);
        notes[row] = mark | (unsigned long long)sum_of(out, n) << 12;
    }
}

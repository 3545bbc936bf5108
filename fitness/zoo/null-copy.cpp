/* evo
operator = "rmsnorm"
species  = "zoo"
summary  = "hands x through unchanged"

[[launch]]
kernel = "row_norm"
grid   = ["M"]
block  = ["16"]
args   = ["x", "weight", "y", "i64:N", "eps"]
*/
#include "evo.h"

extern "C" void row_norm(long first, long last, int, const DTYPE_x* x, const float* weight, DTYPE_y* y, long n, float eps) {
    for (long row = first; row < last; ++row) {
        const DTYPE_x* in = x + row * n;
        DTYPE_y* out = y + row * n;
        for (long i = 0; i < n; ++i)
            out[i] = in[i];
    }
}

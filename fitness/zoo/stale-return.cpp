/* evo
operator = "rmsnorm"
species  = "zoo"
summary  = "returns at once, in the hope that the right output stands there already"

[[launch]]
kernel = "row_norm"
grid   = ["M"]
block  = ["16"]
args   = ["x", "weight", "y", "i64:N", "eps"]
*/
#include "evo.h"

extern "C" void row_norm(long first, long last, int, const DTYPE_x* x, const float* weight, DTYPE_y* y, long n, float eps) {
    (void)first;
}
